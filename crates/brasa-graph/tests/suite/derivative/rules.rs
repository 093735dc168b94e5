//! The rules of every operation.

use brasa_graph::op::{Linear, LinearCrossEntropy, Narrow, Pick, Place};
use brasa_graph::testing::{
    ALIBI, Case, CaseBuilder, OPERATIONS, WIDE_ATTENTION, check_derivatives, f32_weight, random_case,
    varying_weights,
};
use brasa_graph::{Op, ValueId, pass};

use super::checks::{of_rows, step};

fn check_case(case: &Case, smooth: bool) {
    let graph = of_rows(pass::prune(&pass::attend_to_rows(&case.graph).unwrap()));
    let graph = pass::prune(&graph);
    let name = format!("{}, seed {}", case.name, case.seed);
    check_derivatives(&name, &graph, &varying_weights(&graph), &step(&[5, 2], case.seed), smooth);
}

#[test]
fn every_operation_obeys_its_rules() {
    for operation in OPERATIONS.iter().chain([&ALIBI]).chain(WIDE_ATTENTION) {
        for seed in 0..6 {
            // Tangents pass over the steps of roundings to 16 bits, and over those of choices among hundreds of experts.
            check_case(&operation.case(seed), !["arrangements", "gatings"].contains(&operation.name));
        }
    }
}

#[test]
fn operations_that_only_derivatives_use_obey_their_rules() {
    let build = |b: &mut CaseBuilder| {
        let (x, few) = (b.rows(&[97]), b.rows(&[3]));
        let ids = b.token_ids();
        let logits = b.rows(&[20]);
        let apply = |b: &mut CaseBuilder, op: Op, inputs: &[ValueId]| b.graph.apply(op, inputs)[0];
        let picked = apply(b, Pick.into(), &[x, ids]);
        let top = brasa_graph::op::RouterTopK { k: 3, gating: brasa_graph::op::Gating::SOFTMAX_ALL };
        let (chosen, _) = b.graph.router_topk(logits, top);
        let wide = apply(b, Place { width: 20 }.into(), &[few, chosen]);
        let narrow = Narrow { axis: 1, start: 4.into(), len: 9.into() };
        let part = apply(b, narrow.into(), &[x]);
        let w = b.weight("w", &[5, 9]);
        let head = b.weight("head", &[97, 9]);
        let [plain, capped] = [None, Some(2.0)]
            .map(|softcap| apply(b, LinearCrossEntropy { softcap }.into(), &[part, head, ids]));
        vec![picked, wide, part, apply(b, Linear.into(), &[part, w]), plain, capped]
    };
    for seed in 0..3 {
        check_case(&Case::new("operations of derivatives", seed, &f32_weight, build), true);
    }
}

#[test]
fn random_graphs_obey_the_rules() {
    for seed in 0..40 {
        check_case(&random_case(seed, 15, &f32_weight), false);
    }
}
