//! Trained and random checkpoints of every family against transformers, and files as Brasa and others quantise them against
//! the reference interpreter.

use std::path::Path;

use brasa_cuda::CudaBackend;
use brasa_golden::{Golden, Reference, Runner, check_greedy, folder, load_strictly};
use brasa_graph::device::{KvType, Precision};
use brasa_graph::testing::{Comparison, Tolerance, compare};

use crate::device::{device, full_or_few, in_full, is_emulated};

/// f32 activations, keys and values, weights decoded exactly.
const REFERENCE: Tolerance = Tolerance(1e-4);

/// Many rows rounded to f16, and quantised weights' scales with them.
const FAST: Tolerance = Tolerance(1e-2);

/// The difference at the worst element, which decides how far a greedy text can be relied on.
fn worst(comparison: &Comparison) -> f32 {
    (comparison.found - comparison.expected).abs()
}

#[test]
fn random_families_agree_with_transformers() {
    let Some(device) = device() else { return };
    let entries = std::fs::read_dir(folder("random")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let step = if in_full(device, "three of four random families") { 1 } else { 4 };
    for path in paths.iter().step_by(step) {
        check_random(device, path);
    }
}

fn check_random(device: &CudaBackend, path: &Path) {
    let golden = Golden::read(&path.join("golden.safetensors"));
    for text in &["short", "long"][..full_or_few(device, 2, 1)] {
        let ids = golden.ids(&format!("{text}.ids"));
        let expected_ids = golden.ids(&format!("{text}.greedy_ids"));
        let model = load_strictly(path, Some(ids.len() + expected_ids.len()));
        let mut runner = Runner::on(device, model, Precision::Reference, KvType::F32);
        let (logits, found) = runner.greedy(&ids, expected_ids.len());
        let comparison = if *text == "short" {
            compare(&logits.concat(), &golden.floats("short.logits"))
        } else {
            compare(&logits[logits.len() - 1], &golden.floats("long.last"))
        };
        let label = format!("{} {text}", path.display());
        assert!(comparison.within(REFERENCE), "{label}: {comparison}");
        let margins = golden.floats(&format!("{text}.greedy_margins"));
        let compared = check_greedy(&label, &found, &expected_ids, &margins, worst(&comparison));
        assert_eq!(compared, expected_ids.len(), "{label}: greedy steps that were compared");
    }
}

#[test]
fn trained_checkpoints_agree_with_transformers() {
    let Some(device) = device() else { return };
    if is_emulated(device) {
        return brasa_fuzz::skipped("trained checkpoints on CUDA", "needs an NVIDIA GPU: emulation is slow");
    }
    for name in ["tiny-llama", "tiny-qwen2", "tiny-qwen3moe", "tiny-gemma3", "tiny-gemma4", "tiny-gemma4moe"]
    {
        let path = folder(name);
        let mut runner = Runner::on(device, load_strictly(&path, None), Precision::Reference, KvType::F32);
        for prompt in Reference::read(&path).prompts {
            let label = format!("{name} {}", prompt.name);
            let (logits, found) = runner.greedy(&prompt.ids, prompt.greedy_ids.len());
            let last = compare(&logits[logits.len() - 1], &prompt.last);
            println!("{label}: {last}");
            assert!(last.within(REFERENCE), "{label}: {last}");
            let mut error = worst(&last);
            if let Some(all) = &prompt.all {
                let all = compare(&logits.concat(), &all.concat());
                assert!(all.within(REFERENCE), "{label}, all rows: {all}");
                error = error.max(worst(&all));
            }
            let compared = check_greedy(&label, &found, &prompt.greedy_ids, &prompt.greedy_margins, error);
            assert!(compared >= 15, "{label}: only {compared} greedy steps were compared");
        }
    }
}

#[test]
fn quantised_files_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let mut files: Vec<_> = ["random-gguf", "random-mlx"]
        .iter()
        .flat_map(|name| std::fs::read_dir(folder(name)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir() || path.extension().is_some_and(|extension| extension == "gguf"))
        .collect();
    if !is_emulated(device) {
        files.extend(["tiny-gemma4moe-mixed", "tiny-qwen2-4bit"].map(|name| folder("mlx").join(name)));
        files.push(folder("lexicon-qwen3").join("lexicon-qwen3-Q6_K.gguf"));
    }
    let ids: Vec<u32> = (0..24).map(|i| i * 7 % 61 + 3).collect();
    for path in files {
        let expected = Runner::new(load_strictly(&path, None)).logits(&ids).concat();
        for (precision, bound) in [(Precision::Reference, REFERENCE), (Precision::Fast, FAST)] {
            let mut found = Runner::on(device, load_strictly(&path, None), precision, KvType::F32);
            let comparison = compare(&found.logits(&ids).concat(), &expected);
            println!("{} {precision:?}: {comparison}", path.display());
            assert!(comparison.within(bound), "{} {precision:?}: {comparison}", path.display());
        }
    }
}

/// The graph that ends before the head, of dense models and of experts, over rows of a prompt and over one.
#[test]
fn hidden_states_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let ids: Vec<u32> = (0..40).map(|i| i * 7 % 61 + 3).collect();
    for name in ["llama2", "gemma3", "qwen3moe", "phi3"] {
        let hidden = || {
            let mut model = load_strictly(&folder("random").join(name), None);
            model.graph = model.hidden_graph();
            model
        };
        for ids in [&ids[..], &ids[..1]] {
            let expected = Runner::new(hidden()).logits(ids).concat();
            for (precision, bound) in [(Precision::Reference, REFERENCE), (Precision::Fast, FAST)] {
                let mut found = Runner::on(device, hidden(), precision, KvType::F32);
                let comparison = compare(&found.logits(ids).concat(), &expected);
                assert!(comparison.within(bound), "{name} {precision:?}, {} rows: {comparison}", ids.len());
            }
        }
    }
}
