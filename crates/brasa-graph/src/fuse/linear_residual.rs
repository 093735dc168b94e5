//! A linear layer added to the residual stream, and the norm that follows.

use super::{Finder, Match, Norm, Projection};
use crate::op::Binary;
use crate::{NodeId, Op, ValueId};

/// `linear [→ + bias] → + residual`: `y = residual + x·Wᵀ + b`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearResidual {
    /// The layer's operand, `[R, K]`.
    pub x: ValueId,
    /// The layer.
    pub layer: Projection,
    /// What it is added to, `[R, N]`.
    pub residual: ValueId,
    /// The sum, `[R, N]`.
    pub y: ValueId,
}

/// [`LinearResidual`] `→ rms_norm`: the new residual and the next layer's normed input in one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearResidualNorm {
    /// The sum; `sum.y` is written only where it is among the item's outputs.
    pub sum: LinearResidual,
    /// The norm of the sum.
    pub norm: Norm,
    /// The normed sum, `[R, N]`.
    pub y: ValueId,
}

impl LinearResidual {
    /// Anchored at the addition.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let (fusion, nodes) = Self::parts(finder, anchor)?;
        let outputs = vec![fusion.y];
        Some(Match { fusion: fusion.into(), nodes, outputs })
    }

    fn parts(finder: &Finder, anchor: NodeId) -> Option<(Self, Vec<NodeId>)> {
        let node = finder.node(anchor);
        let (Op::Binary(Binary::Add), &[a, b]) = (&node.op, &node.inputs[..]) else { return None };
        if a == b || !finder.same_shape(a, b) {
            return None;
        }
        [(b, a), (a, b)].into_iter().find_map(|(product, residual)| {
            let mut nodes = vec![anchor];
            let (x, layer) = finder.projection(product, &mut nodes)?;
            let whole = finder.graph().value(layer.w).shape.outer().constant()? == layer.rows.len();
            // A product that others read stays: the other operand may be the one.
            let inner = nodes[1..].iter().flat_map(|&node| &finder.node(node).outputs);
            let private = inner.copied().all(|value| finder.sole_user(value).is_some());
            (whole && private).then_some((Self { x, layer, residual, y: node.outputs[0] }, nodes))
        })
    }
}

impl LinearResidualNorm {
    /// Anchored at the norm.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let Op::RmsNorm(_) = finder.node(anchor).op else { return None };
        let y = finder.node(anchor).outputs[0];
        let (_, h, norm) = finder.rms_norm(y)?;
        let (add, _) = finder.maker(h)?;
        let (sum, mut nodes) = LinearResidual::parts(finder, add)?;
        nodes.push(anchor);
        Some(Match { outputs: vec![sum.y, y], fusion: Self { sum, norm, y }.into(), nodes })
    }
}
