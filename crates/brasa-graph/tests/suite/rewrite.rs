//! Graphs made from graphs: what stays, what is computed, what is refused.

use brasa_graph::fuse::Pattern;
use brasa_graph::op::{Op, Unary};
use brasa_graph::pass::prune;
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{Case, CaseBuilder, f32_weight, random_case, rewritten, run_case};
use brasa_graph::{
    Builder, CacheSpec, Change, Graph, GraphError, Node, Schedule, Value, ValueId, ValueKind, print, rewrite,
};

fn small(build: impl FnOnce(&mut CaseBuilder) -> Vec<ValueId>) -> Graph {
    Case::new("rewrite", 1, &f32_weight, build).graph
}

/// `tanh(x) · 2 + x`, of rows of 32.
fn chain() -> Graph {
    small(|b| {
        let x = b.rows(&[32]);
        let y = b.graph.unary(x, Unary::Tanh);
        let y = b.graph.scale(y, 2.0);
        vec![b.graph.add(y, x)]
    })
}

fn is(node: &Node, function: Unary) -> bool {
    node.op == Op::Unary(function)
}

fn refusal(change: impl FnMut(&mut Builder, &Node, &[ValueId]) -> Change) -> GraphError {
    rewrite(&chain(), change).unwrap_err()
}

fn assert_equal(a: &Graph, b: &Graph, what: &str) {
    assert_eq!(print::graph(a), print::graph(b), "{what}");
    assert_eq!((a.values(), a.nodes(), a.outputs()), (b.values(), b.nodes(), b.outputs()), "{what}");
    assert_eq!(a.cache_groups(), b.cache_groups(), "{what}");
}

#[test]
fn keeping_everything_gives_the_graph() {
    for seed in 0..60 {
        let case = random_case(seed, 5 + seed as usize, &f32_weight);
        let same = rewrite(&case.graph, |_, _, _| Change::Keep).unwrap();
        assert_equal(&same, &case.graph, &format!("seed {seed}"));
    }
}

#[test]
fn random_rewrites_compute_the_same() {
    let mut redirected = 0;
    for seed in 0..60 {
        let case = random_case(seed, 4 + seed as usize % 30, &f32_weight);
        let other = rewritten(&case, seed);
        assert_eq!(run_case(&ReferenceBackend, &other).unwrap(), run_case(&ReferenceBackend, &case).unwrap());
        let (old, new) = (&case.graph, &other.graph);
        redirected += usize::from(old.outputs() != new.outputs());
        // Weights and caches keep their ids, values their types, and nodes that stayed their results.
        for (a, b) in old.weights().iter().zip(new.weights()) {
            assert_eq!((&a.name, &a.shape), (&b.name, &b.shape), "seed {seed}");
        }
        assert_eq!(old.cache_groups(), new.cache_groups(), "seed {seed}");
        for (id, (a, b)) in old.values().iter().zip(new.values()).enumerate() {
            assert_eq!((a.dtype, &a.shape), (b.dtype, &b.shape), "seed {seed}, value {id}");
            let made = |value: &Value| matches!(value.kind, ValueKind::Temporary(_) | ValueKind::Removed);
            assert!(a.kind == b.kind || made(a) && made(b), "seed {seed}, value {id}");
        }
        for graph in [new, &prune(new)] {
            let used = graph.nodes().iter().flat_map(|node| &node.inputs).chain(graph.outputs());
            assert!(used.copied().all(|id| graph.value(id).kind != ValueKind::Removed), "seed {seed}");
            assert_eq!(Schedule::new(graph, &[]).items().len(), graph.nodes().len());
            assert!(Schedule::new(graph, Pattern::ALL).items().len() <= graph.nodes().len());
        }
    }
    assert!((1..60).contains(&redirected), "outputs of {redirected} graphs are redirected");
}

#[test]
fn what_stays_keeps_its_ids_and_new_weights_and_caches_come_after() {
    let graph = small(|b| {
        let x = b.rows(&[32]);
        let w = b.weight("w", &[32, 32]);
        let cache = b.graph.cache(CacheSpec::new(1, 32, None));
        let y = b.graph.linear(x, w);
        let heads = b.graph.reshape(y, &[1, 32]);
        b.graph.cache_write(heads, heads, cache);
        vec![b.graph.scale(y, 3.0)]
    });
    let mut added = None;
    let new = rewrite(&graph, |builder, node, operands| {
        if !is(node, Unary::Scale(3.0)) {
            return Change::Keep;
        }
        let memory = builder.memory(1, 32);
        let bias = builder.weight(Ok(brasa_graph::testing::weight("bias", &[32], &[0.5; 32])));
        added = Some((memory, bias));
        let scaled = builder.scale(operands[0], 3.0);
        Change::Replace(vec![builder.add(scaled, bias)])
    })
    .unwrap();
    let (memory, bias) = added.unwrap();
    let (old_nodes, new_nodes) = (graph.nodes(), new.nodes());
    let last = old_nodes.len() - 1;
    assert_eq!(new_nodes[..last], old_nodes[..last]);
    assert_eq!(new.outputs(), graph.outputs());
    let scaled = new_nodes[last].outputs[0];
    assert_eq!(new_nodes[last + 1].inputs, [scaled, bias]);
    assert_eq!(new_nodes[last + 1].outputs, graph.outputs());
    assert!([bias, scaled].iter().all(|id| id.0 as usize >= graph.values().len()));
    assert_eq!(new.weights().len(), graph.weights().len() + 1);
    assert_eq!(new.value(bias).kind, ValueKind::Weight(brasa_graph::WeightId(graph.weights().len() as u32)));
    assert_eq!(new.cache_groups()[..1], graph.cache_groups());
    assert_eq!((new.cache_groups().len(), new.memory(memory).key_dim), (2, 32));
}

#[test]
fn an_older_value_may_stand_for_a_result() {
    let graph = chain();
    let [_, tanh, scale, add] = graph.nodes() else { panic!("four nodes") };
    let new = rewrite(&graph, |_, node, operands| {
        if is(node, Unary::Scale(2.0)) { Change::Replace(operands.to_vec()) } else { Change::Keep }
    })
    .unwrap();
    assert_eq!(new.value(scale.outputs[0]).kind, ValueKind::Removed);
    assert_eq!(new.nodes().len(), 3);
    assert_eq!(new.nodes()[2].inputs, [tanh.outputs[0], add.inputs[1]]);
    // The graph's outputs follow.
    let short = graph.clone().returning(&scale.outputs.clone());
    let new = rewrite(&short, |_, node, operands| {
        if is(node, Unary::Scale(2.0)) { Change::Replace(operands.to_vec()) } else { Change::Keep }
    })
    .unwrap();
    assert_eq!(new.outputs(), tanh.outputs);
}

#[test]
fn one_value_may_stand_for_two_results_and_be_read_inside() {
    let graph = small(|b| {
        let x = b.rows(&[32]);
        let w = b.weight("w", &[4, 32]);
        let logits = b.graph.linear(x, w);
        let top_k = brasa_graph::op::RouterTopK { k: 2, gating: brasa_graph::op::Gating::SOFTMAX_CHOSEN };
        let (_, weights) = b.graph.router_topk(logits, top_k);
        let doubled = b.graph.scale(weights, 2.0);
        vec![b.graph.add(doubled, weights)]
    });
    let mut inner = Vec::new();
    let new = rewrite(&graph, |builder, node, operands| match &node.op {
        Op::RouterTopK(_) => {
            let results = builder.apply(node.op.clone(), operands);
            // Nobody reads this, but it is built on what gets another id.
            inner = vec![results[1], builder.scale(results[1], 5.0)];
            Change::Replace(results)
        }
        _ => Change::Keep,
    })
    .unwrap();
    let router = graph.nodes().iter().find(|node| matches!(node.op, Op::RouterTopK(_))).unwrap();
    let reader = new.nodes().iter().find(|node| is(node, Unary::Scale(5.0))).unwrap();
    assert_eq!((&reader.inputs[..], reader.outputs[0]), (&router.outputs[1..], inner[1]));
    assert_eq!(new.value(inner[0]).kind, ValueKind::Removed);
    assert_equal(&prune(&new).returning(graph.outputs()), &prune(&new), "outputs stay");
    assert_eq!(prune(&new).nodes(), graph.nodes());
}

#[test]
fn two_results_may_share_a_value() {
    let graph = small(|b| {
        let x = b.rows(&[32]);
        let (a, c) = (b.graph.unary(x, Unary::Tanh), b.graph.unary(x, Unary::Tanh));
        vec![b.graph.add(a, c)]
    });
    // The second is the first.
    let mut first = None;
    let new = rewrite(&graph, |_, node, _| match (is(node, Unary::Tanh), first) {
        (true, Some(first)) => Change::Replace(vec![first]),
        (true, None) => {
            first = Some(node.outputs[0]);
            Change::Keep
        }
        _ => Change::Keep,
    })
    .unwrap();
    assert_eq!(new.nodes().len(), graph.nodes().len() - 1);
    assert_eq!(new.nodes().last().unwrap().inputs, [first.unwrap(); 2]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let narrower = refusal(|builder, node, operands| match node.op {
        Op::Unary(Unary::Tanh) => Change::Replace(vec![builder.slice(operands[0], 0..16)]),
        _ => Change::Keep,
    });
    assert_eq!(
        narrower.to_string(),
        "rewrite: tanh makes %4 f32[rows, 32], its replacement is %7 f32[rows, 16]"
    );
    let too_many = refusal(|_, node, operands| match node.op {
        Op::Unary(Unary::Tanh) => Change::Replace(vec![operands[0]; 2]),
        _ => Change::Keep,
    });
    assert_eq!(too_many.to_string(), "rewrite: tanh is replaced by 2 values, expected 1");
    let needed = refusal(|_, node, _| if is(node, Unary::Tanh) { Change::Remove } else { Change::Keep });
    assert_eq!(needed.to_string(), "rewrite: %4 is removed, but needed by scale");
    let output = refusal(|_, node, _| if node.op.name() == "add" { Change::Remove } else { Change::Keep });
    assert_eq!(output.to_string(), "rewrite: %6 is removed, but needed as an output of the graph");
    let later = refusal(|builder, node, operands| match node.op {
        Op::Unary(Unary::Tanh) => Change::Replace(vec![builder.add(operands[0], ValueId(6))]),
        _ => Change::Keep,
    });
    assert_eq!(later.to_string(), "add: no node before it makes %6, operands f32[rows, 32], f32[rows, 32]");
    let itself = refusal(|_, node, _| Change::Replace(node.outputs.clone()));
    assert_eq!(itself.to_string(), "rewrite: %3 is removed, but needed as the replacement of embed");
    let mut stale = None;
    let kept_an_old_id = refusal(|builder, node, operands| match (&node.op, stale) {
        (Op::Unary(Unary::Tanh), _) => {
            stale = Some(builder.unary(operands[0], Unary::Sigmoid));
            Change::Replace(stale.into_iter().collect())
        }
        (Op::Binary(_), Some(stale)) => Change::Replace(vec![builder.scale(stale, 2.0)]),
        _ => Change::Keep,
    });
    assert_eq!(kept_an_old_id.to_string(), "scale: no node before it makes %7, operands f32[rows, 32]");
    let foreign =
        refusal(
            |_, node, _| {
                if is(node, Unary::Tanh) { Change::Replace(vec![ValueId(99)]) } else { Change::Keep }
            },
        );
    assert_eq!(foreign.to_string(), "rewrite: %99 is removed, but needed as the replacement of tanh");
}

#[test]
#[should_panic(expected = "%4 was removed")]
fn a_removed_value_cannot_be_returned() {
    let graph = chain().returning(&[ValueId(3)]);
    let _ = prune(&graph).returning(&[ValueId(4)]);
}

#[test]
fn pruning_drops_what_nothing_needs() {
    let graph = small(|b| {
        let x = b.rows(&[32]);
        let cache = b.graph.cache(CacheSpec::new(2, 16, None));
        let heads = b.graph.reshape(x, &[2, 16]);
        let written = b.graph.unary(heads, Unary::Tanh);
        b.graph.cache_write(written, heads, cache);
        let dead = b.graph.unary(x, Unary::Silu);
        b.graph.scale(dead, 2.0);
        vec![b.graph.scale(x, 3.0)]
    });
    let names: Vec<String> = prune(&graph).nodes().iter().map(|node| node.op.name().into()).collect();
    assert_eq!(names, ["embed", "reshape", "tanh", "cache_write", "scale"]);
    assert_equal(&prune(&prune(&graph)), &prune(&graph), "pruned twice");
    for seed in 0..60 {
        let case = random_case(seed, 10 + seed as usize % 30, &f32_weight);
        let pruned = Case { graph: prune(&case.graph), ..case.clone() };
        assert_eq!(
            run_case(&ReferenceBackend, &pruned).unwrap(),
            run_case(&ReferenceBackend, &case).unwrap()
        );
        let writes = |node: &Node| matches!(node.op, Op::CacheWrite(_) | Op::MemoryWrite(_));
        for (number, node) in pruned.graph.nodes().iter().enumerate() {
            let later = pruned.graph.nodes()[number..].iter().flat_map(|node| &node.inputs);
            let read = later.chain(pruned.graph.outputs()).any(|id| node.outputs.contains(id));
            assert!(read || writes(node), "seed {seed}, node {number}");
        }
    }
}
