//! A linear layer added to the residual stream.

use super::{Finder, Match, Projection};
use crate::op::Binary;
use crate::{NodeId, Op, ValueId};

/// `linear [→ + bias] → + residual`: `y = residual + x·Wᵀ + b`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearResidual {
    /// The layer's operand, `[R, K]`.
    pub x: ValueId,
    /// The layer.
    pub layer: Projection,
    /// The value that the layer's result is added to, `[R, N]`.
    pub residual: ValueId,
    /// The sum, `[R, N]`.
    pub y: ValueId,
}

impl LinearResidual {
    /// Finds the pattern from the addition.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
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
            let y = node.outputs[0];
            (whole && private).then(|| Match {
                fusion: Self { x, layer, residual, y }.into(),
                nodes,
                outputs: vec![y],
            })
        })
    }
}
