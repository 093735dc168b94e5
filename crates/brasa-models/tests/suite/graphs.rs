//! Graphs as they are printed, and which of their parts fuse.

use brasa_golden::{folder, load_strictly};
use brasa_graph::fuse::Pattern;
use brasa_graph::{Item, Schedule, print};

fn graph(name: &str) -> brasa_graph::Graph {
    load_strictly(&folder("random").join(name), None).graph
}

#[test]
fn qwen3() {
    insta::assert_snapshot!(print::graph(&graph("qwen3")));
}

#[test]
fn gemma4_with_experts() {
    insta::assert_snapshot!(print::graph(&graph("gemma4-moe")));
}

#[test]
fn gemma4_with_shared_caches_and_per_layer_inputs() {
    insta::assert_snapshot!(print::graph(&graph("gemma4")));
}

/// Every layer's projections, gated network or experts, and everything before the cache run as one operation each.
#[test]
fn layers_fuse() {
    for (name, layers, own_kv) in [
        ("llama31", 2, 2),
        ("qwen2", 2, 2),
        ("qwen3", 2, 2),
        ("mixtral", 2, 2),
        ("qwen3moe", 2, 2),
        ("gemma", 2, 2),
        ("gemma2", 3, 3),
        ("gemma3", 3, 3),
        ("gemma4", 4, 2),
        ("gemma4-moe", 2, 2),
        ("gemma4-keys-are-values", 3, 3),
        ("phi3", 2, 2),
    ] {
        let graph = graph(name);
        let schedule = Schedule::new(&graph, Pattern::ALL);
        let count = |pattern: Pattern| {
            let is = |item: &&Item| matches!(item, Item::Fused(fused) if fused.fusion.pattern() == pattern);
            schedule.items().iter().filter(is).count()
        };
        assert_eq!(count(Pattern::QkNormRopeCacheWrite), own_kv, "{name}");
        let networks = count(Pattern::GateUpActivation).max(count(Pattern::RouterExperts));
        assert_eq!(networks, layers, "{name}");
    }
}
