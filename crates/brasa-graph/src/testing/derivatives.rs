//! Checks of derivatives by identities that hold for every derivative.

use std::sync::Arc;

use crate::derivative::{Wrt, jvp, vjp};
use crate::reference::{Array, Dual, Number, decode_weight, evaluate_in};
use crate::step::Step;
use crate::{Graph, Op, Sizes, ValueId, ValueKind};

use super::Random;

/// Largest difference of two numbers that are equal up to rounding, divided by the larger terms.
const EXACT: f64 = 1e-10;
/// The bound for differences that are computed from values in `f64`.
const DIFFERENCES: f64 = 1e-6;

/// The outputs of a step in numbers of type `T`. `brought` are weights and inputs that replace those of graph and step.
///
/// # Panics
///
/// If the step does not fit the graph, or if two values are the same weight.
pub fn evaluate_with<T: Number>(
    graph: &Graph,
    step: &Step,
    brought: &[(ValueId, Array<T>)],
) -> Vec<Array<T>> {
    let weights = graph.values().iter().enumerate().filter_map(|(id, value)| match value.kind {
        ValueKind::Weight(weight) => {
            let stored = || {
                decode_weight(graph.weight(weight)).expect("its bytes decode").map(|x| T::constant(x.into()))
            };
            let found = brought.iter().find(|(of, _)| of.0 as usize == id);
            Some(Arc::new(found.map_or_else(stored, |(_, array)| array.clone())))
        }
        _ => None,
    });
    let weights: Vec<_> = weights.collect();
    assert_eq!(weights.len(), graph.weights().len(), "each weight is one value");
    evaluate_in(graph, &weights, brought, step).expect("a valid step")
}

/// A random array with the shape that `id` has in a step.
pub fn normals(graph: &Graph, id: ValueId, step: &Step, random: &mut Random) -> Array<f64> {
    let shape = graph.value(id).shape.resolve(&Sizes::of(step));
    let elements = shape.iter().product();
    Array::of(shape, (0..elements).map(|_| random.normal().into()).collect())
}

/// `Σ a · b`.
fn inner(a: &Array<f64>, b: &Array<f64>) -> f64 {
    assert_eq!(a.shape, b.shape);
    a.floats().iter().zip(b.floats()).map(|(a, b)| a * b).sum()
}

/// `‖a‖`.
fn norm(a: &Array<f64>) -> f64 {
    inner(a, a).sqrt()
}

/// The weights of a graph that can vary: all but the frequencies of rotations.
pub fn varying_weights(graph: &Graph) -> Vec<ValueId> {
    let read = graph.nodes().iter().flat_map(|node| {
        let varies = |place: usize| !matches!(node.op, Op::Rope(_)) || place != 2;
        node.inputs.iter().enumerate().filter(move |(place, _)| varies(*place)).map(|(_, &input)| input)
    });
    let mut read: Vec<ValueId> =
        read.filter(|&input| matches!(graph.value(input).kind, ValueKind::Weight(_))).collect();
    read.sort_unstable();
    read.dedup();
    read
}

/// Checks the derivatives of all outputs of `graph` with respect to `wrt`.
///
/// The rules of the forward mode equal dual numbers; `⟨J·v, w⟩ = ⟨v, Jᵀ·w⟩`; and, where `smooth`, differences of the values
/// show the same slope. All in `f64`.
///
/// # Panics
///
/// If an identity does not hold. The message has `name` and the numbers.
// Compiled where it is used: the interpreter in f64 and in dual numbers would cost every build of this crate a quarter.
#[inline]
pub fn check_derivatives(name: &str, graph: &Graph, wrt: &[ValueId], step: &Step, smooth: bool) {
    let mut random = Random::new(11);
    let v: Vec<_> = wrt.iter().map(|&id| normals(graph, id, step, &mut random)).collect();
    let start: Vec<_> = wrt.iter().map(|&id| value(graph, id)).collect();

    // J·v, by rules and in dual numbers.
    let forward =
        jvp(graph, &Wrt::new(wrt.iter().copied())).unwrap_or_else(|error| panic!("{name}: {error}"));
    let brought: Vec<_> = forward.directions.iter().copied().zip(v.iter().cloned()).collect();
    let found = evaluate_with(&forward.graph, step, &brought);
    let (values, found) = found.split_at(graph.outputs().len());
    let duals = wrt.iter().zip(&start).zip(&v).map(|((&id, start), v)| {
        let pairs = start.floats().iter().zip(v.floats());
        let duals = pairs.map(|(&value, &tangent)| Dual { value, tangent }).collect();
        (id, Array::of(start.shape.clone(), duals))
    });
    let dual = evaluate_with(graph, step, &duals.collect::<Vec<_>>());
    let mut found = found.iter();
    let mut tangents = Vec::new();
    for (number, (dual, computed)) in dual.iter().zip(values).enumerate() {
        let expected = dual.map(|x| x.tangent);
        let tangent = match forward.tangents[number] {
            Some(_) => found.next().expect("one for each tangent").clone(),
            None => dual.map(|_| 0.0),
        };
        check_near(&format!("{name}: value {number}"), computed, &dual.map(|x| x.value), EXACT);
        check_near(&format!("{name}: tangent of output {number}"), &tangent, &expected, EXACT);
        tangents.push(tangent);
    }
    assert!(found.next().is_none());

    // Jᵀ·w.
    let backward =
        vjp(graph, &Wrt::new(wrt.iter().copied())).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut w = Vec::new();
    let mut brought = Vec::new();
    for (&output, cotangent) in graph.outputs().iter().zip(&backward.cotangents) {
        let random = normals(graph, output, step, &mut random);
        brought.extend(cotangent.map(|cotangent| (cotangent, random.clone())));
        w.push(random);
    }
    let found = evaluate_with(&backward.graph, step, &brought);
    let mut found = found[graph.outputs().len()..].iter();
    let (mut across, mut terms) = (0.0, 0.0);
    for (v, gradient) in v.iter().zip(&backward.gradients) {
        if gradient.is_some() {
            let gradient = found.next().expect("one for each gradient");
            across += inner(v, gradient);
            terms += norm(v) * norm(gradient);
        }
    }
    assert!(found.next().is_none());
    let along: f64 = tangents.iter().zip(&w).map(|(tangent, w)| inner(tangent, w)).sum();
    assert!(
        (along - across).abs() <= EXACT * terms,
        "{name}: ⟨Jv, w⟩ = {along}, ⟨v, Jᵀw⟩ = {across}, of {terms}"
    );
    assert!(terms > 0.0, "{name}: nothing varies");

    if smooth {
        let moved = |by: f64| {
            let moved = wrt.iter().zip(&start).zip(&v).map(|((&id, start), v)| {
                let pairs = start.floats().iter().zip(v.floats());
                (id, Array::of(start.shape.clone(), pairs.map(|(x, v)| x + by * v).collect()))
            });
            let outputs = evaluate_with(graph, step, &moved.collect::<Vec<_>>());
            outputs.iter().zip(&w).map(|(output, w)| inner(output, w)).sum::<f64>()
        };
        // Fourth order: neither the step's curvature nor the rounding of large sums shows.
        let difference = |by: f64| (moved(by) - moved(-by)) / (2.0 * by);
        let slope = (4.0 * difference(5e-5) - difference(1e-4)) / 3.0;
        assert!(
            (slope - across).abs() <= DIFFERENCES * terms,
            "{name}: slope {slope}, gradient {across}, of {terms}"
        );
    }
}

/// The elements of a weight in `f64`.
fn value(graph: &Graph, id: ValueId) -> Array<f64> {
    match graph.value(id).kind {
        ValueKind::Weight(weight) => {
            decode_weight(graph.weight(weight)).expect("its bytes decode").map(f64::from)
        }
        kind => panic!("{id} is {kind:?}, expected a weight"),
    }
}

/// Checks that two arrays are equal up to `bound`: relative L2, and no element off by more than ten times the bound times
/// the largest magnitude.
///
/// # Panics
///
/// If they are not. The message has `name` and both arrays.
#[track_caller]
pub fn check_near(name: &str, found: &Array<f64>, expected: &Array<f64>, bound: f64) {
    assert_eq!(found.shape, expected.shape, "{name}");
    let (mut error, mut worst, mut largest) = (0.0, 0.0_f64, 0.0_f64);
    for (found, expected) in found.floats().iter().zip(expected.floats()) {
        let difference = (found - expected).abs();
        assert!(difference.is_finite(), "{name}: {found}, expected {expected}");
        error += difference * difference;
        (worst, largest) = (worst.max(difference), largest.max(expected.abs()));
    }
    let (error, scale) = (error.sqrt(), norm(expected));
    assert!(
        error <= bound * scale && worst <= 10.0 * bound * largest,
        "{name}: off by {error:e} of {scale:e}, one element by {worst:e} of {largest:e}\n{found:?}\n{expected:?}"
    );
}
