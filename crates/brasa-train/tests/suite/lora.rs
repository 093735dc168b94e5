//! Fine-tuning against PEFT and torch on tiny random checkpoints (tools/golden/models/lora.py), on the
//! reference interpreter and the CPU.

use std::path::Path;

use brasa_golden::Golden;
use brasa_graph::Graph;
use brasa_graph::device::Backend;
use brasa_graph::reference::ReferenceBackend;
use brasa_train::Trainer;
use brasa_train::data::{Batches, Document};
use brasa_train::lora::{AdapterDtype, Layer, Lora, LoraOptions, Scaling, Targets};
use brasa_train::optimizer::{Adam, Rule, Schedule, Sgd, Shape};

use crate::setup::{adapter, cpu, documents, layers, model, trainer};

fn golden(name: &str) -> Golden {
    let path = format!("tests/golden/lora/{name}.safetensors");
    Golden::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
}

/// The largest difference from golden losses, relative.
fn check_losses(name: &str, found: &[f64], expected: &[f32], bound: f64) {
    assert_eq!(found.len(), expected.len());
    for (update, (found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - f64::from(expected)).abs() / f64::from(expected);
        assert!(error <= bound, "{name}, update {update}: {found}, expected {expected}");
    }
}

/// Compares matrices with golden ones: whole, or by their norm and their sum weighted by cos(i).
fn check_matrices(
    name: &str,
    golden: &Golden,
    label: &str,
    trainer: &Trainer,
    found: &[Vec<f32>],
    bound: f64,
) {
    let arrays = found.len() / trainer.lora().pairs.len();
    for (pair, found) in trainer.lora().pairs.iter().zip(found.chunks_exact(arrays)) {
        for (part, found) in ["a", "b", "m"].into_iter().zip(found) {
            let of = format!("{label}.{}.{part}", pair.layer.name);
            let expected = golden.floats(&of);
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let found: Vec<f64> = found.iter().map(|&x| f64::from(x)).collect();
            if expected.len() == found.len() {
                let differences: Vec<f64> =
                    found.iter().zip(&expected).map(|(found, &x)| found - f64::from(x)).collect();
                let expected: Vec<f64> = expected.iter().map(|&x| f64::from(x)).collect();
                let error = norm(&differences) / norm(&expected);
                assert!(error <= bound, "{name}, {of}: relative error {error:e}");
                continue;
            }
            let along = found.iter().enumerate().map(|(i, x)| x * (i as f64).cos()).sum::<f64>();
            assert_eq!(found.len(), expected[2] as usize, "{name}, {of}");
            for (found, &expected_) in [norm(&found), along].iter().zip(&expected[..2]) {
                let error = (found - f64::from(expected_)).abs() / f64::from(expected[0]);
                assert!(error <= bound, "{name}, {of}: {found}, expected {expected_}");
            }
        }
    }
}

/// Updates on the interpreter, which is slow: behind them runs differ by nothing new.
const FIRST: usize = 8;

fn check(name: &str, scaling: Scaling) {
    check_on(&ReferenceBackend, name, scaling, FIRST);
    check_on(&cpu(), name, scaling, 50);
}

fn check_on(device: &dyn Backend, name: &str, scaling: Scaling, count: usize) {
    let golden = golden(name);
    let base = name.trim_end_matches("-bf16").trim_end_matches("-dora");
    let is_rounded = name.ends_with("-bf16");
    let model = model(base);
    let layers = layers(&model.graph, |module| golden.has(&format!("gradient.{module}.a")));
    let mut lora = adapter(&layers, scaling);
    if is_rounded {
        lora.dtype = AdapterDtype::Bf16;
    }
    if name.contains("-dora") {
        with_norms_of_the_base(&mut lora, &model.graph);
    }
    let rate = f64::from(golden.floats("rate.sgd")[0]);
    let flat = Schedule { shape: Shape::Constant, peak: rate, warm_up: 0, updates: 50, floor: 0.0 };
    let sgd = Rule::Sgd(Sgd::default());
    // This checkpoint makes much of little: torch's gradient in f32 is off by 2e-5 from its golden one in f64, and the norm of its
    // gradient leaps from 1.2 to 5.1 and back.
    let loose = if name == "gemma4" { 6.0 } else { 1.0 };
    // Runs of llama31-dora part late: torch's own in f32 is off by 6e-5 from its run in f64 behind 50 updates.
    // A value that lies between two bfloat16 is rounded up here and down there, sooner or later; unrounded, losses differ by 4e-5 from the second update on.
    let steady = match name {
        "llama31-dora" => count.min(30),
        "llama31-bf16" => count.min(20),
        _ => count,
    };
    let mut batches = Batches::new(documents(base), 200, 8, None);
    let mut first = trainer(device, &model.graph, lora.clone(), sgd, flat, None);
    // In one step, and in two that make one update.
    for steps in [vec![vec![0, 1]], vec![vec![0], vec![1]]] {
        let (found, gradients) = first.gradients(&batches, &steps).expect("gradients");
        check_losses(name, &[found.loss], &golden.floats("loss.sgd")[..1], 1e-6);
        check_matrices(name, &golden, "gradient", &first, &gradients, loose * 1e-5);
    }
    let run = |mut trainer: Trainer, batches: &mut Batches| {
        let updates: Vec<_> = (0..count).map(|_| trainer.update(batches).expect("an update")).collect();
        (trainer, updates)
    };
    let (learned, updates) = run(first, &mut batches);
    let losses: Vec<f64> = updates.iter().map(|update| update.loss).collect();
    check_losses(name, &losses[..steady], &golden.floats("loss.sgd")[..steady], loose * 1e-5);
    check_losses(name, &losses, &golden.floats("loss.sgd")[..count], 1e-3);
    if count == 50 {
        let bound = if is_rounded { 1e-3 } else { 1e-4 };
        check_matrices(name, &golden, "sgd", &learned, &learned.lora().arrays(), bound);
        let evaluated = learned_loss(learned, &batches);
        assert!(evaluated < losses[49], "{name}: {evaluated} after {}", losses[49]);
    }

    let cosine = Schedule { shape: Shape::Cosine, peak: 0.003, warm_up: 5, ..flat };
    let rule = Rule::AdamW(Adam { weight_decay: 0.01, ..Adam::default() });
    let second = trainer(device, &model.graph, lora, rule, cosine, Some(1.0));
    let (learned, updates) = run(second, &mut batches);
    let losses: Vec<f64> = updates.iter().map(|update| update.loss).collect();
    check_losses(name, &losses, &golden.floats("loss.adamw")[..count], 1e-4);
    let norms: Vec<f64> = updates.iter().map(|update| update.gradient_norm).collect();
    check_losses(name, &norms[..2], &golden.floats("norm.adamw")[..2], 1e-4);
    if count == 50 {
        check_matrices(name, &golden, "adamw", &learned, &learned.lora().arrays(), loose * 1e-3);
    }
}

/// Gives the adapter the magnitudes with which PEFT begins: the norms of rows without A and B.
fn with_norms_of_the_base(lora: &mut Lora, model: &Graph) {
    let mut silent = lora.clone();
    silent.pairs.iter_mut().for_each(|pair| pair.b.fill(0.0));
    let silent = silent.with_magnitudes(model).expect("norms");
    for (pair, silent) in lora.pairs.iter_mut().zip(silent.pairs) {
        pair.magnitudes = silent.magnitudes;
    }
}

fn learned_loss(mut trainer: Trainer, batches: &Batches) -> f64 {
    let evaluation = trainer.evaluate(batches).expect("a loss");
    let learned: usize = batches.documents().iter().map(Document::learned).sum();
    assert_eq!(evaluation.learned, learned);
    evaluation.loss
}

macro_rules! families {
    ($($test:ident: $name:literal, $scaling:ident;)*) => { $(
        #[test]
        fn $test() {
            check($name, Scaling::$scaling);
        }
    )* };
}

families! {
    llama31: "llama31", Rank;
    qwen2: "qwen2", RootOfRank;
    qwen3: "qwen3", Rank;
    gemma2: "gemma2", Rank;
    gemma3: "gemma3", Rank;
    gemma4: "gemma4", Rank;
    phi3: "phi3", Rank;
    mistral_window: "mistral-window", Rank;
    qwen3moe: "qwen3moe", Rank;
    dora_of_llama31: "llama31-dora", Rank;
    dora_behind_biases: "qwen2-dora", Rank;
    matrices_of_bfloat16: "llama31-bf16", Rank;
    matrices_of_bfloat16_beside_magnitudes: "qwen2-dora-bf16", Rank;
}

#[test]
fn experts_are_targets_only_if_they_are_named() {
    let layer = |name: &str, experts| Layer {
        name: format!("layers.0.{name}"),
        aliases: Vec::new(),
        weight: brasa_graph::WeightId(0),
        rows: 0..4,
        inputs: 8,
        experts,
    };
    let layers = [layer("attn_q", None), layer("ffn_down_exps", Some(3))];
    let chosen = |targets: &str| -> Vec<String> {
        let options = LoraOptions {
            targets: Targets::parse(targets, None).expect("targets"),
            rank: 2,
            ..LoraOptions::default()
        };
        let lora = Lora::new(&layers, &options).expect("an adapter");
        lora.pairs
            .iter()
            .map(|pair| format!("{} {} {}", pair.layer.name, pair.a.len(), pair.b.len()))
            .collect()
    };
    let (dense, experts) = ("layers.0.attn_q 16 8", "layers.0.ffn_down_exps 48 24");
    assert_eq!(chosen("all"), [dense]);
    assert_eq!(chosen("experts"), [experts]);
    assert_eq!(chosen("ffn_down_exps"), [experts]);
    assert_eq!(chosen("experts, all"), [dense, experts]);
}
