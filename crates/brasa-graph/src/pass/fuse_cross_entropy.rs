//! A language model's loss from hidden states.

use crate::fuse::Finder;
use crate::op::{LinearCrossEntropy, Unary};
use crate::{Change, Graph, Op, ValueId, pass, rewrite};

/// Replaces each cross-entropy of a linear layer, soft-capped or not, by a [`LinearCrossEntropy`], if its logits have no other use.
/// Neither the loss nor its gradient then needs the logits of all rows.
///
/// All remaining values keep their ids.
///
/// # Panics
///
/// If the nodes of `graph` are not in a valid order: a bug of this crate.
pub fn fuse_cross_entropy(graph: &Graph) -> Graph {
    let finder = Finder::new(graph);
    let fused = rewrite(graph, |builder, node, operands| {
        if let (Op::CrossEntropy(_), &[logits, _]) = (&node.op, &node.inputs[..])
            && let Some((x, w, softcap)) = head(&finder, graph, logits)
        {
            Change::Replace(builder.apply(LinearCrossEntropy { softcap }, &[x, w, operands[1]]))
        } else {
            Change::Keep
        }
    });
    pass::prune(&fused.expect("the operands of a head fit its loss"))
}

/// The hidden states, the head's weight and the soft-cap that make `logits`, if a single node reads `logits`.
fn head(finder: &Finder, graph: &Graph, logits: ValueId) -> Option<(ValueId, ValueId, Option<f32>)> {
    finder.sole_user(logits)?;
    let maker = graph.node(graph.producer(logits)?);
    match (&maker.op, &maker.inputs[..]) {
        (Op::Linear(_), &[x, w]) if graph.value(x).shape.rank() == 2 => Some((x, w, None)),
        (&Op::Unary(Unary::Softcap(cap)), &[scores]) => match head(finder, graph, scores)? {
            (x, w, None) => Some((x, w, Some(cap))),
            _ => None,
        },
        _ => None,
    }
}
