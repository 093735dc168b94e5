//! Fusion: what is grouped, what must not be, and that a schedule always computes the graph.

use std::collections::BTreeSet;

use brasa_graph::fuse::{Fusion, Pattern};
use brasa_graph::op::{Attention, Binary, KvSource, Rope, RopeLayout, Unary};
use brasa_graph::testing::{Case, CaseBuilder, f32_weight, pattern_case, random_case};
use brasa_graph::{CacheSpec, Graph, Item, NodeId, Schedule, ValueId, ValueKind};

fn graph(build: impl FnOnce(&mut CaseBuilder) -> Vec<ValueId>) -> Graph {
    Case::new("schedule", 1, &f32_weight, build).graph
}

/// Names of the fused items, in order.
fn fused(graph: &Graph, patterns: &[Pattern]) -> Vec<&'static str> {
    let schedule = Schedule::new(graph, patterns);
    verify(graph, &schedule);
    let name = |item: &Item| match item {
        Item::Single(_) => None,
        Item::Fused(fused) => Some(fused.fusion.pattern().name()),
    };
    schedule.items().iter().filter_map(name).collect()
}

/// Every node once, operands made before they are used, caches written and read in the graph's order, nothing inside
/// an item needed outside.
fn verify(graph: &Graph, schedule: &Schedule) {
    let nodes: Vec<NodeId> = schedule.items().iter().flat_map(Item::nodes).copied().collect();
    let all: BTreeSet<NodeId> = nodes.iter().copied().collect();
    assert_eq!((nodes.len(), all.len()), (graph.nodes().len(), graph.nodes().len()));
    let mut available: BTreeSet<ValueId> = BTreeSet::new();
    for item in schedule.items() {
        let mut inside = BTreeSet::new();
        for &node in item.nodes() {
            for &input in &graph.node(node).inputs {
                let made = !matches!(graph.value(input).kind, ValueKind::Temporary(_));
                assert!(made || available.contains(&input) || inside.contains(&input), "{input} in {item:?}");
            }
            inside.extend(graph.node(node).outputs.iter().copied());
        }
        match item {
            Item::Single(_) => available.extend(inside),
            Item::Fused(fused) => available.extend(fused.outputs.iter().copied()),
        }
    }
    assert!(graph.outputs().iter().all(|output| available.contains(output)));
    let cache_ops: Vec<NodeId> = nodes
        .iter()
        .copied()
        .filter(|&node| matches!(graph.node(node).op.name(), "cache_write" | "attention"))
        .collect();
    assert!(cache_ops.is_sorted(), "caches are used in the graph's order");
}

#[test]
fn every_pattern_is_found_in_its_own_case() {
    for &pattern in Pattern::ALL {
        for seed in 0..40 {
            let case = pattern_case(pattern, seed, &f32_weight);
            assert_eq!(fused(&case.graph, &[pattern]), [pattern.name()]);
        }
    }
}

#[test]
fn random_graphs_stay_sound() {
    let mut found = BTreeSet::new();
    for seed in 0..150 {
        let case = random_case(seed, 3 + seed as usize % 40, &f32_weight);
        found.extend(fused(&case.graph, Pattern::ALL));
        let reversed: Vec<Pattern> = Pattern::ALL.iter().rev().copied().collect();
        found.extend(fused(&case.graph, &reversed));
    }
    assert_eq!(found.len(), 5, "all but router_experts and low_rank_rows occur by chance: {found:?}");
}

#[test]
fn earlier_patterns_have_the_first_claim() {
    let case = graph(|b| {
        let x = b.rows(&[32]);
        let (gate, up) = (b.weight("gate", &[64, 32]), b.weight("up", &[64, 32]));
        let x = b.graph.rms_norm_unscaled(x, 1e-5);
        let (gate, up) = (b.graph.linear(x, gate), b.graph.linear(x, up));
        let gate = b.graph.unary(gate, Unary::Silu);
        vec![b.graph.mul(gate, up)]
    });
    assert_eq!(fused(&case, Pattern::ALL), ["gate_up_activation"]);
    assert_eq!(fused(&case, &[Pattern::NormLinear, Pattern::GateUpActivation]), ["norm_linear"]);
}

#[test]
fn values_needed_outside_are_not_fused_away() {
    // The normed row is an output itself.
    let normed = graph(|b| {
        let x = b.rows(&[32]);
        let w = b.weight("w", &[8, 32]);
        let x = b.graph.rms_norm_unscaled(x, 1e-5);
        vec![b.graph.linear(x, w), x]
    });
    // The product is read by another node too.
    let product = graph(|b| {
        let (x, h) = (b.rows(&[32]), b.rows(&[8]));
        let w = b.weight("w", &[8, 32]);
        let y = b.graph.linear(x, w);
        let sum = b.graph.add(h, y);
        vec![b.graph.mul(sum, y)]
    });
    // A third slice of the stacked layer.
    let slices = graph(|b| {
        let x = b.rows(&[32]);
        let w = b.weight("w", &[24, 32]);
        let y = b.graph.linear(x, w);
        let [gate, up, rest] = [0..8, 8..16, 16..24].map(|range| b.graph.slice(y, range));
        let gate = b.graph.unary(gate, Unary::Silu);
        let y = b.graph.mul(gate, up);
        vec![b.graph.add(y, rest)]
    });
    for graph in [normed, product, slices] {
        assert!(fused(&graph, Pattern::ALL).is_empty());
    }
}

#[test]
fn residual_may_be_either_operand_even_if_both_are_products() {
    let case = graph(|b| {
        let x = b.rows(&[32]);
        let (w, w2) = (b.weight("w", &[8, 32]), b.weight("w2", &[8, 32]));
        let (kept, y) = (b.graph.linear(x, w), b.graph.linear(x, w2));
        // `kept` is needed outside, so `y` is the product that disappears, whichever side it stands on.
        vec![b.graph.add(y, kept), kept]
    });
    assert_eq!(fused(&case, &[Pattern::LinearResidual]), ["linear_residual"]);
}

#[test]
fn a_group_that_would_wait_for_itself_is_refused() {
    // The rotated queries are first read by attention to another cache, whose result becomes the keys.
    let case = graph(|b| {
        let (x, frequencies) = (b.rows(&[2, 16]), b.frequencies(8));
        let spec = CacheSpec::new(2, 16, None);
        let (one, other) = (b.graph.cache(spec), b.graph.cache(spec));
        let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim: 16, magnitude: 1.0 };
        let attention =
            |cache| Attention { source: KvSource::Cache(cache), scale: 1.0, window: None, softcap: None };
        let positions = b.positions();
        b.graph.cache_write(x, x, one);
        let q = b.graph.rope(x, positions, frequencies, rope);
        let k = b.graph.attention(&[q], attention(one));
        let k = b.graph.rope(k, positions, frequencies, rope);
        b.graph.cache_write(k, x, other);
        vec![b.graph.attention(&[q], attention(other))]
    });
    assert!(fused(&case, Pattern::ALL).is_empty());
}

#[test]
fn a_fused_item_runs_after_everything_it_needs() {
    // The residual is made after the product, by nodes that stand between the group's.
    let case = graph(|b| {
        let x = b.rows(&[32]);
        let w = b.weight("w", &[32, 32]);
        let y = b.graph.linear(x, w);
        let residual = b.graph.unary(x, Unary::Tanh);
        vec![b.graph.add(residual, y)]
    });
    assert_eq!(fused(&case, &[Pattern::LinearResidual]), ["linear_residual"]);
}

#[test]
fn a_bias_goes_with_the_activation_behind_it_unless_the_sum_is_needed() {
    for is_needed in [false, true] {
        let case = graph(|b| {
            let x = b.rows(&[32]);
            let (w, bias) = (b.weight("w", &[8, 32]), b.bias("bias", 8));
            let y = b.graph.linear(x, w);
            let sum = b.graph.add(y, bias);
            let activated = b.graph.unary(sum, Unary::GeluErf);
            if is_needed { vec![activated, sum] } else { vec![activated] }
        });
        let schedule = Schedule::new(&case, Pattern::ALL);
        let fusions = schedule.items().iter().filter_map(|item| match item {
            Item::Fused(fused) => Some(&fused.fusion),
            Item::Single(_) => None,
        });
        let [Fusion::LinearActivation(fused)] = fusions.collect::<Vec<_>>()[..] else {
            panic!("{is_needed}: {:?}", schedule.items())
        };
        assert!(fused.layer.bias.is_some());
        assert_eq!(fused.activation, (!is_needed).then_some(Unary::GeluErf));
    }
}

#[test]
fn norms_over_all_heads_are_not_head_norms() {
    let case = graph(|b| {
        let (q, k, v) = (b.rows(&[32]), b.rows(&[32]), b.rows(&[2, 16]));
        let (q, k) = (b.graph.rms_norm_unscaled(q, 1e-5), b.graph.rms_norm_unscaled(k, 1e-5));
        let (q, k) = (b.graph.reshape(q, &[2, 16]), b.graph.reshape(k, &[2, 16]));
        let (positions, frequencies) = (b.positions(), b.frequencies(8));
        let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim: 16, magnitude: 1.0 };
        let (q, k) =
            (b.graph.rope(q, positions, frequencies, rope), b.graph.rope(k, positions, frequencies, rope));
        let cache = b.graph.cache(CacheSpec::new(2, 16, None));
        b.graph.cache_write(k, v, cache);
        let attention = Attention { source: KvSource::Cache(cache), scale: 1.0, window: None, softcap: None };
        vec![b.graph.attention(&[q], attention)]
    });
    let schedule = Schedule::new(&case, Pattern::ALL);
    let found = schedule.items().iter().find_map(|item| match item {
        Item::Fused(fused) => match &fused.fusion {
            Fusion::QkNormRopeCacheWrite(fusion) => Some((fusion.q_norm, fusion.k_norm, fused.outputs.len())),
            _ => None,
        },
        Item::Single(_) => None,
    });
    assert_eq!(found, Some((None, None, 1)));
}

#[test]
fn gate_and_up_know_their_rows() {
    let case = graph(|b| {
        let x = b.rows(&[32]);
        let w = b.weight("w", &[16, 32]);
        let y = b.graph.linear(x, w);
        let (up, gate) = (b.graph.slice(y, 0..8), b.graph.slice(y, 8..16));
        let gate = b.graph.unary(gate, Unary::GeluTanh);
        vec![b.graph.apply(Binary::Mul, &[up, gate])[0]]
    });
    let schedule = Schedule::new(&case, &[Pattern::GateUpActivation]);
    let Some(Item::Fused(fused)) = schedule.items().iter().find(|item| matches!(item, Item::Fused(_))) else {
        panic!("not fused")
    };
    let Fusion::GateUpActivation(fusion) = &fused.fusion else { panic!("{:?}", fused.fusion) };
    assert_eq!((fusion.gate.rows.clone(), fusion.up.rows.clone()), (8..16, 0..8));
    assert_eq!(fused.nodes.len(), 5);
    assert_eq!(fused.inputs.len(), 2);
}
