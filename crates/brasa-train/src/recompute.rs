//! Which results of a decoder are computed again for the gradient, so that they need not be kept (Chen et al. 2016, arXiv:1604.06174).

use std::collections::BTreeSet;

use brasa_graph::op::{Binary, Unary};
use brasa_graph::{DType, Graph, Op, ValueId, ValueKind};

/// Whether the results of a model's blocks are kept for the gradient or computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// They are kept.
    #[default]
    Kept,
    /// Only the sums of the residual stream are kept; all else of a block is computed again, with the same bits.
    Recomputed,
}

/// The results that lie between the sums of the residual stream; none without a token embedding.
pub(crate) fn between_residuals(graph: &Graph) -> Vec<ValueId> {
    let Some(embedding) = graph.token_embedding() else { return Vec::new() };
    let first = graph.node(embedding).outputs[0];
    let shape = &graph.value(first).shape;
    let mut stream = BTreeSet::from([first]);
    let mut last = embedding.0 as usize;
    for (number, node) in graph.nodes().iter().enumerate() {
        let goes_on = match node.op {
            // A weight that is added is a bias, not what a block gives.
            Op::Binary(Binary::Add) => !node.inputs.iter().any(|&input| is_weight(graph, input)),
            Op::Unary(Unary::Scale(_)) => true,
            _ => false,
        };
        let of_stream = node.inputs.iter().any(|input| stream.contains(input));
        if goes_on && of_stream && graph.value(node.outputs[0]).shape == *shape {
            stream.insert(node.outputs[0]);
            last = number;
        }
    }
    let results = graph.nodes()[..last].iter().flat_map(|node| node.outputs.iter().copied());
    results.filter(|id| !stream.contains(id) && graph.value(*id).dtype == DType::F32).collect()
}

fn is_weight(graph: &Graph, id: ValueId) -> bool {
    matches!(graph.value(id).kind, ValueKind::Weight(_))
}
