//! Dropout and noise of embeddings: right on average, none in evaluations, and the same for the same seed.

use brasa_train::data::Batches;
use brasa_train::lora::{Lora, Scaling};
use brasa_train::optimizer::{Rule, Schedule, Sgd, Shape};
use brasa_train::{Activations, Noise, Objective, TrainOptions, Trainer};

use crate::setup::{adapter, cpu, documents, layers, model, noisy_trainer, trainer_of, try_trainer};

/// A trainer that changes nothing, so that each update has other noise alone.
fn still(noise: Noise, change: impl Fn(&mut Lora)) -> (Trainer, Batches) {
    let model = model("qwen3");
    let mut lora = adapter(&layers(&model.graph, |name| name.contains("layers.1.")), Scaling::Rank);
    change(&mut lora);
    let schedule = Schedule { shape: Shape::Constant, peak: 0.0, warm_up: 0, updates: 1, floor: 0.0 };
    let rules = (Rule::Sgd(Sgd::default()), schedule, None);
    (noisy_trainer(&cpu(), &model.graph, lora, rules, noise), Batches::new(documents("qwen3"), 200, 8, None))
}

fn gradients(trainer: &mut Trainer, batches: &Batches) -> (f64, Vec<f32>) {
    let (found, gradients) = trainer.gradients(batches, &[vec![0, 1]]).expect("gradients");
    let loss = found.loss;
    (loss, gradients.concat())
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (error / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

/// With a `B` of zeros the gradient of `B` is linear in the masks, so its mean over many masks is that without dropout.
#[test]
fn dropout_is_right_on_average_and_none_in_evaluations() {
    let zero = |lora: &mut Lora| lora.pairs.iter_mut().for_each(|pair| pair.b.fill(0.0));
    let (mut plain, mut batches) = still(Noise::default(), zero);
    let (_, expected) = gradients(&mut plain, &batches);
    let dropout = Noise { dropout: 0.5, seed: 1, ..Noise::default() };
    let (mut trainer, _) = still(dropout, zero);
    let mut sum = vec![0.0; expected.len()];
    let mut errors = Vec::new();
    for _ in 0..60 {
        let (_, found) = gradients(&mut trainer, &batches);
        errors.push(distance(&found, &expected));
        sum.iter_mut().zip(&found).for_each(|(sum, x)| *sum += x / 60.0);
        trainer.update(&mut batches).expect("an update");
    }
    let (mean, least) = (distance(&sum, &expected), errors.iter().copied().fold(f64::INFINITY, f64::min));
    assert!(least > 0.1 && mean < 0.25 * least, "one is off by {least} at least, their mean by {mean}");
    let losses = [&mut plain, &mut trainer].map(|trainer| trainer.evaluate(&batches).expect("a loss").loss);
    assert_eq!(losses[0].to_bits(), losses[1].to_bits());
}

#[test]
fn a_seed_repeats_its_noise_and_another_has_another() {
    let noises = [
        Noise { dropout: 0.3, embedding: 0.0, seed: 1 },
        Noise { dropout: 0.3, embedding: 0.0, seed: 2 },
        Noise { dropout: 0.0, embedding: 5.0, seed: 1 },
        Noise { dropout: 0.0, embedding: 5.0, seed: 2 },
        Noise { dropout: 0.0, embedding: 1e-4, seed: 2 },
        Noise::default(),
    ];
    let found = noises.map(|noise| {
        let (mut trainer, batches) = still(noise, |_| {});
        let first = gradients(&mut trainer, &batches);
        assert_eq!(first, gradients(&mut trainer, &batches), "{noise:?}");
        first
    });
    for (number, (a, of)) in found.iter().zip(&noises).enumerate() {
        for (b, other) in found[..number].iter().zip(&noises) {
            assert_ne!(a, b, "{of:?} and {other:?}");
        }
    }
    // Little noise of embeddings changes little.
    let [.., little, none] = &found;
    assert!((little.0 - none.0).abs() < 1e-5 * none.0 && distance(&little.1, &none.1) < 1e-3);
}

/// Recomputed results have the same bits, noise and magnitudes included, and take less memory.
#[test]
fn recomputed_activations_change_no_bit_and_save_memory() {
    for name in ["qwen3", "gemma2"] {
        let model = model(name);
        let lora = adapter(&layers(&model.graph, |_| true), Scaling::Rank);
        let lora = lora.with_magnitudes(&model.graph).expect("norms");
        let batches = Batches::new(documents(name), 200, 8, None);
        let found = [Activations::Kept, Activations::Products, Activations::Recomputed].map(|activations| {
            let schedule = Schedule { shape: Shape::Constant, peak: 0.1, warm_up: 0, updates: 1, floor: 0.0 };
            let noise = Noise { dropout: 0.1, embedding: 5.0, seed: 3 };
            let rule = Rule::Sgd(Sgd::default());
            let options = TrainOptions {
                objective: Objective::default(),
                rule,
                schedule: schedule.into(),
                accumulation: 1,
                longest_gradient: None,
                noise,
                activations,
            };
            let mut trainer = trainer_of(&cpu(), &model.graph, lora.clone(), options).expect("a trainer");
            let (loss, gradients) = gradients(&mut trainer, &batches);
            let bits: Vec<u32> = gradients.iter().map(|x| x.to_bits()).collect();
            (trainer.device_bytes(), loss.to_bits(), bits)
        });
        for (more, less) in found.iter().zip(&found[1..]) {
            assert!(more.1 == less.1 && more.2 == less.2, "{name}: other bits");
            assert!(less.0 < more.0, "{name}: {} bytes, {} when more is kept", less.0, more.0);
        }
    }
}

#[test]
fn shares_that_make_no_sense_are_refused() {
    let model = model("qwen3");
    let schedule = Schedule { shape: Shape::Constant, peak: 0.0, warm_up: 0, updates: 1, floor: 0.0 };
    for (noise, what) in [
        (Noise { dropout: 1.0, ..Noise::default() }, "dropout 1\nhint: "),
        (Noise { dropout: f32::NAN, ..Noise::default() }, "dropout NaN\nhint: "),
        (Noise { embedding: -1.0, ..Noise::default() }, "noise of embeddings -1\nhint: "),
    ] {
        let lora = adapter(&layers(&model.graph, |_| true), Scaling::Rank);
        let rules = (Rule::Sgd(Sgd::default()), schedule, None);
        let error = try_trainer(&cpu(), &model.graph, lora, rules, noise).err().expect("refused").to_string();
        assert!(error.starts_with(what), "{error}");
    }
}
