//! A linear layer with its bias and its activation.

use super::{Finder, Match, Projection};
use crate::op::{Binary, Unary};
use crate::{NodeId, Op, ValueId};

/// `linear [→ + bias] [→ act]`: `y = act(x·Wᵀ + b)`, with a bias, an activation or both.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearActivation {
    /// The layer's operand, `[R, K]`.
    pub x: ValueId,
    /// The layer.
    pub layer: Projection,
    /// SiLU, GELU or the squared ReLU, if there is one.
    pub activation: Option<Unary>,
    /// The result, `[R, N]`.
    pub y: ValueId,
}

impl LinearActivation {
    /// Finds the pattern from the activation, or from the addition of a bias that no activation follows.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let node = finder.node(anchor);
        let &[y] = &node.outputs[..] else { return None };
        let activated = finder.activation(y);
        let mut nodes = Vec::new();
        let (sum, activation) = match activated {
            Some((id, activation, sum)) => {
                nodes.push(id);
                (sum, Some(activation))
            }
            None if node.op == Op::Binary(Binary::Add) => (y, None),
            None => return None,
        };
        let (x, layer) = finder.projection(sum, &mut nodes)?;
        let whole = finder.graph().value(layer.w).shape.outer().constant()? == layer.rows.len();
        let last = activation.is_some() || (layer.bias.is_some() && !is_activated(finder, y));
        let fusion = Self { x, layer, activation, y };
        (whole && last).then(|| Match { fusion: fusion.into(), nodes, outputs: vec![y] })
    }
}

/// True if the only reader of a value is an activation.
fn is_activated(finder: &Finder, value: ValueId) -> bool {
    let reader = finder.sole_user(value).map(|user| finder.node(user));
    reader.is_some_and(|reader| reader.outputs.iter().any(|&y| finder.activation(y).is_some()))
}
