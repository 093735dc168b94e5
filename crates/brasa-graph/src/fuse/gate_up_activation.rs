//! The gated half of a feed-forward layer.

use super::{Finder, Match, Projection};
use crate::op::GatedUnit;
use crate::{NodeId, ValueId};

/// Gate and up projections with their gated unit: `y = unit(x·Wgᵀ, x·Wuᵀ)`.
///
/// Replaces `linear → slices → act → mul`; a clamped unit has `clamped_unit` in place of `act → mul`. Gate and up are
/// stacked in one weight, in either order, or have a weight each. A kernel reads `x` once, with paired rows of the
/// weights.
///
/// Shazeer 2020, arXiv:2002.05202.
#[derive(Clone, Debug, PartialEq)]
pub struct GateUpActivation {
    /// The layers' operand, `[R, K]`.
    pub x: ValueId,
    /// The layer that makes the gate.
    pub gate: Projection,
    /// The layer that makes `up`, the second operand of the unit.
    pub up: Projection,
    /// The function that joins gate and up.
    pub unit: GatedUnit,
    /// The result, `[R, F]`.
    pub y: ValueId,
}

impl GateUpActivation {
    /// Finds the pattern from the last operation of the unit.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let y = finder.node(anchor).outputs.first().copied()?;
        finder.gated(anchor).find_map(|gated| {
            let (unit, mut nodes) = (gated.unit, gated.nodes);
            let (x, gate) = finder.projection(gated.gate, &mut nodes)?;
            let (up_x, up) = finder.projection(gated.up, &mut nodes)?;
            let paired = x == up_x && gate.rows.len() == up.rows.len();
            let fusion = Self { x, gate, up, unit, y };
            paired.then_some(Match { fusion: fusion.into(), nodes, outputs: vec![y] })
        })
    }
}
