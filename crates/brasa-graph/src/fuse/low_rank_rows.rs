//! A low-rank product of an adapter bank, added to another value. Every row uses some of the ranks.

use super::{Finder, Match};
use crate::op::{Binary, Linear, Where};
use crate::{NodeId, Op, ValueId};

/// `y = residual + (s ∘ x·Aᵀ)·Bᵀ`, from the nodes `n = x·Aᵀ → n · s → where(s, ·, s) → ·Bᵀ → + residual`. Ranks with `s = 0` add
/// nothing.
///
/// A device skips the ranks with `s = 0` of a row: those of adapters that the row's text does not use.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankRows {
    /// The operand, `[R, K]`.
    pub x: ValueId,
    /// The weight `A`, `[ranks, K]`.
    pub a: ValueId,
    /// The product `x·Aᵀ`, `[R, ranks]`.
    pub narrow: ValueId,
    /// Factors of each row's ranks, `[R, ranks]`.
    pub factors: ValueId,
    /// The product times the factors, without the ranks whose factor is 0, `[R, ranks]`.
    pub chosen: ValueId,
    /// The weight `B`, `[N, ranks]`.
    pub b: ValueId,
    /// The value that the product is added to, `[R, N]`.
    pub residual: ValueId,
    /// The sum, `[R, N]`.
    pub y: ValueId,
}

impl LowRankRows {
    /// Finds the pattern from the addition.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let node = finder.node(anchor);
        let (Op::Binary(Binary::Add), &[left, right]) = (&node.op, &node.inputs[..]) else { return None };
        if left == right || !finder.same_shape(left, right) {
            return None;
        }
        [(right, left), (left, right)].into_iter().find_map(|(product, residual)| {
            let linear = |value| {
                let (id, node) = finder.maker(value)?;
                let (Op::Linear(Linear), &[x, w]) = (&node.op, &node.inputs[..]) else { return None };
                let is_plain = finder.graph().value(x).shape.rank() == 2 && finder.is_weight(w);
                (is_plain && finder.sole_user(value).is_some()).then_some((id, x, w))
            };
            let (second, chosen, b) = linear(product)?;
            let (choice, node) = finder.maker(chosen)?;
            let (Op::Where(Where), &[factors, scaled, otherwise]) = (&node.op, &node.inputs[..]) else {
                return None;
            };
            let (scaling, node) = finder.maker(scaled)?;
            let (Op::Binary(Binary::Mul), &[narrow, by]) = (&node.op, &node.inputs[..]) else { return None };
            let (first, x, a) = linear(narrow)?;
            let y = finder.node(anchor).outputs[0];
            (factors == otherwise && factors == by).then(|| Match {
                fusion: Self { x, a, narrow, factors, chosen, b, residual, y }.into(),
                nodes: vec![first, scaling, choice, second, anchor],
                outputs: vec![y],
            })
        })
    }
}
