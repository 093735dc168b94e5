//! Preferences against TRL, PEFT and torch on tiny random checkpoints (tools/golden/models/preferences.py), on the reference interpreter and the CPU.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use brasa_golden::{Golden, folder};
use brasa_graph::device::Backend;
use brasa_graph::reference::ReferenceBackend;
use brasa_train::data::{Batches, Document, Span};
use brasa_train::lora::Scaling;
use brasa_train::optimizer::{Rule, Schedule, Sgd, Shape};
use brasa_train::run::{End, Event, RunOptions, run};
use brasa_train::{Activations, Noise, Objective, Preference, TrainOptions, Trainer};

use crate::setup::{adapter, cpu, layers, model, trainer_of};

/// Two pairs: of each golden document the one that was written, and one whose learned tokens run backwards.
fn pairs(name: &str) -> Vec<Document> {
    let golden = Golden::read(&folder("random").join(name).join("golden.safetensors"));
    let pair = |(label, first): (&str, usize)| {
        let chosen = golden.ids(label);
        let mut rejected = chosen.clone();
        rejected[first..].reverse();
        let spans: Box<[Span]> = [Span { tokens: first as u32..chosen.len() as u32, weight: 1.0 }].into();
        [chosen, rejected].map(|tokens| Document { tokens: tokens.into(), spans: spans.clone() })
    };
    [("long.ids", 20), ("short.ids", 3)].into_iter().flat_map(pair).collect()
}

fn options(rate: f64) -> TrainOptions {
    TrainOptions {
        objective: Objective::Preference(Preference { beta: 0.5 }),
        rule: Rule::Sgd(Sgd::default()),
        schedule: Schedule { shape: Shape::Constant, peak: rate, warm_up: 0, updates: 50, floor: 0.0 }.into(),
        accumulation: 1,
        longest_gradient: None,
        noise: Noise::default(),
        activations: Activations::Kept,
    }
}

fn preferring(device: &dyn Backend, name: &str, options: TrainOptions) -> brasa_train::Result<Trainer> {
    let model = model(name);
    let lora = adapter(&layers(&model.graph, |_| true), Scaling::Rank);
    trainer_of(device, &model.graph, lora, options)
}

/// The relative error of matrices: of all numbers together, and of the worst number by the root mean square.
fn errors(found: &[f32], expected: &[f32]) -> (f64, f64) {
    assert_eq!(found.len(), expected.len());
    let square: f64 = expected.iter().map(|&x| f64::from(x).powi(2)).sum();
    let differences = found.iter().zip(expected).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
    let (sum, worst) = differences.fold((0.0, 0.0_f64), |(sum, worst), d| (sum + d * d, worst.max(d)));
    ((sum / square).sqrt(), worst / (square / expected.len() as f64).sqrt())
}

fn check(device: &dyn Backend, name: &str, updates: usize) {
    let path = format!("tests/golden/lora/{name}-dpo.safetensors");
    let golden = Golden::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    let mut trainer =
        preferring(device, name, options(f64::from(golden.floats("rate")[0]))).expect("a trainer");
    let matrices = |trainer: &Trainer, found: &[Vec<f32>], label: &str, bounds: (f64, f64)| {
        for (pair, found) in trainer.lora().pairs.iter().zip(found.chunks_exact(2)) {
            for (part, found) in ["a", "b"].into_iter().zip(found) {
                let of = format!("{label}.{}.{part}", pair.layer.name);
                let (error, worst) = errors(found, &golden.floats(&of));
                assert!(error <= bounds.0 && worst <= bounds.1, "{name}, {of}: {error:e}, worst {worst:e}");
            }
        }
    };
    // Both pairs in one step, and each in a step of its own.
    let mut batches = Batches::of_pairs(pairs(name), 200, 8, None);
    for steps in [vec![vec![0, 1, 2, 3]], vec![vec![0, 1], vec![2, 3]]] {
        let (found, gradients) = trainer.gradients(&batches, &steps).expect("gradients");
        let expected = f64::from(golden.floats("loss")[0]);
        assert!((found.loss - expected).abs() <= 1e-5 * expected, "{name}: {}", found.loss);
        matrices(&trainer, &gradients, "gradient", (3e-5, 3e-4));
    }
    let mut last = 0.0;
    for &expected in &golden.floats("loss")[..updates] {
        let update = trainer.update(&mut batches).expect("an update");
        let error = (update.loss - f64::from(expected)).abs();
        assert!(error <= 1e-4 * f64::from(expected) + 1e-6, "{name}: {update:?}, expected {expected}");
        last = update.preferred.expect("a share");
    }
    assert!((last - 1.0).abs() < f64::EPSILON, "{name}: {last} preferred");
    if updates == 50 {
        let arrays = trainer.lora().arrays();
        matrices(&trainer, &arrays, "sgd", (1e-3, 1e-2));
        let evaluated = trainer.evaluate(&batches).expect("a loss");
        assert!(evaluated.loss < f64::from(golden.floats("loss")[49]) && evaluated.preferred == Some(1.0));
        assert_eq!(evaluated.learned, batches.documents().iter().map(Document::learned).sum::<usize>());
    }
}

#[test]
fn preferences_of_llama_equal_those_of_trl() {
    check(&ReferenceBackend, "llama31", 8);
    check(&cpu(), "llama31", 50);
}

#[test]
fn preferences_of_qwen3_equal_those_of_trl() {
    check(&cpu(), "qwen3", 50);
}

/// The losses of documents without the adapter are computed once and do not depend on the adapter.
#[test]
fn the_base_is_asked_once_and_is_the_model_without_the_adapter() {
    let batches = Batches::of_pairs(pairs("qwen3"), 200, 8, Some(7));
    let mut silent = preferring(&cpu(), "qwen3", options(0.1)).expect("a trainer");
    let mut arrays = silent.lora().arrays();
    arrays.iter_mut().skip(1).step_by(2).for_each(|b| b.fill(0.0));
    let mut seen = Vec::new();
    let mut watch = |done, all| {
        seen.push((done, all));
        ControlFlow::Continue(())
    };
    assert!(silent.compare(&batches, &mut watch).expect("losses").is_continue());
    assert!(silent.compare(&batches, &mut watch).expect("losses").is_continue());
    assert_eq!(seen, [(0, 1)], "once, in one step");
    silent.take(&arrays).expect("zeros");
    let found = silent.evaluate(&batches).expect("a loss");
    assert!((found.loss - std::f64::consts::LN_2).abs() < 1e-6, "nothing is preferred yet: {}", found.loss);
    let stopped = Batches::of_pairs(pairs("qwen3"), 200, 8, Some(7));
    assert!(silent.compare(&stopped, &mut |_, _| ControlFlow::Break(())).expect("nothing").is_break());
}

#[test]
fn what_makes_no_preference_is_refused() {
    let refused = |result: brasa_train::Result<Trainer>| result.err().expect("a refusal").to_string();
    for beta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let objective = Objective::Preference(Preference { beta });
        let found = refused(preferring(&cpu(), "qwen3", TrainOptions { objective, ..options(0.1) }));
        assert!(found.starts_with("β of "), "{found}");
    }
    let noise = Noise { dropout: 0.1, ..Noise::default() };
    let found = refused(preferring(&cpu(), "qwen3", TrainOptions { noise, ..options(0.1) }));
    assert!(found.starts_with("noise beside a preference\nhint: "), "{found}");
    let mut trainer = preferring(&cpu(), "qwen3", options(0.1)).expect("a trainer");
    let found =
        trainer.update(&mut Batches::new(pairs("qwen3"), 200, 8, None)).expect_err("no pairs").to_string();
    assert!(found.starts_with("a preference among single documents\nhint: "), "{found}");
    let likely = TrainOptions { objective: Objective::Likelihood, ..options(0.1) };
    let mut trainer = preferring(&cpu(), "qwen3", likely).expect("a trainer");
    let found =
        trainer.evaluate(&Batches::of_pairs(pairs("qwen3"), 200, 8, None)).expect_err("pairs").to_string();
    assert!(found.starts_with("pairs without a preference\nhint: "), "{found}");
}

/// A run that is stopped in the midst, or while the model without the adapter is asked, ends with the bits of one that never was.
#[test]
fn a_resumed_preference_has_the_bits_of_a_whole_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let run_in = |name: &str, resume: bool, stop: &dyn Fn(&Event<'_>) -> bool| {
        let mut trainer = preferring(&cpu(), "qwen3", options(0.003)).expect("a trainer");
        let mut train = Batches::of_pairs(pairs("qwen3"), 160, 2, Some(1));
        let options = RunOptions {
            folder: folder.path().join(name),
            updates: 7,
            evaluate_every: 3,
            save_every: 0,
            patience: None,
            resume,
            settings: BTreeMap::new(),
        };
        let valid = Batches::of_pairs(pairs("qwen3")[..2].to_vec(), 200, 8, None);
        let mut watch = |event: Event<'_>| {
            if stop(&event) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let outcome = run(&mut trainer, &mut train, Some(&valid), &options, &mut watch).expect("a run");
        let bits: Vec<u32> = trainer.lora().arrays().iter().flatten().map(|x| x.to_bits()).collect();
        (outcome.end, bits)
    };
    let (end, whole) = run_in("whole", false, &|_| false);
    assert_eq!(end, End::Finished);
    let stops: [&dyn Fn(&Event<'_>) -> bool; 2] = [
        &|event| matches!(event, Event::Comparing(1, 2)),
        &|event| matches!(event, Event::Update(update, _) if update.number == 4),
    ];
    for (name, stop) in ["early", "late"].into_iter().zip(stops) {
        assert_eq!(run_in(name, false, stop).0, End::Stopped, "{name}");
        let (end, resumed) = run_in(name, true, &|_| false);
        assert_eq!(end, End::Finished);
        assert!(resumed == whole, "{name}: other bits");
    }
}
