//! A decoder with low-rank adapters beside its weights: near merged weights, on the device and on the reference.

use std::sync::Arc;

use crate::common::running::{Running, device, exact, tokens};
use brasa_formats::StorageFormat;
use brasa_graph::Graph;
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::pass::{LowRank, add_low_rank};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::Decoder;
use brasa_graph::testing::{Comparison, Random, check_bank, compare, merged, random_adapter};

/// Adapters of every projection of the small decoder: stacks in parts, other layers whole.
fn adapters(graph: &Graph) -> Vec<LowRank> {
    let mut random = Random::new(11);
    let mut all = Vec::new();
    for layer in 0..2 {
        let projections = [
            ("qkv", 0..256, 8),
            ("qkv", 256..320, 8),
            ("qkv", 320..384, 4),
            ("o", 0..256, 16),
            ("gate_up", 0..512, 8),
            ("gate_up", 512..1024, 8),
            ("down", 0..256, 5),
        ];
        for (name, rows, rank) in projections {
            let name = format!("layers.{layer}.{name}");
            let scale = if rank == 4 { 0.3 } else { 0.2 };
            all.push(random_adapter(graph, &name, rows, rank, scale, &mut random));
        }
    }
    all
}

/// Logits of two prompts together, then of single rows.
fn logits(backend: &dyn Backend, graph: Graph, precision: Precision) -> Vec<f32> {
    let mut running = Running::new(backend, &Arc::new(graph), precision, KvType::F32);
    let (text, other) = (tokens(40, 1), tokens(5, 2));
    let prompts = running.step(&[(1, &text), (2, &other)]);
    [prompts, running.step(&[(2, &text[..1]), (1, &other[..1])])].concat()
}

fn worst(comparison: &Comparison) -> f32 {
    (comparison.found - comparison.expected).abs() / comparison.max_magnitude
}

#[test]
fn adapters_beside_weights_equal_merged_weights() {
    for format in [StorageFormat::F32, StorageFormat::Q4_K] {
        let graph = Decoder::small(format).graph(7);
        let adapters = adapters(&graph);
        let (beside, merged) = (add_low_rank(&graph, &adapters).unwrap(), merged(&graph, &adapters));
        let cpu = device(2, exact());
        let devices: [&dyn Backend; 2] = [&ReferenceBackend, &cpu];
        for backend in devices {
            let run = |graph: &Graph| logits(backend, graph.clone(), Precision::Reference);
            let comparison = compare(&run(&beside), &run(&merged));
            let label = format!("{format} on {}", backend.info().name);
            assert!(comparison.relative_l2 < 1e-5 && worst(&comparison) < 1e-5, "{label}: {comparison}");
            let unadapted = compare(&run(&graph), &run(&merged));
            assert!(unadapted.relative_l2 > 1e-2, "{label}: the adapters change something: {unadapted}");
        }
    }
}

/// Rows of one step with other adapters, places in the bank, and an adapter whose products are infinite.
#[test]
fn rows_of_a_bank_are_those_of_their_own_adapters_alone() {
    for (format, precision) in [
        (StorageFormat::Q4_K, Precision::Fast),
        (StorageFormat::BF16, Precision::Fast),
        (StorageFormat::Q4_K, Precision::Reference),
    ] {
        for threads in [1, 3] {
            check_bank(&device(threads, exact()), precision, &Decoder::small(format));
        }
    }
    check_bank(&ReferenceBackend, Precision::Reference, &Decoder::small(StorageFormat::F32));
}

/// Fast arithmetic rounds activations, of the adapters' products too.
#[test]
fn adapters_stay_within_the_bound_of_int8_activations() {
    let graph = Decoder::small(StorageFormat::Q4_K).graph(7);
    let adapters = adapters(&graph);
    let expected = logits(&ReferenceBackend, merged(&graph, &adapters), Precision::Reference);
    let found = logits(&device(2, exact()), add_low_rank(&graph, &adapters).unwrap(), Precision::Fast);
    let comparison = compare(&found, &expected);
    assert!(comparison.relative_l2 < 3e-2, "{comparison}");
}
