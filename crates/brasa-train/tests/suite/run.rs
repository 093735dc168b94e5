//! Runs: interrupted ones equal whole ones, and what goes wrong leaves the last checkpoint.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use brasa_golden::{folder, load_strictly};
use brasa_graph::device::Backend;
use brasa_graph::reference::ReferenceBackend;
use brasa_train::checkpoint::State;
use brasa_train::data::{Batches, Document, Span};
use brasa_train::lora::Scaling;
use brasa_train::metrics::{Metric, Metrics};
use brasa_train::optimizer::{Adam, Rule, Schedule, Shape};
use brasa_train::run::{CHECKPOINT, End, Event, METRICS, Outcome, RunOptions, run};
use brasa_train::{Noise, Trainer};

use crate::setup::{adapter, cpu, layers, model, noisy_trainer, trainer};

/// Twelve documents of 4 to 15 tokens.
fn documents() -> Vec<Document> {
    let document = |number: u32| Document {
        tokens: (0..4 + number).map(|at| (at * 7 + number * 13) % 160).collect(),
        spans: [Span { tokens: 1..4 + number, weight: 1.0 }].into(),
    };
    (0..12).map(document).collect()
}

/// A trainer with everything that a run has to go on with: magnitudes and noise too.
fn new_trainer(device: &dyn Backend, peak: f64) -> Trainer {
    let model = model("llama31");
    let lora = adapter(&layers(&model.graph, |name| name.contains("layers.1.")), Scaling::Rank);
    let lora = lora.with_magnitudes(&model.graph).expect("norms");
    let schedule = Schedule { shape: Shape::Cosine, peak, warm_up: 2, updates: 9, floor: 0.1 };
    let noise = Noise { dropout: 0.2, embedding: 5.0, seed: 4 };
    noisy_trainer(device, &model.graph, lora, (Rule::AdamW(Adam::default()), schedule, Some(1.0)), noise)
}

fn options(folder: &Path) -> RunOptions {
    RunOptions {
        folder: folder.into(),
        updates: 9,
        evaluate_every: 2,
        save_every: 2,
        patience: None,
        resume: false,
        settings: BTreeMap::from([("model".into(), "llama31".into())]),
    }
}

/// Runs until `stop` says so.
fn run_until(
    device: &dyn Backend,
    options: &RunOptions,
    stop: &mut dyn FnMut(&Event<'_>) -> bool,
) -> brasa_train::Result<(Outcome, Trainer)> {
    let mut trainer = new_trainer(device, 0.01);
    // Three or four documents a step, so that epochs end within the run.
    let mut train = Batches::new(documents(), 40, 4, Some(3));
    let valid = Batches::new(documents()[..5].to_vec(), 200, 8, None);
    let mut watch =
        |event: Event<'_>| if stop(&event) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let outcome = run(&mut trainer, &mut train, Some(&valid), options, &mut watch)?;
    Ok((outcome, trainer))
}

/// The metrics of a run without times.
fn metrics(folder: &Path) -> Vec<Metric> {
    let timeless = |metric| Metric { seconds: None, ..metric };
    Metrics::read(&folder.join(METRICS)).expect("metrics").into_iter().map(timeless).collect()
}

fn bits(values: &[Vec<f32>]) -> Vec<u32> {
    values.iter().flatten().map(|x| x.to_bits()).collect()
}

fn check_resumed(device: &dyn Backend, stops: &[u64]) {
    let whole = tempfile::tempdir().expect("a folder");
    let (expected, whole_trainer) =
        run_until(device, &options(whole.path()), &mut |_| false).expect("a whole run");
    assert_eq!((expected.end, expected.updates), (End::Finished, 9));
    let lines = metrics(whole.path());
    assert_eq!(lines.iter().filter(|line| line.valid_loss.is_some()).count(), 6);
    let state = State::read(&whole.path().join(CHECKPOINT)).expect("a state");
    assert!(state.place.epoch >= 1, "{:?}", state.place);
    for &last in stops {
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = options(folder.path());
        // Even runs are told to stop; odd ones die between two checkpoints.
        let mut copy = None;
        let (outcome, _) = run_until(device, &options, &mut |event| {
            if let Event::Saved(path) = event
                && copy.is_none()
                && last % 2 == 1
            {
                copy = Some(std::fs::read(path).expect("a checkpoint"));
            }
            matches!(event, Event::Update(update, _) if update.number == last)
        })
        .expect("a run");
        assert_eq!((outcome.end, outcome.updates), (End::Stopped, last));
        if let Some(copy) = copy {
            std::fs::write(folder.path().join(CHECKPOINT), copy).expect("written");
        }
        options.resume = true;
        let mut resumed = None;
        let (found, trainer) = run_until(device, &options, &mut |event| {
            if let Event::Resumed(updates) = event {
                resumed = Some(*updates);
            }
            false
        })
        .expect("the rest");
        assert!(resumed.is_some_and(|updates| updates <= last));
        assert_eq!(bits(&found.values), bits(&expected.values), "stopped after {last}");
        assert_eq!((found.best, found.updates), (expected.best, 9));
        assert_eq!(trainer.lora(), whole_trainer.lora());
        assert_eq!(metrics(folder.path()), lines, "stopped after {last}");
        let mut again = State::read(&folder.path().join(CHECKPOINT)).expect("a state");
        assert_eq!(again, state);
        again.settings.clear();
        assert_ne!(again, state);
    }
}

#[test]
fn a_run_that_goes_on_has_the_bits_of_a_whole_one() {
    check_resumed(&ReferenceBackend, &[3, 6]);
}

#[test]
fn so_it_has_on_a_cpu() {
    check_resumed(&cpu(), &[1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn other_settings_a_second_run_and_damaged_files_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(CHECKPOINT);
    let mut options = options(folder.path());
    options.resume = true;
    let missing = run_until(&ReferenceBackend, &options, &mut |_| false).err().expect("no checkpoint");
    assert!(missing.to_string().contains("checkpoint.brasa"), "{missing}");
    options.resume = false;
    run_until(&ReferenceBackend, &options, &mut |event| matches!(event, Event::Update(..))).expect("a run");
    let refused = |options: &RunOptions| {
        let error = run_until(&ReferenceBackend, options, &mut |_| false).err().expect("refused").to_string();
        let (place, what) = error.split_once(": ").expect("a place");
        assert!(place.ends_with("checkpoint.brasa") && what.contains("\nhint: "), "{error}");
        what.split_once('\n').expect("a hint").0.to_owned()
    };
    assert_eq!(refused(&options), "the folder has a run already");
    options.resume = true;
    options.settings.insert("model".into(), "qwen3".into());
    assert_eq!(refused(&options), "model was llama31, now it is qwen3");
    options.settings.insert("model".into(), "llama31".into());
    options.settings.insert("dropout".into(), "0.1".into());
    assert_eq!(refused(&options), "dropout was not set, now it is 0.1");
    options.settings.remove("dropout");
    let good = std::fs::read(&path).expect("a checkpoint");
    for at in [8, 20, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 4;
        std::fs::write(&path, bad).expect("written");
        assert_eq!(refused(&options), "damaged: its SHA-256 is another", "byte {at}");
    }
    for end in [0, 7, 8, 12, 39, good.len() / 2, good.len() - 1] {
        std::fs::write(&path, &good[..end]).expect("written");
        refused(&options);
    }
    std::fs::write(&path, &good).expect("written");
    run_until(&ReferenceBackend, &options, &mut |_| false).expect("the rest");
}

#[test]
fn numbers_that_are_not_finite_end_a_run_and_the_last_checkpoint_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut trainer = new_trainer(&ReferenceBackend, 1e36);
    let mut train = Batches::new(documents(), 40, 4, Some(3));
    let options = RunOptions { save_every: 1, ..options(folder.path()) };
    let error = run(&mut trainer, &mut train, None, &options, &mut |_| ControlFlow::Continue(()));
    let error = error.expect_err("no finite loss").to_string();
    assert!(error.starts_with("update 2: the loss is ") && error.contains("\nhint: "), "{error}");
    let state = State::read(&folder.path().join(CHECKPOINT)).expect("a state");
    assert_eq!(state.updates, 1);
}

#[test]
fn evaluations_that_become_no_better_end_a_run_with_the_best_values() {
    let folder = tempfile::tempdir().expect("a folder");
    // Learning one thing makes another worse.
    let model = model("llama31");
    let lora = adapter(&layers(&model.graph, |name| !name.contains("layers.0.mlp")), Scaling::Rank);
    let schedule = Schedule { shape: Shape::Cosine, peak: 0.05, warm_up: 2, updates: 9, floor: 0.1 };
    let rule = Rule::AdamW(Adam::default());
    let mut trainer = trainer(&cpu(), &model.graph, lora, rule, schedule, Some(1.0));
    let mut train = Batches::new(documents(), 40, 4, Some(3));
    let mut other = documents();
    other.iter_mut().flat_map(|document| &mut document.tokens).for_each(|token| *token = 159 - *token);
    let valid = Batches::new(other, 200, 8, None);
    let options = RunOptions { evaluate_every: 1, patience: Some(2), ..options(folder.path()) };
    let outcome = run(&mut trainer, &mut train, Some(&valid), &options, &mut |_| ControlFlow::Continue(()))
        .expect("a run");
    let best = outcome.best.expect("evaluations");
    assert_eq!((outcome.end, outcome.updates), (End::NoBetter, best.update + 2));
    let losses: Vec<f64> = metrics(folder.path()).iter().filter_map(|line| line.valid_loss).collect();
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!((best.loss.to_bits(), losses.len() as u64), (least.to_bits(), outcome.updates + 1));
}

/// One layer learns eight samples by heart. Their tokens are frequent ones: rare ones look alike to the model.
#[test]
fn a_single_layer_overfits_eight_samples() {
    let model = load_strictly(&folder("tiny-llama"), None);
    let lora = adapter(&layers(&model.graph, |name| name.starts_with("layers.5.")), Scaling::Rank);
    let schedule = Schedule { shape: Shape::Linear, peak: 0.01, warm_up: 10, updates: 150, floor: 0.0 };
    let rule = Rule::AdamW(Adam::default());
    let mut trainer = trainer(&cpu(), &model.graph, lora, rule, schedule, None);
    let sample = |number: u32| {
        let tokens = [300 + 17 * number, 500 + 29 * number, 400 + 37 * number];
        Document { tokens: tokens.into(), spans: [Span { tokens: 2..3, weight: 1.0 }].into() }
    };
    let mut batches = Batches::new((0..8).map(sample).collect::<Vec<_>>(), 200, 8, None);
    let before = trainer.evaluate(&batches).expect("a loss").loss;
    for _ in 0..150 {
        trainer.update(&mut batches).expect("an update");
    }
    let after = trainer.evaluate(&batches).expect("a loss").loss;
    assert!(before > 3.0 && after < 0.05, "{before} before, {after} after");
}
