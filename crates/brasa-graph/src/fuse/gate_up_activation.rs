//! The gated half of a feed-forward layer.

use super::{Finder, Match, Projection};
use crate::op::{Binary, Unary};
use crate::{NodeId, Op, ValueId};

/// `y = act(x·Wgᵀ) · (x·Wuᵀ)`: `linear → slices → act → mul` with gate and up stacked in one weight (in either order), or in two
/// weights. A kernel reads `x` once, with paired rows of the weights.
///
/// Shazeer 2020, arXiv:2002.05202.
#[derive(Clone, Debug, PartialEq)]
pub struct GateUpActivation {
    /// The layers' operand, `[R, K]`.
    pub x: ValueId,
    /// The layer whose result goes through the activation.
    pub gate: Projection,
    /// The layer that the activated result is multiplied with.
    pub up: Projection,
    /// SiLU or GELU.
    pub activation: Unary,
    /// The product, `[R, F]`.
    pub y: ValueId,
}

impl GateUpActivation {
    /// Finds the pattern from the multiplication.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let node = finder.node(anchor);
        let (Op::Binary(Binary::Mul), &[a, b]) = (&node.op, &node.inputs[..]) else { return None };
        if !finder.same_shape(a, b) {
            return None;
        }
        [(a, b), (b, a)].into_iter().find_map(|(activated, up)| {
            let (act, activation, gate) = finder.activation(activated)?;
            let mut nodes = vec![anchor, act];
            let (x, gate) = finder.projection(gate, &mut nodes)?;
            let (up_x, up) = finder.projection(up, &mut nodes)?;
            let (y, paired) = (node.outputs[0], x == up_x && gate.rows.len() == up.rows.len());
            let fusion = Self { x, gate, up, activation, y };
            paired.then_some(Match { fusion: fusion.into(), nodes, outputs: vec![y] })
        })
    }
}
