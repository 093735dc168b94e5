//! Derivatives of gradients: rules of what gradients are made of.

use brasa_graph::derivative::{Vjp, Wrt, jvp, vjp};
use brasa_graph::op::{
    Attention, AttentionTangent, ExpertLinear, Gating, HeadLinear, KvSource, LinearCrossEntropy, Mask,
    NormGradient, NormKind, Reduce, ReduceFn, RouterTopK, Unary, UnaryGradient,
};
use brasa_graph::reference::Array;
use brasa_graph::testing::{
    ALIBI, Case, CaseBuilder, OPERATIONS, Random, WIDE_ATTENTION, check_derivatives, evaluate_with,
    f32_weight, random_case, varying_weights, weight,
};
use brasa_graph::{Builder, Change, Graph, Input, Op, ValueId, ValueKind, pass, rewrite};

use super::checks::{of_rows, step};

/// The graph that returns the sum of the cubes of each output, so that gradients depend on every value. Squares of a normed row have no gradient.
fn cubes(graph: &Graph) -> Graph {
    let mut losses = Vec::new();
    let cubed = rewrite(graph, |builder, node, operands| {
        let outputs = builder.apply(node.op.clone(), operands);
        for (&old, &output) in node.outputs.iter().zip(&outputs) {
            if graph.outputs().contains(&old) {
                let square = builder.mul(output, output);
                let mut sum = builder.mul(square, output);
                for _ in 0..graph.value(old).shape.rank() {
                    sum = builder.apply(Reduce { function: ReduceFn::Sum, axis: 0 }, &[sum])[0];
                }
                losses.push(sum);
            }
        }
        Change::Replace(outputs)
    });
    cubed.unwrap().returning(&losses)
}

/// The graph of the gradients of a case's cubes, and what they are of; `None` if nothing varies.
fn gradients(case: &Case) -> Option<(Graph, Vec<ValueId>)> {
    let graph = of_rows(pass::prune(&pass::attend_to_rows(&case.graph).unwrap()));
    let graph = pass::prune(&cubes(&graph));
    let wrt = varying_weights(&graph);
    let Vjp { graph, gradients, .. } = vjp(&graph, &Wrt::new(wrt.iter().copied())).unwrap();
    gradients.iter().any(Option::is_some).then_some((graph, wrt))
}

/// Checks what varies in the gradients of a case; false if nothing does.
fn check(case: &Case, smooth: bool) -> bool {
    let Some((graph, wrt)) = gradients(case) else { return false };
    let name = format!("gradient of {}, seed {}", case.name, case.seed);
    check_derivatives(&name, &graph, &wrt, &step(&[5, 2], case.seed), smooth);
    true
}

#[test]
fn gradients_of_every_operation_obey_the_rules() {
    for operation in OPERATIONS.iter().chain([&ALIBI]).chain(WIDE_ATTENTION) {
        for seed in 0..3 {
            let is_smooth = operation.name != "arrangements";
            assert!(check(&operation.case(seed), is_smooth), "{}: nothing varies", operation.name);
        }
    }
}

/// Gradients of changes along a direction, of all kinds of attention, and what has no derivative any more.
#[test]
fn gradients_of_tangents_of_attention_obey_the_rules() {
    let mut random = Random::new(4);
    let mut w = |g: &mut Builder, name: &str, shape: &[usize]| {
        g.weight(Ok(weight(name, shape, &random.normals(shape.iter().product(), 0.6))))
    };
    for (mask, window, softcap) in [
        (Mask::Causal, Some(3), Some(1.5)),
        (Mask::Alibi, None, None),
        (Mask::Bidirectional, Some(2), Some(4.0)),
    ] {
        let attention = Attention { source: KvSource::Step(mask), scale: 0.4, window, softcap };
        let mut g = Builder::new();
        let ids = g.input(Input::TokenIds);
        let mut wrt = Vec::new();
        let rows = [4, 2, 2, 4, 2, 2].map(|heads| {
            let table = w(&mut g, "table", &[97, heads * 3]);
            wrt.push(table);
            let rows = g.embed(ids, table);
            g.reshape(rows, &[heads, 3])
        });
        let y = g.apply(AttentionTangent { attention }, &rows)[0];
        let graph = cubes(&g.finish(&[y]).unwrap());
        let name = format!("tangent of {mask:?} attention");
        let gradient = vjp(&graph, &Wrt::new(wrt.iter().copied())).unwrap().graph;
        let step = step(&[6, 3], 1);
        let values = evaluate_with::<f64>(&gradient, &step, &[]);
        for (place, &table) in wrt.iter().enumerate() {
            let slope = |element: usize| {
                let at_side = |by: f64| {
                    let mut moved = decode(&graph, table);
                    moved[element] += by;
                    let shape = graph.value(table).shape.resolve(&brasa_graph::Sizes::default());
                    evaluate_with(&graph, &step, &[(table, Array::of(shape, moved))])[0].floats()[0]
                };
                (at_side(1e-5) - at_side(-1e-5)) / 2e-5
            };
            let found = values[1 + place].floats();
            let largest = found.iter().enumerate().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())).unwrap();
            assert!(*largest.1 != 0.0, "{name}");
            for element in [largest.0, 0, found.len() - 1] {
                let (found, slope) = (found[element], slope(element));
                assert!((found - slope).abs() <= 1e-6 * largest.1.abs(), "{name}: {found}, expected {slope}");
            }
        }
        let error = jvp(&graph, &Wrt::new([wrt[0]])).unwrap_err().to_string();
        assert!(error.starts_with("derivative of attention_tangent: no tangent of a tangent"), "{error}");
        let error = vjp(&gradient, &Wrt::new([wrt[0]])).unwrap_err().to_string();
        assert_eq!(error, "derivative of attention_gradient_tangent: no derivative is defined");
    }
}

fn decode(graph: &Graph, id: ValueId) -> Vec<f64> {
    let ValueKind::Weight(weight) = graph.value(id).kind else { panic!("{id} is no weight") };
    graph.weight(weight).decode("test").unwrap().into_iter().map(f64::from).collect()
}

/// Heads with their loss, experts and heads that learn, and every function of one element, by whose slopes gradients are made.
#[test]
fn gradients_of_layers_obey_the_rules() {
    let build = |b: &mut CaseBuilder| {
        let (x, ids, logits) = (b.rows(&[9]), b.token_ids(), b.rows(&[4]));
        let head = b.weight("head", &[97, 9]);
        let mut outputs: Vec<ValueId> = [None, Some(2.0)]
            .into_iter()
            .flat_map(|softcap| b.graph.apply(LinearCrossEntropy { softcap }, &[x, head, ids]))
            .collect();
        let top = RouterTopK { k: 2, gating: Gating::SOFTMAX_ALL };
        let (chosen, _) = b.graph.router_topk(logits, top);
        let (up, down) = (b.weight("up", &[4, 5, 9]), b.weight("down", &[4, 3, 5]));
        let wide = b.graph.apply(ExpertLinear, &[x, chosen, up])[0];
        let wide = b.graph.unary(wide, Unary::Silu);
        outputs.extend(b.graph.apply(ExpertLinear, &[wide, chosen, down]));
        let (heads, each) = (b.rows(&[3, 5]), b.weight("each", &[3, 4, 5]));
        let turned = b.graph.apply(HeadLinear, &[heads, each])[0];
        outputs.push(b.graph.unary(turned, Unary::Tanh));
        let few = b.rows(&[2, 5]);
        let w = b.weight("w", &[3, 5]);
        let heads = b.graph.linear(few, w);
        outputs.push(b.graph.unary(heads, Unary::Tanh));
        outputs
    };
    for seed in 0..3 {
        assert!(check(&Case::new("layers", seed, &f32_weight, build), true));
    }
}

/// Each operation by itself at values of its own, where third derivatives are asked for too.
#[test]
fn slopes_and_norms_bend() {
    let functions = [
        Unary::Scale(0.7),
        Unary::Clamp { low: -0.5, high: 0.5 },
        Unary::Softcap(1.5),
        Unary::Exp,
        Unary::Log,
        Unary::Rsqrt,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Silu,
        Unary::GeluTanh,
        Unary::GeluErf,
        Unary::SquaredRelu,
        Unary::Softplus,
    ];
    let mut random = Random::new(9);
    let mut check = |name: &str, op: Op, positive: bool| {
        let mut g = Builder::new();
        let mut values = random.normals(12, 0.8);
        if positive {
            for x in &mut values {
                *x = x.abs() + 0.3;
            }
        }
        let x = g.weight(Ok(weight("x", &[2, 6], &values)));
        let t = g.weight(Ok(weight("t", &[2, 6], &random.normals(12, 1.0))));
        let y = g.apply(op, &[x, t])[0];
        let graph = cubes(&g.finish(&[y]).unwrap());
        check_derivatives(name, &graph, &[x, t], &step(&[1], 1), true);
        let second = vjp(&graph, &Wrt::new([x, t])).unwrap().graph;
        check_derivatives(&format!("gradient of {name}"), &second, &[x, t], &step(&[1], 1), true);
    };
    for function in functions {
        let positive = matches!(function, Unary::Log | Unary::Rsqrt);
        check(&format!("{function:?}"), UnaryGradient { function }.into(), positive);
    }
    for kind in [NormKind::Rms, NormKind::Layer] {
        check(&format!("{kind:?}"), NormGradient { kind, eps: 1e-2 }.into(), false);
    }
}

#[test]
fn gradients_of_random_graphs_obey_the_rules() {
    let checked = (0..40).filter(|&seed| check(&random_case(seed, 15, &f32_weight), false)).count();
    assert!(checked > 30, "{checked} graphs with gradients");
}
