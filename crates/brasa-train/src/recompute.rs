//! Which results of a decoder are recomputed for the gradient instead of kept (Chen et al. 2016, arXiv:1604.06174).

use std::collections::BTreeSet;

use brasa_graph::op::{Binary, Unary};
use brasa_graph::{DType, Graph, Op, ValueId, ValueKind};

/// Which results of a model's blocks are kept for the gradient, and which are computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// All results are kept for the gradient.
    #[default]
    Kept,
    /// Results of products and of attention are kept; norms, rotated heads and gates, which cost little, are computed again with
    /// the same bits (Korthikanti et al. 2022, arXiv:2205.05198).
    Products,
    /// Only the sums of the residual stream are kept. All other results of a block are computed again, with the same bits.
    Recomputed,
}

impl Activations {
    /// The results of a decoder's blocks that are recomputed. Results after the blocks are not included, since the head and the
    /// loss are one operation with its own gradient. Empty for a graph without a token embedding.
    pub(crate) fn recomputed(self, graph: &Graph) -> Vec<ValueId> {
        let Some(stream) = Stream::of(graph) else { return Vec::new() };
        let blocks = &graph.nodes()[..stream.last];
        let nodes = blocks.iter().filter(|node| match self {
            Self::Kept => false,
            Self::Products => is_cheap(&node.op),
            Self::Recomputed => true,
        });
        let results = nodes.flat_map(|node| node.outputs.iter().copied());
        results.filter(|id| !stream.sums.contains(id) && graph.value(*id).dtype == DType::F32).collect()
    }
}

/// True for an operation on the elements of a row that costs little. A sum counts as costly, because a term may be a product.
fn is_cheap(op: &Op) -> bool {
    match op {
        Op::Binary(binary) => *binary != Binary::Add,
        Op::RmsNorm(_) | Op::LayerNorm(_) | Op::Unary(_) | Op::Rope(_) | Op::Slice(_) | Op::Reshape(_) => {
            true
        }
        _ => false,
    }
}

/// The residual stream of a decoder.
struct Stream {
    sums: BTreeSet<ValueId>,
    /// The number of the node that makes the stream's last sum.
    last: usize,
}

impl Stream {
    fn of(graph: &Graph) -> Option<Self> {
        let embedding = graph.token_embedding()?;
        let first = graph.node(embedding).outputs[0];
        let shape = &graph.value(first).shape;
        let mut stream = Self { sums: BTreeSet::from([first]), last: embedding.0 as usize };
        for (number, node) in graph.nodes().iter().enumerate() {
            let goes_on = match node.op {
                // A weight that is added is a bias, not what a block gives.
                Op::Binary(Binary::Add) => !node.inputs.iter().any(|&input| is_weight(graph, input)),
                Op::Unary(Unary::Scale(_)) => true,
                _ => false,
            };
            let of_stream = node.inputs.iter().any(|input| stream.sums.contains(input));
            if goes_on && of_stream && graph.value(node.outputs[0]).shape == *shape {
                stream.sums.insert(node.outputs[0]);
                stream.last = number;
            }
        }
        Some(stream)
    }
}

fn is_weight(graph: &Graph, id: ValueId) -> bool {
    matches!(graph.value(id).kind, ValueKind::Weight(_))
}
