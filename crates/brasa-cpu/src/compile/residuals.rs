//! Weights whose int8 activations come with residuals, because plain rounding to 8 bits would cost most there.
//!
//! - Products of two values, such as the hidden layer of a gated network, in the first half of the layers. A few elements are far larger
//!   than the rest, and the other elements of their block lose precision. They make two fifths of the error of a whole decoder. Behind
//!   later layers the same error is small beside the sum that they add to.
//! - The input of the query and key projections, if attention does not damp scores by 1/√d.
//! - Everything in a mixture of experts: any rounding may change the choice of experts.

use std::collections::HashSet;

use brasa_graph::op::Binary;
use brasa_graph::{Graph, Node, Op, ValueId, ValueKind};

/// Attention is undamped if its scale times √d is at least this.
const SHARP: f32 = 1.5;

/// Numbers of the weights whose activations come with residuals.
pub(super) fn weights_with_residuals(graph: &Graph) -> HashSet<usize> {
    let routed = graph.nodes().iter().any(|node| matches!(node.op, Op::RouterTopK(_)));
    let sharp: HashSet<ValueId> =
        graph.nodes().iter().filter_map(|node| sharp_queries(graph, node)).collect();
    let products: Vec<ValueId> =
        multiplied(graph).map(|(x, _)| x).filter(|&x| is_product(graph, x)).collect();
    let early = &products[..products.len().div_ceil(2)];
    let wanted = |x: &ValueId| routed || early.contains(x) || sharp.contains(x);
    let weights = multiplied(graph).filter(|(x, _)| wanted(x)).map(|(_, w)| w);
    let numbers = weights.filter_map(|w| match graph.value(w).kind {
        ValueKind::Weight(weight) => Some(weight.0 as usize),
        _ => None,
    });
    numbers.collect()
}

/// Activations and the weights that they meet, in the order of the program.
fn multiplied(graph: &Graph) -> impl Iterator<Item = (ValueId, ValueId)> {
    graph.nodes().iter().filter_map(|node| match (&node.op, &node.inputs[..]) {
        (Op::Linear(_) | Op::HeadLinear(_), &[x, w]) | (Op::ExpertLinear(_), &[x, _, w, ..]) => Some((x, w)),
        _ => None,
    })
}

fn is_product(graph: &Graph, x: ValueId) -> bool {
    let computed = |&value: &ValueId| maker(graph, value).is_some();
    maker(graph, x).is_some_and(|node| {
        matches!(node.op, Op::Binary(Binary::Mul) | Op::ClampedUnit(_)) && node.inputs.iter().all(computed)
    })
}

/// The input of the query projection of an undamped attention.
fn sharp_queries(graph: &Graph, node: &Node) -> Option<ValueId> {
    let Op::Attention(attention) = node.op else { return None };
    let mut value = node.inputs[0];
    let width = graph.value(value).shape.width()?;
    if attention.scale * (width as f32).sqrt() < SHARP {
        return None;
    }
    loop {
        let node = maker(graph, value)?;
        value = node.inputs[0];
        match node.op {
            Op::Linear(_) => return Some(value),
            Op::Rope(_) | Op::PositionScale(_) | Op::RmsNorm(_) | Op::LayerNorm(_) | Op::Binary(_) => {}
            _ => return None,
        }
    }
}

/// The node that makes a value, or the value that it is a view of.
fn maker(graph: &Graph, value: ValueId) -> Option<&Node> {
    graph.producer(graph.view(value).root).map(|id| graph.node(id))
}
