//! Greedy decoding without writing the logits.

use super::{Finder, Match};
use crate::op::Unary;
use crate::{NodeId, Op, ValueId};

/// `linear [→ softcap] → argmax`: the most likely token of each row; the logits need no memory.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitsArgmax {
    /// The last hidden states, `[O, K]`.
    pub x: ValueId,
    /// The head, `[V, K]`.
    pub w: ValueId,
    /// Soft-cap of the logits. It is monotonic but rounds, so it may create ties, which go to the lowest id.
    pub softcap: Option<f32>,
    /// Token ids, `[O]` u32.
    pub y: ValueId,
}

impl LogitsArgmax {
    /// Anchored at the argmax.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let node = finder.node(anchor);
        let (Op::Argmax(_), &[logits]) = (&node.op, &node.inputs[..]) else { return None };
        let mut nodes = vec![anchor];
        let (mut id, mut maker) = finder.maker(logits)?;
        let mut softcap = None;
        if let Op::Unary(Unary::Softcap(cap)) = maker.op {
            nodes.push(id);
            softcap = Some(cap);
            (id, maker) = finder.maker(maker.inputs[0])?;
        }
        let (Op::Linear(_), &[x, w]) = (&maker.op, &maker.inputs[..]) else { return None };
        nodes.push(id);
        let y = node.outputs[0];
        Some(Match { fusion: Self { x, w, softcap, y }.into(), nodes, outputs: vec![y] })
    }
}
