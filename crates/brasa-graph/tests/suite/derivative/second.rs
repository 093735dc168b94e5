//! Derivatives of gradients: rules of what gradients are made of.

use brasa_graph::derivative::{Vjp, Wrt, jvp, vjp};
use brasa_graph::op::{
    ExpertLinear, Gating, LinearCrossEntropy, NormGradient, NormKind, Reduce, ReduceFn, RouterTopK, Unary,
    UnaryGradient,
};
use brasa_graph::testing::{
    ALIBI, Case, CaseBuilder, OPERATIONS, Random, check_derivatives, f32_weight, random_case,
    varying_weights, weight,
};
use brasa_graph::{Builder, Change, Graph, Op, ValueId, pass, rewrite};

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

/// True if a gradient attends, which has no second derivative.
fn attends(graph: &Graph) -> bool {
    graph.nodes().iter().any(|node| matches!(node.op, Op::AttentionGradient(_)))
}

fn check(case: &Case, smooth: bool) -> bool {
    let Some((graph, wrt)) = gradients(case) else { return false };
    let name = format!("gradient of {}, seed {}", case.name, case.seed);
    if attends(&graph) {
        let wrt = Wrt::new(wrt);
        let errors = [jvp(&graph, &wrt).unwrap_err(), vjp(&graph, &wrt).unwrap_err()];
        for error in errors {
            assert_eq!(
                error.to_string(),
                "derivative of attention_gradient: no derivative is defined",
                "{name}"
            );
        }
        return false;
    }
    check_derivatives(&name, &graph, &wrt, &step(&[5, 2], case.seed), smooth);
    true
}

#[test]
fn gradients_of_every_operation_obey_the_rules() {
    let mut without = Vec::new();
    for operation in OPERATIONS.iter().chain([&ALIBI]) {
        for seed in 0..3 {
            if !check(&operation.case(seed), operation.name != "arrangements") {
                without.push(operation.name);
            }
        }
    }
    without.dedup();
    // The gradient of attention has no derivative.
    assert_eq!(without, ["attention", "alibi"]);
}

/// Heads with their loss, experts that learn, and every function of one element, by whose slopes gradients are made.
#[test]
fn gradients_of_layers_obey_the_rules() {
    let build = |b: &mut CaseBuilder| {
        let (x, ids, logits) = (b.rows(&[9]), b.token_ids(), b.rows(&[4]));
        let head = b.weight("head", &[97, 9]);
        let mut outputs: Vec<ValueId> = [None, Some(2.0)]
            .into_iter()
            .flat_map(|softcap| b.graph.apply(LinearCrossEntropy { softcap }, &[x, head, ids]))
            .collect();
        let top = RouterTopK { k: 2, gating: Gating::SoftmaxAll };
        let (chosen, _) = b.graph.router_topk(logits, top);
        let (up, down) = (b.weight("up", &[4, 5, 9]), b.weight("down", &[4, 3, 5]));
        let wide = b.graph.apply(ExpertLinear, &[x, chosen, up])[0];
        let wide = b.graph.unary(wide, Unary::Silu);
        outputs.extend(b.graph.apply(ExpertLinear, &[wide, chosen, down]));
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
    assert!(checked > 5, "{checked} graphs without attention");
}
