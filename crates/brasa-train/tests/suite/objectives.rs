//! Losses that a program brings along, against torch on a tiny random checkpoint (tools/golden/models/objectives.py), on the reference interpreter and the CPU.

use std::path::Path;

use brasa_golden::Golden;
use brasa_graph::device::Backend;
use brasa_graph::op::{Binary, Reduce, ReduceFn};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::GivenValues;
use brasa_graph::{Builder, DType, Dim, ValueId};
use brasa_train::data::{Batches, Document, Place};
use brasa_train::lora::Scaling;
use brasa_train::optimizer::{Rule, Schedule, Sgd, Shape};
use brasa_train::{Activations, Noise, Objective, TokenLoss, TrainOptions, Trainer};

use crate::setup::{adapter, cpu, documents, layers, model, trainer_of};

fn reduced(g: &mut Builder, function: ReduceFn, x: ValueId) -> ValueId {
    g.apply(Reduce { function, axis: 1 }, &[x])[0]
}

/// Cross-entropy with labels of which `share` is spread over all tokens.
fn smoothed(share: f32) -> TokenLoss {
    TokenLoss::new(format!("labels smoothed by {share}"), move |g, at| {
        let all = reduced(g, ReduceFn::LogSumExp, at.logits);
        let mean = reduced(g, ReduceFn::Mean, at.logits);
        let spread = g.apply(Binary::Sub, &[all, mean])[0];
        let (own, spread) = (g.scale(at.cross_entropies, 1.0 - share), g.scale(spread, share));
        g.add(own, spread)
    })
}

/// A teacher's probabilities of all tokens in place of each learned one.
fn probabilities(document: &Document, vocab_size: usize) -> Vec<f32> {
    let of_token = |j: usize| {
        let scores: Vec<f64> =
            (0..vocab_size).map(|v| (2.0 * (0.7 * j as f64 + 1.3 * v as f64).sin()).exp()).collect();
        let sum: f64 = scores.iter().sum();
        scores.into_iter().map(move |score| (score / sum) as f32)
    };
    (0..document.learned()).flat_map(of_token).collect()
}

/// Half the cross-entropy of the token, half that to a teacher's probabilities, which documents bring.
fn taught(vocab_size: usize) -> TokenLoss {
    let loss = TokenLoss::new("taught", |g, at| {
        let teacher = g.given("teacher", DType::F32, Dim::OUTS, &[at.vocab_size]);
        let all = reduced(g, ReduceFn::LogSumExp, at.logits);
        let shares = g.mul(at.logits, teacher);
        let mean = reduced(g, ReduceFn::Sum, shares);
        let soft = g.apply(Binary::Sub, &[all, mean])[0];
        let sum = g.add(at.cross_entropies, soft);
        g.scale(sum, 0.5)
    });
    loss.bringing(move |_, document| vec![GivenValues::F32(probabilities(document, vocab_size).into())])
}

fn trainer(device: &dyn Backend, objective: Objective, accumulation: usize) -> brasa_train::Result<Trainer> {
    let model = model("llama31");
    let lora = adapter(&layers(&model.graph, |_| true), Scaling::Rank);
    let schedule = Schedule { shape: Shape::Constant, peak: 0.03, warm_up: 0, updates: 20, floor: 0.0 };
    let options = TrainOptions {
        objective,
        rule: Rule::Sgd(Sgd::default()),
        schedule: schedule.into(),
        accumulation,
        longest_gradient: None,
        noise: Noise::default(),
        activations: Activations::Kept,
    };
    trainer_of(device, &model.graph, lora, options)
}

/// The relative error of an array, and that of its worst number by the root mean square.
fn errors(found: &[f32], expected: &[f32]) -> (f64, f64) {
    assert_eq!(found.len(), expected.len());
    let square: f64 = expected.iter().map(|&x| f64::from(x).powi(2)).sum();
    let differences = found.iter().zip(expected).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
    let (sum, worst) = differences.fold((0.0, 0.0_f64), |(sum, worst), d| (sum + d * d, worst.max(d)));
    ((sum / square).sqrt(), worst / (square / expected.len() as f64).sqrt())
}

fn check(device: &dyn Backend, label: &str, loss: &TokenLoss, updates: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/lora/objectives.safetensors");
    let golden = Golden::read(&path);
    let expected = golden.floats(&format!("{label}.loss"));
    let mut batches = Batches::new(documents("llama31"), 200, 8, None);
    let mut trainer = trainer(device, Objective::Own(loss.clone()), 1).expect("a trainer");
    // In one step, and in two that make one update.
    for steps in [vec![vec![0, 1]], vec![vec![1], vec![0]]] {
        let (found, gradients) = trainer.gradients(&batches, &steps).expect("gradients");
        assert!((found.loss - f64::from(expected[0])).abs() < 1e-6 * found.loss, "{label}: {}", found.loss);
        for (pair, gradients) in trainer.lora().pairs.iter().zip(gradients.chunks_exact(2)) {
            for (part, found) in ["a", "b"].into_iter().zip(gradients) {
                let of = format!("{label}.gradient.{}.{part}", pair.layer.name);
                let (error, worst) = errors(found, &golden.floats(&of));
                assert!(error < 1e-5 && worst < 1e-4, "{of}: {error:e}, worst {worst:e}");
            }
        }
    }
    let evaluated = trainer.evaluate(&batches).expect("a loss").loss;
    assert!((evaluated - f64::from(expected[0])).abs() < 1e-6 * evaluated, "{label}: {evaluated}");
    for (update, &expected) in expected[..updates].iter().enumerate() {
        let found = trainer.update(&mut batches).expect("an update").loss;
        let error = (found - f64::from(expected)).abs() / f64::from(expected);
        assert!(error < 1e-5, "{label}, update {update}: {found}, expected {expected}");
    }
}

fn check_on_devices(label: &str, loss: &TokenLoss) {
    check(&ReferenceBackend, label, loss, 4);
    check(&cpu(), label, loss, 20);
}

#[test]
fn labels_are_smoothed_as_torch_smooths_them() {
    check_on_devices("smoothed", &smoothed(0.1));
}

#[test]
fn documents_bring_a_teachers_probabilities() {
    let vocab_size = model("llama31").spec.vocab_size;
    check_on_devices("taught", &taught(vocab_size));
}

/// A loss of one's own that is the built-in one gives its bits.
#[test]
fn the_cross_entropy_of_ones_own_is_the_built_in_one() {
    let own = Objective::Own(TokenLoss::new("cross-entropy", |_, at| at.cross_entropies));
    let mut batches = Batches::new(documents("llama31"), 200, 8, None);
    let [own, built_in] = [own, Objective::Likelihood].map(|objective| {
        let mut trainer = trainer(&cpu(), objective, 1).expect("a trainer");
        batches.go_to(Place::default());
        (0..3).map(|_| trainer.update(&mut batches).expect("an update")).collect::<Vec<_>>()
    });
    assert_eq!(own, built_in);
}

#[test]
fn losses_that_are_none_are_refused_by_name() {
    let refused = |loss| trainer(&cpu(), Objective::Own(loss), 1).err().expect("refused").to_string();
    let whole = refused(TokenLoss::new("of all tokens", |_, at| at.logits));
    assert!(whole.contains("`of all tokens` makes no number for each learned token"), "{whole}");
    let wrong = refused(TokenLoss::new("of other shapes", |g, at| g.add(at.cross_entropies, at.logits)));
    assert!(wrong.starts_with("add: "), "{wrong}");
    let constant = refused(TokenLoss::new("of nothing", |g, _| g.given("x", DType::F32, Dim::OUTS, &[])));
    assert!(constant.contains("the loss does not depend on"), "{constant}");
    // What documents bring is checked when they are learned.
    let short = TokenLoss::new("too short", |g, at| {
        let factor = g.given("factor", DType::F32, Dim::OUTS, &[]);
        g.mul(at.cross_entropies, factor)
    });
    for values in [None, Some(GivenValues::F32([1.0].into())), Some(GivenValues::U32(vec![1; 400].into()))] {
        let loss = match values {
            None => short.clone(),
            Some(values) => short.clone().bringing(move |_, _| vec![values.clone()]),
        };
        let mut trainer = trainer(&cpu(), Objective::Own(loss), 1).expect("a trainer");
        let mut batches = Batches::new(documents("llama31"), 200, 8, None);
        let error = trainer.update(&mut batches).expect_err("no numbers to multiply by").to_string();
        assert!(error.contains("factor") || error.contains("input"), "{error}");
    }
    // Pairs are learned by a preference.
    let mut trainer = trainer(&cpu(), Objective::Own(smoothed(0.1)), 1).expect("a trainer");
    let mut pairs = Batches::of_pairs(documents("llama31"), 200, 8, None);
    assert!(trainer.update(&mut pairs).is_err());
}
