//! A norm and the linear layers that read it.

use super::{Finder, Match, Norm, Projection};
use crate::op::Binary;
use crate::{NodeId, Op, ValueId};

/// `rms_norm → linear [→ + bias]`, for every linear layer that reads the norm: stacked or separate Q, K and V.
///
/// The normed row is not stored, and a device that quantises activations does so once.
#[derive(Clone, Debug, PartialEq)]
pub struct NormLinear {
    /// The norm's operand, `[R, K]`.
    pub x: ValueId,
    /// The norm.
    pub norm: Norm,
    /// Each layer and its result.
    pub layers: Vec<(Projection, ValueId)>,
}

impl NormLinear {
    /// Finds the pattern from the norm. All users of the norm must be linear layers.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let Op::RmsNorm(_) = finder.node(anchor).op else { return None };
        let normed = finder.node(anchor).outputs[0];
        let (_, x, norm) = finder.rms_norm(normed)?;
        if finder.graph().value(normed).shape.rank() != 2 {
            return None;
        }
        let (mut nodes, mut layers) = (vec![anchor], Vec::new());
        for &user in finder.users(normed) {
            let (Op::Linear(_), &[_, w]) = (&finder.node(user).op, &finder.node(user).inputs[..]) else {
                return None;
            };
            nodes.push(user);
            let mut y = finder.node(user).outputs[0];
            let mut bias = None;
            if let Some(add) = finder.sole_user(y)
                && let (Op::Binary(Binary::Add), &[a, b]) =
                    (&finder.node(add).op, &finder.node(add).inputs[..])
                && a == y
                && finder.is_weight(b)
                && finder.graph().value(b).shape.rank() == 1
            {
                nodes.push(add);
                (y, bias) = (finder.node(add).outputs[0], Some(b));
            }
            let rows = 0..finder.graph().value(w).shape.outer().constant()?;
            layers.push((Projection { w, rows, bias }, y));
        }
        let outputs = layers.iter().map(|&(_, y)| y).collect();
        Some(Match { fusion: Self { x, norm, layers }.into(), nodes, outputs })
    }
}
