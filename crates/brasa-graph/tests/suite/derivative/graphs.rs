//! Snapshots of derivatives' graphs, and operations without a derivative.

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};
use brasa_graph::derivative::{Wrt, jvp, vjp};
use brasa_graph::op::{Argmax, Binary, Reduce, ReduceFn, Unary};
use brasa_graph::reference::Array;
use brasa_graph::testing::{Decoder, Random, check_derivatives, evaluate_with as run, normals, weight};
use brasa_graph::{
    Builder, DType, Dim, Graph, Input, Op, ValueId, ValueKind, Weight, WeightPart, pass, print,
};

use super::checks::step;

/// A gated layer behind an embedding, and the sum of its squares: weights `embed`, `gate_up` and `down`.
fn gated() -> (Graph, [ValueId; 3]) {
    let (mut g, mut random) = (Builder::new(), Random::new(3));
    let mut w = |g: &mut Builder, name: &str, shape: &[usize]| {
        g.weight(Ok(weight(name, shape, &random.normals(shape.iter().product(), 0.5))))
    };
    let ids = g.input(Input::TokenIds);
    let (table, gate_up, down) =
        (w(&mut g, "embed", &[97, 4]), w(&mut g, "gate_up", &[6, 4]), w(&mut g, "down", &[4, 3]));
    let h = g.embed(ids, table);
    let both = g.linear(h, gate_up);
    let (gate, up) = (g.slice(both, 0..3), g.slice(both, 3..6));
    let gate = g.unary(gate, Unary::Silu);
    let y = g.mul(gate, up);
    let y = g.linear(y, down);
    let h = g.add(h, y);
    let squares = g.mul(h, h);
    let each = g.sum(squares, 1);
    let loss = g.sum(each, 0);
    (g.finish(&[loss]).unwrap(), [table, gate_up, down])
}

fn names(graph: &Graph) -> Vec<&'static str> {
    graph.nodes().iter().map(|node| node.op.name()).collect()
}

#[test]
fn a_gradient_is_a_graph() {
    let (graph, [_, gate_up, down]) = gated();
    let gradient = vjp(&graph, &Wrt::new([gate_up, down])).unwrap();
    insta::assert_snapshot!(print::graph(&gradient.graph));
}

#[test]
fn a_tangent_is_computed_beside_its_value() {
    let (graph, [_, _, down]) = gated();
    insta::assert_snapshot!(print::graph(&jvp(&graph, &Wrt::new([down])).unwrap().graph));
}

#[test]
fn what_no_gradient_needs_is_not_computed() {
    let (graph, [_, _, down]) = gated();
    let gradient = vjp(&graph, &Wrt::new([down])).unwrap();
    let names = names(&gradient.graph);
    assert_eq!(names.iter().filter(|&&name| name == "linear_gradient").count(), 1, "{names:?}");
    for absent in ["unary_gradient", "linear_transposed", "index_add"] {
        assert!(!names.contains(&absent), "{absent} in {names:?}");
    }
}

#[test]
fn views_of_one_value_are_joined_rather_than_padded() {
    let (graph, [_, gate_up, _]) = gated();
    let names = names(&vjp(&graph, &Wrt::new([gate_up])).unwrap().graph);
    assert_eq!(names.iter().filter(|&&name| name == "concat").count(), 1, "{names:?}");
}

#[test]
fn trainable_weights_are_found_by_their_mark() {
    let mut g = Builder::new();
    let frozen = g.weight(Ok(weight("frozen", &[2], &[1.0, 2.0])));
    let trained = g.weight(Ok(Weight { trainable: true, ..weight("trained", &[2], &[3.0, 4.0]) }));
    let y = g.mul(frozen, trained);
    let graph = g.finish(&[y]).unwrap();
    assert_eq!(Wrt::trainable(&graph).values, [trained]);
    let gradient = vjp(&graph, &Wrt::trainable(&graph)).unwrap();
    assert_eq!(run::<f64>(&gradient.graph, &step(&[1], 1), &[])[1].floats(), [1.0, 2.0]);
}

/// `Σ a · b`.
fn inner(a: &Array<f64>, b: &Array<f64>) -> f64 {
    a.floats().iter().zip(b.floats()).map(|(a, b)| a * b).sum()
}

/// A disturbance of a result is added to it: its gradient is its cotangent, and passes on.
#[test]
fn results_and_inputs_can_vary() {
    let (mut g, mut random) = (Builder::new(), Random::new(5));
    let x = g.given("x", DType::F32, Dim::ROWS, &[3]);
    let w = g.weight(Ok(weight("w", &[2, 3], &random.normals(6, 1.0))));
    let h = g.linear(x, w);
    let y = g.unary(h, Unary::Tanh);
    let graph = g.finish(&[y]).unwrap();
    let step = step(&[4], 1);
    let gradient = vjp(&graph, &Wrt::new([x, h, w])).unwrap();
    let tangent = jvp(&graph, &Wrt::new([x, h, w])).unwrap();
    let given = normals(&graph, x, &step, &mut random);
    let v: Vec<Array<f64>> = [x, h, w].map(|id| normals(&graph, id, &step, &mut random)).into();
    let cotangent = normals(&graph, y, &step, &mut random);
    let mut brought = vec![(x, given.clone()), (gradient.cotangents[0].unwrap(), cotangent.clone())];
    let gradients = run(&gradient.graph, &step, &brought).split_off(1);
    brought.truncate(1);
    brought.extend(tangent.directions.iter().copied().zip(v.iter().cloned()));
    let tangents = run(&tangent.graph, &step, &brought).split_off(1);
    let across: f64 = v.iter().zip(&gradients).map(|(v, gradient)| inner(v, gradient)).sum();
    let along = inner(&tangents[0], &cotangent);
    assert!((along - across).abs() < 1e-12 * along.abs(), "{along} {across}");
    assert_eq!(gradients[1].shape, [4, 2]);
}

#[test]
fn no_derivative_passes_a_stopped_value() {
    let (mut g, mut random) = (Builder::new(), Random::new(5));
    let a = g.weight(Ok(weight("a", &[3], &random.normals(3, 1.0))));
    let b = g.weight(Ok(weight("b", &[3], &random.normals(3, 1.0))));
    let held = g.unary(a, Unary::Tanh);
    let y = g.mul(held, b);
    let graph = g.finish(&[y]).unwrap();
    let wrt = Wrt::new([a, b]).stopping_at([held]);
    let gradient = vjp(&graph, &wrt).unwrap();
    assert!(gradient.gradients[0].is_none() && gradient.gradients[1].is_some());
    let tangent = jvp(&graph, &wrt).unwrap();
    let step = step(&[1], 1);
    let change = Array::of([3], vec![1.0, 2.0, 3.0]);
    let brought = [(tangent.directions[0], change.clone()), (tangent.directions[1], change.clone())];
    let found = run(&tangent.graph, &step, &brought);
    let held = run(&graph.clone().returning(&[held]), &step, &[]).remove(0);
    let expected: Vec<f64> = held.floats().iter().zip(change.floats()).map(|(h, c)| h * c).collect();
    assert_eq!(found[1].floats(), expected);
}

#[test]
fn integers_end_a_derivative() {
    let mut g = Builder::new();
    let ids = g.input(Input::TokenIds);
    let table = g.weight(Ok(weight("table", &[97, 2], &[0.5; 194])));
    let h = g.embed(ids, table);
    let best = g.apply(Argmax, &[h])[0];
    let graph = g.finish(&[best]).unwrap();
    assert_eq!(jvp(&graph, &Wrt::new([table])).unwrap().tangents, [None]);
    let gradient = vjp(&graph, &Wrt::new([table])).unwrap();
    assert_eq!((gradient.cotangents, gradient.gradients), (vec![None], vec![None]));
    assert_eq!(gradient.graph.outputs(), [best]);
}

#[track_caller]
fn refused(graph: &Graph, wrt: ValueId, expected: &str) {
    let forward = jvp(graph, &Wrt::new([wrt])).unwrap_err();
    let backward = vjp(graph, &Wrt::new([wrt])).unwrap_err();
    assert_eq!([forward.to_string(), backward.to_string()], [expected, expected]);
}

#[test]
fn what_cannot_vary_is_refused_by_name() {
    let graph = Decoder { windows: vec![None], ..Decoder::small(StorageFormat::Q8_0) }.graph(1);
    let named = |name: &str| {
        let is_it = |value: &brasa_graph::Value| match value.kind {
            ValueKind::Weight(weight) => graph.weight(weight).name == name,
            _ => false,
        };
        ValueId(graph.values().iter().position(is_it).unwrap() as u32)
    };
    refused(
        &graph,
        named("layers.0.qkv"),
        "derivative of layers.0.qkv: stored as Q8_0, expected F32, F16 or BF16: quantised weights are constants",
    );
    let token_ids = graph.nodes()[0].inputs[0];
    refused(&graph, token_ids, "derivative of token_ids: integers, expected floats");
    refused(
        &graph,
        ValueId(9_999),
        &format!("derivative of %9999: no such value among {}", graph.values().len()),
    );
    refused(
        &graph,
        named("layers.0.k_norm"),
        "derivative of cache_write: keys and values that are kept have no derivative; a model's graph can attend to the rows \
         of a step",
    );
    let twice = named("norm");
    let error = vjp(&graph, &Wrt::new([twice, twice])).unwrap_err();
    assert_eq!(error.to_string(), "derivative of norm: named twice");
    let rows = pass::attend_to_rows(&graph).unwrap();
    assert!(rows.cache_groups().is_empty());
    assert!(vjp(&rows, &Wrt::new([named("layers.0.k_norm")])).is_ok());
    refused(
        &rows,
        named("frequencies"),
        "derivative of rope: no derivative with respect to frequencies is defined",
    );
}

#[test]
fn a_cache_that_nothing_writes_is_refused() {
    let graph = Decoder { windows: vec![None], ..Decoder::small(StorageFormat::F32) }.graph(1);
    let torn = brasa_graph::rewrite(&graph, |_, node, _| match node.op {
        Op::CacheWrite(_) => brasa_graph::Change::Remove,
        _ => brasa_graph::Change::Keep,
    });
    let error = pass::attend_to_rows(&torn.unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "rewrite: attention reads cache 0, which no node before it writes");
}

/// The sum of all elements of a value that nothing else reads, by axes: shapes of every rank.
#[test]
fn sums_over_everything_spread_back() {
    let (mut g, mut random) = (Builder::new(), Random::new(5));
    let w = g.weight(Ok(weight("w", &[97, 6], &random.normals(582, 1.0))));
    let ids = g.input(Input::TokenIds);
    let h = g.embed(ids, w);
    let heads = g.reshape(h, &[2, 3]);
    let mean = |g: &mut Builder, x, axis| g.apply(Reduce { function: ReduceFn::Mean, axis }, &[x])[0];
    let a = mean(&mut g, heads, 0);
    let b = mean(&mut g, a, 1);
    let c = mean(&mut g, b, 0);
    let doubled = g.apply(Binary::Add, &[c, c])[0];
    let graph = g.finish(&[doubled]).unwrap();
    check_derivatives("means", &graph, &[w], &step(&[3, 2], 4), true);
}

#[test]
fn weights_in_halves_can_vary() {
    let values = [1.5, -2.0].map(half::f16::from_f32);
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let payload = Payload::Blocks(Bytes::from(bytes));
    let halves = Tensor { name: "w".into(), shape: vec![2], format: StorageFormat::F16, payload };
    let part = WeightPart::whole(halves);
    let mut g = Builder::new();
    let w = g.weight(Weight::new("w", &[2], vec![part]));
    let y = g.unary(w, Unary::Exp);
    let graph = g.finish(&[y]).unwrap();
    let gradient = vjp(&graph, &Wrt::new([w])).unwrap();
    let found = run::<f64>(&gradient.graph, &step(&[1], 1), &[]);
    assert_eq!(found[1].floats(), [1.5_f64.exp(), (-2.0_f64).exp()]);
}
