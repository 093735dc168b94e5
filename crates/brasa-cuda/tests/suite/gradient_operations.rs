//! Which operations compute the gradient of an adapted decoder.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::derivative::{Wrt, vjp};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::pass::{add_low_rank, attend_to_rows};
use brasa_graph::testing::{Decoder, Random, loss_of, random_adapter, training_step};

use crate::device::device;

/// The operations of a block's gradient, forward and backward, each with the weights that it multiplies.
fn labels(precision: Precision) -> Option<Vec<String>> {
    let device = device()?;
    let spec = Decoder { windows: vec![None; 2], head_norms: false, ..Decoder::small(StorageFormat::BF16) };
    let graph = spec.graph(5);
    let mut random = Random::new(3);
    let names = graph.weights().iter().filter(|w| w.name.contains("layers.") && w.shape.len() == 2);
    let mut adapters: Vec<_> =
        names.map(|w| random_adapter(&graph, &w.name, 0..w.shape[0], 4, 0.5, &mut random)).collect();
    for adapter in &mut adapters {
        (adapter.a.trainable, adapter.b.trainable) = (true, true);
    }
    let learned = loss_of(&attend_to_rows(&add_low_rank(&graph, &adapters).unwrap()).unwrap());
    let gradient = Arc::new(vjp(&learned, &Wrt::trainable(&learned)).unwrap().graph);
    let weights = device.upload(&gradient, precision, &mut |_| ControlFlow::Continue(())).unwrap();
    let limits = ProgramLimits { max_rows: 8, max_outs: 8, max_segments: 1 };
    let mut program = device.compile(Arc::clone(&gradient), weights, limits.into()).unwrap();
    let spec = KvPoolSpec::of(&gradient, KvType::F32);
    let mut pool = device.kv_pool(spec).unwrap();
    let times = program.profile(&training_step(&[5]), &mut *pool).unwrap();
    Some(times.into_iter().map(|time| time.label).collect())
}

fn count(labels: &[String], label: &str) -> usize {
    labels.iter().filter(|found| *found == label).count()
}

/// Each adapter goes with the product that it stands beside, forward and backward, and a loss with its gradient; what lies between products takes one
/// operation a gate and a norm.
#[test]
fn chains_of_a_gradient_are_one_operation_each() {
    let Some(labels) = labels(Precision::Fast) else { return };
    for layer in 0..2 {
        for weight in ["qkv", "o", "gate_up", "down"] {
            let name = format!("layers.{layer}.{weight}");
            assert_eq!(count(&labels, &format!("linear {name} + {name}.low_rank_b")), 1, "{labels:#?}");
            let first = layer == 0 && weight == "qkv";
            let transposed = format!("linear_transposed {name} + {name}.low_rank_a");
            assert_eq!(count(&labels, &transposed), usize::from(!first), "{labels:#?}");
        }
    }
    assert_eq!(["gated", "gated_gradient"].map(|label| count(&labels, label)), [2, 2], "{labels:#?}");
    assert_eq!(["silu", "unary_gradient silu"].map(|label| count(&labels, label)), [0, 0]);
    // An adapter's factor goes with its first product, and its gradient with the other side of the second.
    assert_eq!(["scale", "unary_gradient"].map(|label| count(&labels, label)), [0, 0], "{labels:#?}");
    // Adds: none is left of the residual stream or of an adapter. Products of each element: the scores' gradient alone.
    assert_eq!(["add", "mul"].map(|label| count(&labels, label)), [0, 0], "{labels:#?}");
    // Of three parts of a row of gradients, queries and keys are turned where they are joined; values are copied there.
    assert_eq!(["rope", "concat"].map(|label| count(&labels, label)), [8, 2], "{labels:#?}");
    // Norms, gates and their gradients write halves for the products behind them. What attention makes is rounded for them, and so are the gradients of the
    // last sum and of the second block's heads.
    assert_eq!(count(&labels, "round"), 4, "{labels:#?}");
    assert_eq!(count(&labels, "linear_cross_entropy embedding"), 1);
    assert_eq!(count(&labels, "linear_cross_entropy_gradient embedding"), 0, "scores are computed once");
}

/// Exact products stay what they are; chains are the same numbers.
#[test]
fn exact_gradients_keep_their_products() {
    let Some(labels) = labels(Precision::Reference) else { return };
    assert_eq!(count(&labels, "linear layers.0.down"), 1, "{labels:#?}");
    assert_eq!(count(&labels, "linear_cross_entropy_gradient embedding"), 1, "{labels:#?}");
    assert_eq!(count(&labels, "gated_gradient"), 2, "{labels:#?}");
}
