//! A mixture of experts, from the router's logits to the sum.

use super::{Finder, Match};
use crate::op::{Binary, GatedUnit, Reduce, ReduceFn, RouterTopK, Unary};
use crate::{NodeId, Op, ValueId};

/// A mixture of experts: `router_topk → expert_linear (gate, up) → unit → expert_linear (down) → · weights → sum`.
///
/// `y[r] = Σ_j c · s[e_j] · weights[r,j] · (h[j]·Wd[e_j]ᵀ + bd[e_j])`, with
/// `h[j] = unit(x[r]·Wg[e_j]ᵀ + bg[e_j], x[r]·Wu[e_j]ᵀ + bu[e_j])`.
///
/// [`RouterTopK`] gives the experts `e_j` of row `r` and their `weights`. `c` and `s` are 1 in models without them, the
/// biases `bg`, `bu` and `bd` are 0.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterExperts {
    /// Router logits, `[R, X]`.
    pub logits: ValueId,
    /// How experts are chosen.
    pub router: RouterTopK,
    /// The selection bias of the router, a weight `[X]`.
    pub selection_bias: Option<ValueId>,
    /// `s`: a scale per expert, a weight `[X]` (Gemma 4).
    pub expert_scales: Option<ValueId>,
    /// `c`: a factor of all weights.
    pub scale: Option<f32>,
    /// Input of the experts, `[R, K]`.
    pub x: ValueId,
    /// Gate weights, `[X, F, K]`.
    pub gate: ValueId,
    /// Up weights, `[X, F, K]`.
    pub up: ValueId,
    /// The function that joins gate and up.
    pub unit: GatedUnit,
    /// Down weights, `[X, D, F]`.
    pub down: ValueId,
    /// Biases of the experts' gate `[X, F]`, up `[X, F]` and down `[X, D]`.
    pub biases: [Option<ValueId>; 3],
    /// The weighted sum, `[R, D]`.
    pub y: ValueId,
}

impl RouterExperts {
    /// Finds the pattern from the sum over the experts.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let Op::Reduce(Reduce { function: ReduceFn::Sum, axis: 1 }) = finder.node(anchor).op else {
            return None;
        };
        let mut nodes = vec![anchor];
        let (id, weighted) = finder.maker(finder.node(anchor).inputs[0])?;
        // The product has the shape of its first operand, so the weights, `[R, k, 1]`, are the second.
        let (Op::Binary(Binary::Mul), &[experts_y, weights]) = (&weighted.op, &weighted.inputs[..]) else {
            return None;
        };
        let per_expert = finder.graph().value(weights).shape.inner()?;
        if !matches!(per_expert[..], [_, 1]) {
            return None;
        }
        nodes.push(id);
        let Layer { experts, w: down, bias: down_bias, x: h } = expert_linear(finder, experts_y, &mut nodes)?;
        let gated = finder.gated(finder.maker(h)?.0).next()?;
        nodes.extend(gated.nodes);
        let gate = expert_linear(finder, gated.gate, &mut nodes)?;
        let up = expert_linear(finder, gated.up, &mut nodes)?;
        if [gate.experts, up.experts] != [experts; 2] || gate.x != up.x {
            return None;
        }
        let (id, router) = finder.maker(experts)?;
        let Op::RouterTopK(top_k) = router.op else { return None };
        nodes.push(id);
        let (expert_scales, scale) = weight_chain(finder, weights, &router.outputs, &mut nodes)?;
        let fusion = Self {
            logits: router.inputs[0],
            router: top_k,
            selection_bias: router.inputs.get(1).copied(),
            expert_scales,
            scale,
            x: gate.x,
            gate: gate.w,
            up: up.w,
            unit: gated.unit,
            down,
            biases: [gate.bias, up.bias, down_bias],
            y: finder.node(anchor).outputs[0],
        };
        let outputs = vec![fusion.y];
        let shared_input = finder.graph().value(fusion.x).shape.rank() == 2;
        shared_input.then_some(Match { fusion: fusion.into(), nodes, outputs })
    }
}

/// The operands of a linear layer of experts.
struct Layer {
    experts: ValueId,
    w: ValueId,
    bias: Option<ValueId>,
    x: ValueId,
}

/// The linear layer of experts that makes `value`.
fn expert_linear(finder: &Finder, value: ValueId, nodes: &mut Vec<NodeId>) -> Option<Layer> {
    let (id, node) = finder.maker_behind_views(value, nodes)?;
    let (Op::ExpertLinear(_), &[x, experts, w, ref bias @ ..]) = (&node.op, &node.inputs[..]) else {
        return None;
    };
    nodes.push(id);
    Some(Layer { experts, w, bias: bias.first().copied(), x })
}

/// Walks from the applied weights back to the router. Views, a factor and a scale per expert may lie in between, in any order,
/// each at most once. Returns the scales and the factor.
fn weight_chain(
    finder: &Finder,
    mut value: ValueId,
    router: &[ValueId],
    nodes: &mut Vec<NodeId>,
) -> Option<(Option<ValueId>, Option<f32>)> {
    let (mut expert_scales, mut scale) = (None, None);
    loop {
        if value == router[1] {
            return Some((expert_scales, scale));
        }
        let (id, node) = finder.maker(value)?;
        nodes.push(id);
        match (&node.op, &node.inputs[..]) {
            (Op::Reshape(_), &[x]) => value = x,
            (Op::Unary(Unary::Scale(c)), &[x]) if scale.is_none() => {
                (value, scale) = (x, Some(*c));
            }
            (Op::Binary(Binary::Mul), &[a, b]) if expert_scales.is_none() && finder.same_shape(a, b) => {
                let gathered = |value| {
                    let (id, node) = finder.maker(value)?;
                    let (Op::Gather(_), &[table, indices]) = (&node.op, &node.inputs[..]) else {
                        return None;
                    };
                    (indices == router[0]).then_some((id, table))
                };
                let ((id, table), rest) =
                    gathered(b).map(|found| (found, a)).or_else(|| Some((gathered(a)?, b)))?;
                nodes.push(id);
                (value, expert_scales) = (rest, Some(table));
            }
            _ => return None,
        }
    }
}
