//! Memory that a model takes, and that a long answer takes no more. Alone in its process: the figures are the whole
//! process's.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use brasa::{ContextPolicy, FinishReason, GenerateOptions, LoadOptions, Model};
use brasa_golden::folder;

const MIB: u64 = 1 << 20;

/// Bytes of KV pages that exist and of the arena.
fn pages_and_arena(model: &Model) -> u64 {
    model.engine().with(|executor| executor.memory_bytes()).unwrap()
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[test]
fn a_thousand_tokens_in_bounded_memory() {
    for name in ["lexicon-qwen3/lexicon-qwen3-Q6_K.gguf", "tiny-gemma3"] {
        let options =
            LoadOptions { context: Some(256), chunk: Some(128), threads: Some(1), ..LoadOptions::default() };
        let model = Model::load(folder(name), &options).unwrap();
        let mut options = GenerateOptions {
            max_tokens: Some(1000),
            ignore_eos: true,
            context_policy: ContextPolicy::Slide { keep: 8 },
            ..GenerateOptions::default()
        };
        options.sampling.temperature = 1.0;
        let mut stream = model.generate_ids((300..320).collect(), &options).unwrap();
        let mut after = |count| {
            assert_eq!(stream.by_ref().take(count).map(Result::unwrap).count(), count);
            (pages_and_arena(&model), resident_bytes())
        };
        // After 400 tokens the context has been full, and has slid.
        let (pages, resident) = after(400);
        let (pages_after, resident_after) = after(600);
        assert_eq!(pages_after, pages, "{name}: pages");
        if let (Some(resident), Some(resident_after)) = (resident, resident_after) {
            assert!(
                resident_after < resident + 4 * MIB,
                "{name}: {resident} bytes resident after 400 tokens, {resident_after} after 1000"
            );
        }
        assert!(stream.next().is_none());
        assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
    }
}
