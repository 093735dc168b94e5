//! The engine over a GPU.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use brasa_cuda::CudaOptions;
use brasa_engine::testing::CheckedModel;
use brasa_engine::{
    Engine, EngineConfig, EngineParts, FinishReason, GenerateOptions, PlainIds, Request, TokenStream,
    pages_bytes,
};
use brasa_formats::StorageFormat;
use brasa_graph::Graph;
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::sampling::{Dry, SamplingParams};
use brasa_graph::testing::{Decoder, Latent, Random, Recurrent, tokens};

use crate::device::{another, deterministic, full_or_few};

const VOCAB: usize = 150;
const TOGETHER: usize = 4;

/// An engine whose pages hold as many full texts as there are together.
fn engine(device: &dyn Backend, graph: &Arc<Graph>, context: usize) -> Engine {
    let weights = device.upload(graph, Precision::Fast, &mut |_| ControlFlow::Continue(())).unwrap();
    let limits = ProgramLimits { max_rows: 64, max_outs: 64, max_segments: TOGETHER };
    let program = device.compile(Arc::clone(graph), weights, limits.into()).unwrap();
    let spec = KvPoolSpec::of(graph, KvType::F16);
    let pool = device.kv_pool(spec).unwrap();
    let config = EngineConfig {
        context,
        max_sequences: TOGETHER,
        max_waiting: 100,
        mixed_prompt_rows: 16,
        vocab_size: VOCAB,
        cache_bytes: pages_bytes(&*pool, context) * TOGETHER as u64,
        prefix_bytes: 0,
        prefault_bytes: 0,
    };
    Engine::start(EngineParts::new(program, pool), config).unwrap()
}

fn begin(engine: &Engine, prompt: Vec<u32>, options: GenerateOptions) -> TokenStream {
    engine
        .generate(Request {
            prompt,
            options,
            end_ids: Vec::new(),
            decoder: Box::new(PlainIds),
            session: None,
        })
        .unwrap()
}

/// Waits until nothing runs, and returns the pages that are held, and those that exist.
fn pages_at_rest(engine: &Engine) -> (usize, usize) {
    for _ in 0..10_000 {
        let stats = engine.stats();
        if stats.running + stats.waiting + stats.paused == 0 && stats.pages_used == 0 {
            return (0, stats.pages);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let stats = engine.stats();
    panic!("ten seconds later {stats:?}");
}

/// Texts that end by their limit, by a stop, because their reader says so or goes away, alone and together, leave no page; and no byte when the engine is gone. On a
/// GPU each is a chain of tokens at least.
#[test]
fn chains_that_end_in_any_way_leave_nothing_behind() {
    let Some(device) = another(&CudaOptions::default()) else { return };
    let of = |[hidden, heads, kv_heads, head_dim, feed_forward]: [usize; 5]| Decoder {
        hidden,
        heads,
        kv_heads,
        head_dim,
        feed_forward,
        windows: vec![None; 2],
        head_norms: false,
        ..Decoder::small(StorageFormat::Q4_0)
    };
    // One that the interpreter decodes, and a small one.
    let of_gpu = (of([256, 8, 2, 32, 512]), 512, 90, 10_000);
    let (decoder, context, longest, count) =
        full_or_few(&device, of_gpu, (of([32, 2, 1, 16, 32]), 64, 12, 60));
    let graph = Arc::new(decoder.graph(11));
    let before = device.held_bytes();
    let engine = engine(&device, &graph, context);
    let sampled = |seed: u64| SamplingParams {
        temperature: 0.9,
        top_k: 40,
        typical_p: if seed % 4 == 2 { 0.8 } else { 1.0 },
        xtc_probability: if seed % 4 == 2 { 0.5 } else { 0.0 },
        xtc_threshold: 0.02,
        dry: Dry { multiplier: if seed.is_multiple_of(4) { 0.8 } else { 0.0 }, ..Dry::default() },
        seed,
        ..SamplingParams::default()
    };
    // All pages are made, and everything else that comes with the first use.
    let rest = context - 30;
    for sampling in [SamplingParams::default(), sampled(1), sampled(0)] {
        let full = GenerateOptions { sampling, max_tokens: Some(rest), ..GenerateOptions::default() };
        let texts: Vec<TokenStream> =
            (0..TOGETHER).map(|_| begin(&engine, tokens(30, 1), full.clone())).collect();
        for text in texts {
            assert_eq!(text.filter(|fragment| fragment.as_ref().unwrap().token.is_some()).count(), rest);
        }
    }
    let pages = pages_at_rest(&engine);
    let held = device.held_bytes();
    assert!(held > before, "{held} bytes");

    let mut random = Random::new(7);
    let (mut left, mut ends) = (count, [0_usize; 4]);
    while left > 0 {
        let together = (1 + random.below(TOGETHER)).min(left);
        left -= together;
        let texts: Vec<(TokenStream, usize)> = (0..together)
            .map(|_| {
                let seed = random.below(1 << 20) as u64;
                let sampling = if seed.is_multiple_of(2) { sampled(seed) } else { SamplingParams::default() };
                let stop_ids = (0..random.below(3)).map(|_| random.below(VOCAB) as u32).collect();
                let max_tokens = Some(1 + random.below(longest));
                let options =
                    GenerateOptions { sampling, stop_ids, max_tokens, ..GenerateOptions::default() };
                let prompt = tokens(1 + random.below(context / 2), random.below(50) as u64);
                (begin(&engine, prompt, options), 1 + random.below(longest))
            })
            .collect();
        for (mut text, read) in texts {
            let seen = text.by_ref().take(read).inspect(|fragment| assert!(fragment.is_ok())).count();
            match random.below(3) {
                // Nobody listens any more.
                0 if seen == read => ends[3] += 1,
                1 if seen == read => {
                    text.cancel();
                    text.by_ref().for_each(|fragment| drop(fragment.unwrap()));
                    ends[2] += usize::from(text.finish_reason() == Some(FinishReason::Cancelled));
                }
                _ => {
                    text.by_ref().for_each(|fragment| drop(fragment.unwrap()));
                    ends[usize::from(text.finish_reason() == Some(FinishReason::Length))] += 1;
                }
            }
        }
    }
    assert!(ends.iter().all(|&count| count > 0), "stops, limits, cancelled and dropped: {ends:?}");
    assert_eq!(pages_at_rest(&engine), pages);
    assert_eq!(device.held_bytes(), held, "{ends:?}");
    drop(engine);
    assert_eq!(device.held_bytes(), before);
}

fn check(graph: Graph) {
    let Some(device) = deterministic() else { return };
    let model = CheckedModel { device, graph: Arc::new(graph), precision: Precision::Fast, kv: KvType::F16 };
    model.check_texts();
}

#[test]
fn a_recurrent_text_is_the_same_in_every_way() {
    check(Recurrent::small().graph(12));
}

#[test]
fn a_latent_text_is_the_same_in_every_way() {
    check(Latent::small(StorageFormat::Q8_0).graph(12));
}
