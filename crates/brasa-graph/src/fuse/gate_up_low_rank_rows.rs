//! The gated half of a feed-forward layer with a low-rank product of an adapter bank.

use super::{Finder, Fusion, LinearLowRankRows, Match};
use crate::op::{Binary, GatedUnit, Unary};
use crate::{NodeId, Op, ValueId};

/// `y = act(g) · u`, where `g` and `u` are the halves of `x·Wᵀ + (s ∘ x·Aᵀ)·Bᵀ`: a [`GateUpActivation`](super::GateUpActivation)
/// with a [`LinearLowRankRows`] in place of the linear layer.
#[derive(Clone, Debug, PartialEq)]
pub struct GateUpLowRankRows {
    /// The sum of the layer's product and the low-rank product.
    pub of: LinearLowRankRows,
    /// The half that the activation is applied to, a view of the sum.
    pub gate: ValueId,
    /// The half that the activated half is multiplied with, a view of the sum.
    pub up: ValueId,
    /// SiLU or GELU.
    pub activation: Unary,
    /// The product of the halves, `[R, F]`.
    pub y: ValueId,
}

impl GateUpLowRankRows {
    /// Finds the pattern from the multiplication.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let node = finder.node(anchor);
        let (Op::Binary(Binary::Mul), &[a, b]) = (&node.op, &node.inputs[..]) else { return None };
        if !finder.same_shape(a, b) {
            return None;
        }
        [(a, b), (b, a)].into_iter().find_map(|(activated, up)| {
            let (act, activation, gate) = finder.activation(activated)?;
            GatedUnit::of(activation)?;
            let mut nodes = vec![anchor, act];
            let (sum, _) = finder.maker_behind_views(gate, &mut nodes)?;
            let (other, _) = finder.maker_behind_views(up, &mut nodes)?;
            if sum != other {
                return None;
            }
            let found = LinearLowRankRows::find(finder, sum)?;
            let Fusion::LinearLowRankRows(of) = found.fusion else { return None };
            nodes.extend(found.nodes);
            let y = node.outputs[0];
            Some(Match { fusion: Self { of, gate, up, activation, y }.into(), nodes, outputs: vec![y] })
        })
    }
}
