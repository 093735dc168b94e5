//! Walks a graph from value to value, to find patterns.

use std::ops::Range;

use super::Fusion;
use crate::op::{Binary, GatedUnit, Unary};
use crate::{Graph, Node, NodeId, Op, ValueId, ValueKind};

/// An occurrence of a pattern.
pub(crate) struct Match {
    /// The pattern, and which node plays which part in it.
    pub fusion: Fusion,
    /// All nodes of the match, views included, in any order.
    pub nodes: Vec<NodeId>,
    /// Values that nodes outside the match may use.
    pub outputs: Vec<ValueId>,
}

/// A norm within a fused operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Weight of the norm; `None` for a norm without one.
    pub w: Option<ValueId>,
    /// Added to the mean square.
    pub eps: f32,
}

/// Outputs of a linear layer within a fused operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    /// The weight `[N, K]`.
    pub w: ValueId,
    /// Rows of the weight (and elements of the bias) that are used: all, or a part of a stacked weight.
    pub rows: Range<usize>,
    /// Added to the product: a weight `[N]`.
    pub bias: Option<ValueId>,
}

/// A gated unit that a fused operation may contain.
pub(super) struct Gated {
    pub unit: GatedUnit,
    pub gate: ValueId,
    pub up: ValueId,
    /// The nodes of the unit.
    pub nodes: Vec<NodeId>,
}

/// A graph, and the nodes that use each value.
pub(crate) struct Finder<'a> {
    graph: &'a Graph,
    users: Vec<Vec<NodeId>>,
    outputs: Vec<bool>,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(graph: &'a Graph) -> Self {
        let mut users = vec![Vec::new(); graph.values().len()];
        for (number, node) in graph.nodes().iter().enumerate() {
            for input in &node.inputs {
                let users: &mut Vec<NodeId> = &mut users[input.0 as usize];
                if users.last() != Some(&NodeId(number as u32)) {
                    users.push(NodeId(number as u32));
                }
            }
        }
        let mut outputs = vec![false; graph.values().len()];
        for output in graph.outputs() {
            outputs[output.0 as usize] = true;
        }
        Self { graph, users, outputs }
    }

    pub(crate) fn graph(&self) -> &'a Graph {
        self.graph
    }

    /// Nodes that read a value, in order.
    pub(crate) fn users(&self, value: ValueId) -> &[NodeId] {
        &self.users[value.0 as usize]
    }

    /// True if the graph returns the value.
    pub(crate) fn is_output(&self, value: ValueId) -> bool {
        self.outputs[value.0 as usize]
    }

    /// The only reader of a value that the graph does not return.
    pub(crate) fn sole_user(&self, value: ValueId) -> Option<NodeId> {
        match self.users(value) {
            &[user] if !self.is_output(value) => Some(user),
            _ => None,
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> &'a Node {
        self.graph.node(id)
    }

    /// The node that makes a value.
    pub(super) fn maker(&self, value: ValueId) -> Option<(NodeId, &'a Node)> {
        let id = self.graph.producer(value)?;
        Some((id, self.graph.node(id)))
    }

    /// The node that makes `value` before a chain of views; adds the views' nodes to `nodes`.
    pub(super) fn maker_behind_views(
        &self,
        mut value: ValueId,
        nodes: &mut Vec<NodeId>,
    ) -> Option<(NodeId, &'a Node)> {
        loop {
            let (id, node) = self.maker(value)?;
            if !node.op.is_view() {
                return Some((id, node));
            }
            nodes.push(id);
            value = node.inputs[0];
        }
    }

    /// True if the value is a weight.
    pub(crate) fn is_weight(&self, value: ValueId) -> bool {
        matches!(self.graph.value(value).kind, ValueKind::Weight(_))
    }

    /// True if both values have the same shape.
    pub(crate) fn same_shape(&self, a: ValueId, b: ValueId) -> bool {
        self.graph.value(a).shape == self.graph.value(b).shape
    }

    /// Finds the linear layer, with its bias if one is added, of which `value` is the output or a view of a range of it. Returns
    /// the layer's operand and projection, and adds its nodes to `nodes`.
    pub(super) fn projection(
        &self,
        value: ValueId,
        nodes: &mut Vec<NodeId>,
    ) -> Option<(ValueId, Projection)> {
        let view = self.graph.view(value);
        let (mut id, mut node) = self.maker_behind_views(value, nodes)?;
        let mut bias = None;
        if node.op == Op::Binary(Binary::Add)
            && self.is_weight(node.inputs[1])
            && self.graph.value(node.inputs[1]).shape.rank() == 1
        {
            bias = Some(node.inputs[1]);
            nodes.push(id);
            (id, node) = self.maker(node.inputs[0])?;
        }
        let (Op::Linear(_), &[x, w]) = (&node.op, &node.inputs[..]) else { return None };
        if self.graph.value(x).shape.rank() != 2 {
            return None;
        }
        nodes.push(id);
        Some((x, Projection { w, rows: view.elements, bias }))
    }

    /// The gated units that may end with node `anchor`. A product of two activated values gives two units, since either
    /// value may be the gate.
    pub(super) fn gated(&self, anchor: NodeId) -> impl Iterator<Item = Gated> {
        let node = self.node(anchor);
        let units: Vec<Gated> = match (&node.op, &node.inputs[..]) {
            (&Op::ClampedUnit(unit), &[gate, up]) => {
                vec![Gated { unit: GatedUnit::Clamped(unit), gate, up, nodes: vec![anchor] }]
            }
            (Op::Binary(Binary::Mul), &[a, b]) if self.same_shape(a, b) => [(a, b), (b, a)]
                .into_iter()
                .filter_map(|(activated, up)| {
                    let (act, activation, gate) = self.activation(activated)?;
                    let unit = GatedUnit::of(activation)?;
                    Some(Gated { unit, gate, up, nodes: vec![anchor, act] })
                })
                .collect(),
            _ => Vec::new(),
        };
        units.into_iter()
    }

    /// The node, function and operand if `value` is the result of an activation that feed-forward layers use.
    pub(super) fn activation(&self, value: ValueId) -> Option<(NodeId, Unary, ValueId)> {
        match self.maker(value)? {
            (
                id,
                Node {
                    op: Op::Unary(act @ (Unary::Silu | Unary::GeluTanh | Unary::GeluErf | Unary::SquaredRelu)),
                    inputs,
                    ..
                },
            ) => Some((id, *act, inputs[0])),
            _ => None,
        }
    }

    /// The RMS norm that makes a value: node, operand and norm.
    pub(super) fn rms_norm(&self, value: ValueId) -> Option<(NodeId, ValueId, Norm)> {
        let (id, node) = self.maker(value)?;
        let Op::RmsNorm(norm) = node.op else { return None };
        Some((id, node.inputs[0], Norm { w: node.inputs.get(1).copied(), eps: norm.eps }))
    }
}
