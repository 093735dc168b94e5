//! The interpreter over other numbers: exact ones, and dual ones.

use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::reference::{Array, Dual, Number, ReferenceBackend, decode_weight, evaluate_in};
use brasa_graph::step::{Outs, Segment, SequenceId, Step};
use brasa_graph::testing::{
    Case, Decoder, OPERATIONS, Random, Tolerance, compare, f32_weight, random_case, run_case,
};
use brasa_graph::{DType, Graph};

/// The step that [`run_case`] runs first, without pages: whole texts need none.
fn first_step(case: &Case) -> Step {
    let mut random = Random::new(case.seed);
    let segments = case.steps[0].iter().map(|&(id, rows)| {
        let tokens = (0..rows).map(|_| random.below(97) as u32).collect();
        Segment::text(SequenceId(id), 0, tokens, Outs::All, Vec::new())
    });
    Step { segments: segments.collect() }
}

/// The outputs in numbers of a type, made of the weights' elements.
fn evaluate<T: Number>(graph: &Graph, step: &Step, mut number: impl FnMut(f32) -> T) -> Vec<Array<T>> {
    let weights: Vec<_> = graph.weights().iter().map(|weight| decode_weight(weight).unwrap()).collect();
    let weights: Vec<_> = weights.iter().map(|weight| Arc::new(weight.map(&mut number))).collect();
    evaluate_in(graph, &weights, &[], step).unwrap()
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = OPERATIONS.iter().flat_map(|of| [of.case(1), of.case(2)]).collect();
    cases.extend((0..8).map(|seed| random_case(seed, 12, &f32_weight)));
    cases
}

#[test]
fn whole_texts_in_f32_are_those_of_the_device_bit_for_bit() {
    for case in cases() {
        let expected = run_case(&ReferenceBackend, &case).unwrap();
        let found = evaluate(&case.graph, &first_step(&case), |x| x);
        for (found, expected) in found.iter().zip(expected) {
            let comparison = compare(&found.to_floats(), &expected[0]);
            assert!(comparison.within(Tolerance::EXACT), "{}, seed {}: {comparison}", case.name, case.seed);
        }
    }
}

#[test]
fn exact_numbers_are_near_those_of_the_device() {
    for case in OPERATIONS.iter().map(|of| of.case(3)) {
        let expected = run_case(&ReferenceBackend, &case).unwrap();
        let found = evaluate(&case.graph, &first_step(&case), f64::from);
        for (found, expected) in found.iter().zip(expected) {
            let found: Vec<f32> = found.to_floats().into_iter().map(|x| x as f32).collect();
            let comparison = compare(&found, &expected[0]);
            assert!(comparison.within(Tolerance(1e-4)), "{}: {comparison}", case.name);
        }
    }
}

/// Weights move along a random direction; the outputs' slopes are measured in `f64`, and carried in dual numbers.
#[test]
fn tangents_of_a_decoder_are_its_slopes() {
    for (experts, softcap) in [(None, Some(4.0)), (Some((4, 2)), None)] {
        let spec = Decoder {
            vocab: 20,
            hidden: 16,
            heads: 4,
            head_dim: 4,
            feed_forward: 12,
            windows: vec![None, Some(3)],
            experts,
            softcap,
            ..Decoder::small(StorageFormat::F32)
        };
        let graph = spec.graph(5);
        let tokens = [vec![3, 1, 4, 1, 5], vec![9, 2]];
        let segments = tokens.map(|tokens| Segment::text(SequenceId(0), 0, tokens, Outs::All, Vec::new()));
        let step = Step { segments: segments.into() };
        let moved = |by: f64| {
            let mut random = Random::new(7);
            evaluate(&graph, &step, move |x| f64::from(x) + by * f64::from(random.normal()))
        };
        let mut random = Random::new(7);
        let dual = |x: f32| Dual { value: x.into(), tangent: random.normal().into() };
        let found = evaluate(&graph, &step, dual).remove(0);
        let (plain, above, below) = (moved(0.0).remove(0), moved(1e-6).remove(0), moved(-1e-6).remove(0));
        for (i, found) in found.floats().iter().enumerate() {
            let slope = (above.floats()[i] - below.floats()[i]) / 2e-6;
            assert!((found.tangent - slope).abs() < 1e-6, "{i}: {found:?}, slope {slope}");
            assert!((found.value - plain.floats()[i]).abs() < 1e-12, "{i}: {found:?}");
        }
    }
}

#[test]
fn integers_have_no_tangents_and_halves_keep_them() {
    let x = Array::of([2], vec![Dual { value: 1.000_4, tangent: 3.0 }, Dual { value: -7.0, tangent: 4.0 }]);
    let cast = |dtype| {
        let op = brasa_graph::op::Cast { dtype }.into();
        brasa_graph::reference::apply(&op, &[&x], &[]).unwrap().remove(0)
    };
    assert_eq!(cast(DType::U32).integers(), [1, 0]);
    let halves = cast(DType::F16);
    assert_eq!(
        halves.floats().iter().map(|x| (x.value, x.tangent)).collect::<Vec<_>>(),
        [(1.0, 3.0), (-7.0, 4.0)]
    );
}

#[test]
fn later_segments_of_a_cache_are_refused() {
    let graph = Decoder { windows: vec![None], vocab: 8, ..Decoder::small(StorageFormat::F32) }.graph(1);
    let weights: Vec<_> =
        graph.weights().iter().map(|weight| Arc::new(decode_weight(weight).unwrap())).collect();
    let segment = Segment::text(SequenceId(0), 4, vec![1], Outs::All, Vec::new());
    let error = evaluate_in(&graph, &weights, &[], &Step { segments: vec![segment] }).unwrap_err();
    assert!(error.to_string().contains("behind index 0"), "{error}");
}
