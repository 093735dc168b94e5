//! Training of an adapter, beside the reference.

use std::ops::ControlFlow;

use brasa_formats::StorageFormat;
use brasa_graph::device::{Backend, Precision, ProgramLimits};
use brasa_graph::op::{Binary, Reduce, ReduceFn};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::GivenValues;
use brasa_graph::testing::{Decoder, Random};
use brasa_graph::{DType, Dim, Graph, WeightId};
use brasa_train::data::{Batches, Document, Span};
use brasa_train::lora::{AdapterDtype, Layer, Lora, LoraOptions};
use brasa_train::optimizer::{Adam, Rates, Rule, Schedule, Shape};
use brasa_train::{Activations, Noise, Objective, Resources, TokenLoss, TrainOptions, Trainer};

use crate::device::{device, full_or_few};

/// The rate at which adapters are usually learned, and one at which few updates show.
const USUAL: f64 = 2e-4;
const FAST: f64 = 2e-3;

/// Twelve texts of up to 20 tokens, which are learned from the third on.
fn documents(vocab: usize) -> Vec<Document> {
    let mut random = Random::new(3);
    let text = |number: usize| {
        let tokens: Vec<u32> = (0..8 + number).map(|_| random.below(vocab) as u32).collect();
        let spans = [Span { tokens: 2..tokens.len() as u32, weight: 1.0 }].into();
        Document { tokens: tokens.into(), spans }
    };
    (0..12).map(text).collect()
}

/// All linear layers of the decoder's blocks.
fn adapter(graph: &Graph, dtype: AdapterDtype) -> Lora {
    let weights = graph.weights().iter().enumerate();
    let blocks = weights.filter(|(_, weight)| weight.name.contains("layers.") && weight.shape.len() == 2);
    let layers: Vec<Layer> = blocks
        .map(|(number, weight)| Layer {
            name: weight.name.clone(),
            aliases: Vec::new(),
            weight: WeightId(number as u32),
            rows: 0..weight.shape[0],
            inputs: weight.shape[1],
            experts: None,
        })
        .collect();
    let options = LoraOptions { rank: 4, alpha: 8.0, dtype, seed: 5, ..LoraOptions::default() };
    Lora::new(&layers, &options).unwrap()
}

/// How an adapter is learned.
#[derive(Clone, Copy)]
struct Course {
    precision: Precision,
    activations: Activations,
    peak: f64,
    updates: usize,
    dtype: AdapterDtype,
    /// In front of which update another trainer goes on.
    stop: Option<usize>,
}

/// The losses of updates on a device, and the adapter behind them.
fn learned(backend: &dyn Backend, graph: &Graph, vocab: usize, course: Course) -> (Vec<f64>, Vec<Vec<f32>>) {
    learned_by(Objective::default(), backend, graph, vocab, course)
}

/// Like [`learned`], by any objective.
fn learned_by(
    objective: Objective,
    backend: &dyn Backend,
    graph: &Graph,
    vocab: usize,
    course: Course,
) -> (Vec<f64>, Vec<Vec<f32>>) {
    let Course { precision, activations, peak, updates, dtype, stop } = course;
    let options = TrainOptions {
        objective,
        rule: Rule::AdamW(Adam::default()),
        schedule: Rates::Schedule(Schedule {
            shape: Shape::Constant,
            peak,
            warm_up: 0,
            updates: 20,
            floor: 0.0,
        }),
        accumulation: 1,
        longest_gradient: Some(1.0),
        noise: Noise::default(),
        activations,
    };
    let limits = ProgramLimits { max_rows: 64, max_outs: 64, max_segments: 8 };
    let resources = Resources { backend, model: graph, precision, limits };
    let start = || {
        Trainer::new(&resources, adapter(graph, dtype), options.clone(), &mut |_| ControlFlow::Continue(()))
    };
    let mut trainer = start().unwrap();
    let mut batches = Batches::new(documents(vocab), 64, 8, Some(1));
    let mut losses = Vec::new();
    for number in 0..updates {
        if stop == Some(number) {
            trainer.fetch().unwrap();
            let (arrays, optimizer) = (trainer.arrays(), trainer.optimizer());
            let (done, states) = (optimizer.updates(), optimizer.states().to_vec());
            trainer = start().unwrap();
            trainer.restore(&arrays, done, states).unwrap();
        }
        losses.push(trainer.update(&mut batches).unwrap().loss);
    }
    trainer.fetch().unwrap();
    (losses, trainer.lora().arrays())
}

/// Values and moments go to the host and, in another trainer, to the device again.
#[test]
fn a_run_that_goes_on_has_the_bits_of_a_whole_one() {
    let Some(device) = device() else { return };
    let spec = Decoder { windows: vec![None], ..Decoder::small(StorageFormat::Q4_K) };
    let graph = spec.graph(5);
    let (precision, activations) = (Precision::Fast, Activations::Recomputed);
    for dtype in [AdapterDtype::F32, AdapterDtype::Bf16] {
        let course = Course { precision, activations, peak: FAST, updates: 3, dtype, stop: None };
        let of = |stop| learned(device, &graph, spec.vocab, Course { stop, ..course });
        let (whole, resumed) = (of(None), of(Some(2)));
        assert_eq!(whole.0, resumed.0, "losses, {dtype:?}");
        assert_eq!(whole.1, resumed.1, "values, {dtype:?}");
    }
}

/// Products read rounded matrices, and what is learned is not rounded: learned values differ from those of an adapter in f32, and are no bfloat16.
#[test]
fn adapters_are_read_as_bfloat16() {
    let Some(device) = device() else { return };
    let spec = Decoder { windows: vec![None], ..Decoder::small(StorageFormat::Q4_K) };
    let graph = spec.graph(5);
    let of = |backend: &dyn Backend, precision, dtype| {
        let activations = Activations::Kept;
        let course = Course { precision, activations, peak: FAST, updates: 3, dtype, stop: None };
        learned(backend, &graph, spec.vocab, course)
    };
    let expected = of(&ReferenceBackend, Precision::Reference, AdapterDtype::Bf16);
    let unrounded = of(&ReferenceBackend, Precision::Reference, AdapterDtype::F32);
    let off =
        |found: &[f64]| found.iter().zip(&expected.0).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
    let found = of(device, Precision::Reference, AdapterDtype::Bf16);
    let (off, by_rounding) = (off(&found.0), off(&unrounded.0));
    println!("losses off by {off:.1e}; without rounding by {by_rounding:.1e}");
    assert!(off < 1e-5 && by_rounding > 4.0 * off, "{off:e} {by_rounding:e}");
    let is_rounded = |x: &f32| x.to_bits().trailing_zeros() >= 16;
    assert!(!found.1.iter().flatten().all(is_rounded), "what is learned is f32");
}

#[test]
fn twenty_updates_on_a_gpu_are_those_of_the_reference() {
    let Some(device) = device() else { return };
    let formats = [StorageFormat::BF16, StorageFormat::Q4_K, StorageFormat::Q8_0];
    let (formats, layers, updates) = full_or_few(device, (&formats[..], 2, 20), (&formats[1..2], 1, 2));
    let courses = [
        (Precision::Reference, Activations::Recomputed, 1e-4),
        (Precision::Fast, Activations::Products, 1e-3),
        (Precision::Fast, Activations::Recomputed, 1e-3),
        (Precision::Fast, Activations::Kept, 1e-3),
    ];
    for (&format, peak) in formats.iter().flat_map(|format| [USUAL, FAST].map(|peak| (format, peak))) {
        let spec = Decoder { windows: vec![None; layers], ..Decoder::small(format) };
        let graph = spec.graph(5);
        let of = |backend: &dyn Backend, precision, activations| {
            let dtype = AdapterDtype::F32;
            let course = Course { precision, activations, peak, updates, dtype, stop: None };
            learned(backend, &graph, spec.vocab, course)
        };
        let expected = of(&ReferenceBackend, Precision::Reference, Activations::Kept);
        if peak == FAST {
            assert!(expected.0[updates - 1] < expected.0[0], "{format}: nothing is learned");
        }
        for &(precision, activations, bound) in &courses[..full_or_few(device, 4, 2)] {
            let found = of(device, precision, activations);
            let off = found.0.iter().zip(&expected.0).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
            let name = format!("{format} {precision:?} {activations:?}");
            println!("{name}, rate {peak}: losses off by {off:.1e}");
            assert!(off < bound, "{name}: {:?}, expected {:?}", found.0, expected.0);
        }
    }
}

/// Label smoothing, and a factor that each document brings for its tokens.
fn own_loss() -> Objective {
    let loss = TokenLoss::new("smoothed", |g, at| {
        let factors = g.given("factors", DType::F32, Dim::OUTS, &[]);
        let reduced = |function| Reduce { function, axis: 1 };
        let all = g.apply(reduced(ReduceFn::LogSumExp), &[at.logits])[0];
        let mean = g.apply(reduced(ReduceFn::Mean), &[at.logits])[0];
        let spread = g.apply(Binary::Sub, &[all, mean])[0];
        let (own, spread) = (g.scale(at.cross_entropies, 0.8), g.scale(spread, 0.2));
        let sum = g.add(own, spread);
        g.mul(sum, factors)
    });
    Objective::Own(loss.bringing(|number, document| {
        let factors = (0..document.learned()).map(|at| 0.5 + ((number + at) % 3) as f32);
        vec![GivenValues::F32(factors.collect())]
    }))
}

#[test]
fn a_loss_of_ones_own_is_that_of_the_reference() {
    let Some(device) = device() else { return };
    let spec = Decoder { windows: vec![None], ..Decoder::small(StorageFormat::Q4_K) };
    let graph = spec.graph(5);
    let (activations, dtype) = (Activations::Kept, AdapterDtype::F32);
    let of = |backend: &dyn Backend, precision| {
        let course = Course { precision, activations, peak: FAST, updates: 2, dtype, stop: None };
        learned_by(own_loss(), backend, &graph, spec.vocab, course).0
    };
    let expected = of(&ReferenceBackend, Precision::Reference);
    for (precision, bound) in [(Precision::Reference, 1e-5), (Precision::Fast, 1e-3)] {
        let found = of(device, precision);
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
        assert!(off < bound, "{precision:?}: {found:?}, expected {expected:?}");
    }
}
