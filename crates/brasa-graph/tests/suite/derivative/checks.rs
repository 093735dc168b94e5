//! What is true of every derivative.

use std::sync::Arc;

use brasa_graph::derivative::{Wrt, jvp, vjp};
use brasa_graph::reference::{Array, Dual, Number, decode_weight, evaluate_in};
use brasa_graph::step::{Outs, Segment, SequenceId, Step};
use brasa_graph::testing::Random;
use brasa_graph::{DType, Dim, Graph, Sizes, Symbol, ValueId, ValueKind};

/// How far two numbers that are equal but for rounding may be apart, as a share of the larger terms.
const EXACT: f64 = 1e-10;
/// The bound for differences of `f64`.
const DIFFERENCES: f64 = 1e-6;

/// Texts of these numbers of rows, with random tokens below 97, logits of all rows wanted.
pub fn step(rows: &[usize], seed: u64) -> Step {
    let mut random = Random::new(seed);
    let segments = rows.iter().enumerate().map(|(id, &rows)| {
        let tokens = (0..rows).map(|_| random.below(97) as u32).collect();
        Segment::text(SequenceId(id as u64), 0, tokens, Outs::All, Vec::new())
    });
    Step { segments: segments.collect() }
}

/// The outputs in numbers of type `T`; `brought` are weights and inputs that differ from what graph and step hold.
pub fn run<T: Number>(graph: &Graph, step: &Step, brought: &[(ValueId, Array<T>)]) -> Vec<Array<T>> {
    let weights = graph.values().iter().enumerate().filter_map(|(id, value)| match value.kind {
        ValueKind::Weight(weight) => {
            let stored = || decode_weight(graph.weight(weight)).unwrap().map(|x| T::constant(x.into()));
            let found = brought.iter().find(|(of, _)| of.0 as usize == id);
            Some(Arc::new(found.map_or_else(stored, |(_, array)| array.clone())))
        }
        _ => None,
    });
    let weights: Vec<_> = weights.collect();
    assert_eq!(weights.len(), graph.weights().len(), "each weight is one value");
    evaluate_in(graph, &weights, brought, step).unwrap()
}

/// Numbers of the shape that `id` has in a step.
pub fn normals(graph: &Graph, id: ValueId, step: &Step, random: &mut Random) -> Array<f64> {
    let shape = graph.value(id).shape.resolve(&Sizes::of(step));
    let elements = shape.iter().product();
    Array::of(shape, (0..elements).map(|_| random.normal().into()).collect())
}

/// `Σ a · b`.
pub fn inner(a: &Array<f64>, b: &Array<f64>) -> f64 {
    assert_eq!(a.shape, b.shape);
    a.floats().iter().zip(b.floats()).map(|(a, b)| a * b).sum()
}

/// `‖a‖`.
pub fn norm(a: &Array<f64>) -> f64 {
    inner(a, a).sqrt()
}

/// The graph, returning only outputs that can have a cotangent: floats whose rows are outermost, or of constant shape.
pub fn of_rows(graph: Graph) -> Graph {
    let fits = |id: &ValueId| {
        let value = graph.value(*id);
        let rows =
            |dim: &Dim| matches!(dim.symbol, None | Some(Symbol::Rows | Symbol::Segments | Symbol::Outs));
        value.dtype != DType::U32 && value.shape.inner().is_some() && value.shape.0.first().is_some_and(rows)
    };
    let outputs: Vec<ValueId> = graph.outputs().iter().copied().filter(fits).collect();
    graph.returning(&outputs)
}

/// Checks the derivatives of all outputs of `graph` with respect to `wrt`.
///
/// The rules of the forward mode equal dual numbers; `⟨J·v, w⟩ = ⟨v, Jᵀ·w⟩`; and, where `smooth`, differences of the values
/// show the same slope.
pub fn check(name: &str, graph: &Graph, wrt: &[ValueId], step: &Step, smooth: bool) {
    let mut random = Random::new(11);
    let v: Vec<_> = wrt.iter().map(|&id| normals(graph, id, step, &mut random)).collect();
    let start: Vec<_> = wrt.iter().map(|&id| value(graph, id)).collect();

    // J·v, by rules and in dual numbers.
    let forward =
        jvp(graph, &Wrt::new(wrt.iter().copied())).unwrap_or_else(|error| panic!("{name}: {error}"));
    let brought: Vec<_> = forward.directions.iter().copied().zip(v.iter().cloned()).collect();
    let found = run(&forward.graph, step, &brought);
    let (values, found) = found.split_at(graph.outputs().len());
    let duals = wrt.iter().zip(&start).zip(&v).map(|((&id, start), v)| {
        let pairs = start.floats().iter().zip(v.floats());
        let duals = pairs.map(|(&value, &tangent)| Dual { value, tangent }).collect();
        (id, Array::of(start.shape.clone(), duals))
    });
    let dual = run(graph, step, &duals.collect::<Vec<_>>());
    let mut found = found.iter();
    let mut tangents = Vec::new();
    for (number, (dual, computed)) in dual.iter().zip(values).enumerate() {
        let expected = dual.map(|x| x.tangent);
        let tangent = match forward.tangents[number] {
            Some(_) => found.next().unwrap().clone(),
            None => dual.map(|_| 0.0),
        };
        near(&format!("{name}: value {number}"), computed, &dual.map(|x| x.value), EXACT);
        near(&format!("{name}: tangent of output {number}"), &tangent, &expected, EXACT);
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
    let found = run(&backward.graph, step, &brought);
    let mut found = found[graph.outputs().len()..].iter();
    let (mut across, mut terms) = (0.0, 0.0);
    for (v, gradient) in v.iter().zip(&backward.gradients) {
        if gradient.is_some() {
            let gradient = found.next().unwrap();
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
            let outputs = run(graph, step, &moved.collect::<Vec<_>>());
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

/// A weight in `f64`.
pub fn value(graph: &Graph, id: ValueId) -> Array<f64> {
    match graph.value(id).kind {
        ValueKind::Weight(weight) => decode_weight(graph.weight(weight)).unwrap().map(f64::from),
        kind => panic!("{id} is {kind:?}, expected a weight"),
    }
}

/// Fails where two arrays differ by more than `bound`, relative to the expected one's norm or to a single element's place.
#[track_caller]
pub fn near(name: &str, found: &Array<f64>, expected: &Array<f64>, bound: f64) {
    assert_eq!(found.shape, expected.shape, "{name}");
    let scale = norm(expected).max(f64::MIN_POSITIVE);
    let pairs = found.floats().iter().zip(expected.floats());
    let error = pairs.map(|(f, e)| (f - e) * (f - e)).sum::<f64>().sqrt();
    assert!(error <= bound * scale, "{name}: off by {error:e} of {scale:e}\n{found:?}\n{expected:?}");
}
