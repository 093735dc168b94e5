//! Chains of operations for one kernel: gated activations, their gradients, gradients of norms between the norm's weight and the
//! residual stream, and scaled low-rank products.
//!
//! A chain is computed where its last node stands; the nodes in front of that one are *folded*, and their results never exist.

use std::collections::HashSet;

use brasa_graph::device::DeviceError;
use brasa_graph::op::{Binary, NormKind, Unary};
use brasa_graph::{Item, NodeId, Op, Schedule, ValueId};

use super::Compiler;
use crate::driver::Kernel;
use crate::ops::{GatedGradientOp, GatedOp, GatedPlace, LowRankOp, NormGradientOp};

/// The result of a chain's last node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Chain {
    /// `function(gate) · up`.
    Gated { function: Unary, gate: ValueId, up: ValueId },
    /// The gradients of `gate` and `up` where the gated product changes by `d`, side by side.
    GatedGradient { function: Unary, gate: ValueId, up: ValueId, d: ValueId, gate_first: bool },
    /// `y · w + u · a`, products with the other sides of a weight and of a low-rank one.
    TransposedBeside { of: [ValueId; 2], low: [ValueId; 2] },
    /// The low-rank product of `x`, or the one with the other side of its weight, times a number.
    Scaled { x: ValueId, w: ValueId, is_transposed: bool, factor: f32 },
    /// The gradient of a norm of `x` whose result changes by `t` times the weight, added to the residual.
    NormGradient { of: NormGradientOf, weight: Option<ValueId>, residual: Option<ValueId> },
}

/// The operands of the gradient of a norm.
#[derive(Clone, Copy, Debug)]
pub(super) struct NormGradientOf {
    kind: NormKind,
    eps: f32,
    x: ValueId,
    t: ValueId,
}

impl Compiler<'_> {
    /// Notes the chains among the nodes that no fused operation has taken.
    pub(super) fn find_chains(&mut self, schedule: &Schedule) {
        let alone: HashSet<NodeId> = schedule
            .items()
            .iter()
            .filter_map(|item| match item {
                Item::Single(node) if !self.folded.contains(node) => Some(*node),
                _ => None,
            })
            .collect();
        for id in (0..self.graph.nodes().len() as u32).map(NodeId).filter(|id| alone.contains(id)) {
            self.find_gated_gradient(id, &alone);
            self.find_norm_gradient(id, &alone);
            self.find_transposed_beside(id, &alone);
            self.find_scaled(id, &alone);
        }
        for id in (0..self.graph.nodes().len() as u32).map(NodeId).filter(|id| alone.contains(id)) {
            self.find_gated(id, &alone);
        }
    }

    /// The node that makes `value`, if it is alone, and all that reads it is one node.
    fn link(&self, value: ValueId, alone: &HashSet<NodeId>) -> Option<NodeId> {
        let maker = self.graph.producer(value)?;
        let is_link = alone.contains(&maker)
            && !self.folded.contains(&maker)
            && !self.readers.is_output(value)
            && self.readers.nodes(value).len() == 1;
        is_link.then_some(maker)
    }

    /// The two operands of a multiplication; `None` for another operation.
    fn factors(&self, id: NodeId) -> Option<[ValueId; 2]> {
        let node = self.graph.node(id);
        match (&node.op, &node.inputs[..]) {
            (Op::Binary(Binary::Mul), &[a, b]) => Some([a, b]),
            _ => None,
        }
    }

    fn find_gated_gradient(&mut self, id: NodeId, alone: &HashSet<NodeId>) {
        let node = self.graph.node(id);
        let (Op::Concat(op), &[first, second]) = (&node.op, &node.inputs[..]) else { return };
        if op.axis != 1 || self.shape(first).rank() != 2 || self.shape(first) != self.shape(second) {
            return;
        }
        for (of_gate, of_up, gate_first) in [(first, second, true), (second, first, false)] {
            if let Some((chain, links)) = self.gated_gradient([of_gate, of_up], gate_first, alone) {
                self.folded.extend(links);
                self.chains.insert(id, chain);
                return;
            }
        }
    }

    fn gated_gradient(
        &self,
        [of_gate, of_up]: [ValueId; 2],
        gate_first: bool,
        alone: &HashSet<NodeId>,
    ) -> Option<(Chain, [NodeId; 3])> {
        let (slope, of_up) = (self.link(of_gate, alone)?, self.link(of_up, alone)?);
        let node = self.graph.node(slope);
        let (Op::UnaryGradient(op), &[gate, change]) = (&node.op, &node.inputs[..]) else { return None };
        let function = op.function;
        let change = self.link(change, alone)?;
        let [a, b] = self.factors(change)?;
        let [c, e] = self.factors(of_up)?;
        // What changes is a factor of both products.
        let (d, up, activated) = [(a, b, c, e), (a, b, e, c), (b, a, c, e), (b, a, e, c)]
            .into_iter()
            .find_map(|(d, up, same, activated)| (d == same).then_some((d, up, activated)))?;
        let maker = self.graph.node(self.graph.producer(activated)?);
        let is_activation =
            is_gate(function) && maker.op == Op::Unary(function) && maker.inputs[..] == [gate];
        let shape = self.shape(gate);
        let alike = [d, up].iter().all(|&value| self.shape(value) == shape);
        (is_activation && alike && shape.rank() == 2)
            .then_some((Chain::GatedGradient { function, gate, up, d, gate_first }, [slope, of_up, change]))
    }

    fn find_gated(&mut self, id: NodeId, alone: &HashSet<NodeId>) {
        let node = self.graph.node(id);
        let (&Op::Unary(function), &[gate], &[activated]) = (&node.op, &node.inputs[..], &node.outputs[..])
        else {
            return;
        };
        if !is_gate(function) || self.shape(gate).rank() != 2 || self.readers.is_output(activated) {
            return;
        }
        let mut readers = self.readers.nodes(activated);
        readers.retain(|(reader, _)| !self.folded.contains(reader));
        let &[(product, read)] = &readers[..] else { return };
        if read != activated || !alone.contains(&product) || self.chains.contains_key(&product) {
            return;
        }
        let Some([a, b]) = self.factors(product) else { return };
        let up = if a == activated { b } else { a };
        if a != b && self.shape(up) == self.shape(gate) {
            self.folded.push(id);
            self.chains.insert(product, Chain::Gated { function, gate, up });
        }
    }

    fn find_transposed_beside(&mut self, id: NodeId, alone: &HashSet<NodeId>) {
        let node = self.graph.node(id);
        let (Op::Binary(Binary::Add), &[a, b]) = (&node.op, &node.inputs[..]) else { return };
        let operands = |value: ValueId| {
            let id = self.link(value, alone)?;
            match (&self.graph.node(id).op, &self.graph.node(id).inputs[..]) {
                (Op::LinearTransposed(_), &[y, w]) if self.shape(y).rank() == 2 => Some((id, [y, w])),
                _ => None,
            }
        };
        let (Some((first, first_of)), Some((second, second_of))) = (operands(a), operands(b)) else { return };
        for (of, low) in [(first_of, second_of), (second_of, first_of)] {
            if self.is_low_rank(low[1], 0) && self.multiplies_tiles(of[1], self.rows(of[0])) {
                self.folded.extend([first, second]);
                self.chains.insert(id, Chain::TransposedBeside { of, low });
                return;
            }
        }
    }

    fn find_scaled(&mut self, id: NodeId, alone: &HashSet<NodeId>) {
        let node = self.graph.node(id);
        let (factor, product) = match (&node.op, &node.inputs[..]) {
            (&Op::Unary(Unary::Scale(factor)), &[product]) => (factor, product),
            (Op::UnaryGradient(op), &[_, product]) => match op.function {
                Unary::Scale(factor) => (factor, product),
                _ => return,
            },
            _ => return,
        };
        let Some(maker) = self.graph.producer(product).filter(|maker| alone.contains(maker)) else { return };
        // Gradients of such scales name what they do not read.
        let mut readers = self.readers.nodes(product);
        readers.retain(|(reader, _)| {
            match (&self.graph.node(*reader).op, &self.graph.node(*reader).inputs[..]) {
                (Op::UnaryGradient(op), &[x, t]) => {
                    t == product || x != product || !matches!(op.function, Unary::Scale(_))
                }
                _ => true,
            }
        });
        let (is_transposed, axis) = match self.graph.node(maker).op {
            Op::Linear(_) => (false, 0),
            Op::LinearTransposed(_) => (true, 1),
            _ => return,
        };
        let &[x, w] = &self.graph.node(maker).inputs[..] else { return };
        let is_alone = matches!(readers[..], [(reader, read)] if reader == id && read == product);
        if is_alone
            && !self.exact
            && !self.readers.is_output(product)
            && !self.folded.contains(&maker)
            && self.shape(x).rank() == 2
            && self.is_low_rank(w, axis)
        {
            self.folded.push(maker);
            self.chains.insert(id, Chain::Scaled { x, w, is_transposed, factor });
        }
    }

    fn find_norm_gradient(&mut self, id: NodeId, alone: &HashSet<NodeId>) {
        let node = self.graph.node(id);
        let (Op::NormGradient(op), &[x, t], &[y]) = (&node.op, &node.inputs[..], &node.outputs[..]) else {
            return;
        };
        let mut of = NormGradientOf { kind: op.kind, eps: op.eps, x, t };
        let weighted = self.link(t, alone).and_then(|product| {
            let [change, weight] = self.factors(product)?;
            let is_weight = self.weight(weight).is_some()
                && self.shape(weight).rank() == 1
                && self.shape(weight).width() == self.shape(t).width()
                && self.shape(change) == self.shape(t);
            is_weight.then_some((product, change, weight))
        });
        let weight = weighted.map(|(product, change, weight)| {
            self.folded.push(product);
            of.t = change;
            weight
        });
        let added = self.link(y, alone).and_then(|_| {
            let &[(sum, read)] = &self.readers.nodes(y)[..] else { return None };
            let node = self.graph.node(sum);
            let (Op::Binary(Binary::Add), &[a, b]) = (&node.op, &node.inputs[..]) else { return None };
            let residual = if a == y { b } else { a };
            let is_sum = read == y
                && a != b
                && alone.contains(&sum)
                && !self.chains.contains_key(&sum)
                && self.shape(y).rank() == 2
                && self.shape(residual) == self.shape(y);
            is_sum.then_some((sum, residual))
        });
        match added {
            Some((sum, residual)) => {
                self.folded.push(id);
                self.chains.insert(sum, Chain::NormGradient { of, weight, residual: Some(residual) });
            }
            None => {
                self.chains.insert(id, Chain::NormGradient { of, weight, residual: None });
            }
        }
    }

    /// Appends the operation of the chain whose last node makes `y`.
    pub(super) fn lower_chain(&mut self, chain: Chain, y: ValueId) -> Result<(), DeviceError> {
        match chain {
            Chain::Gated { function, gate, up } => {
                let (gate, up) = (self.slot(gate)?, self.slot(up)?);
                let (kernel, to) = self.gated_place("gated", y)?;
                self.push(GatedOp { kernel, function, gate, up, to }, "gated");
            }
            Chain::GatedGradient { function, gate, up, d, gate_first } => {
                let (gate, up, d) = (self.slot(gate)?, self.slot(up)?, self.slot(d)?);
                let (kernel, to) = self.gated_place("gated_gradient", y)?;
                let op = GatedGradientOp { kernel, function, gate, up, d, to, gate_first };
                self.push(op, "gated_gradient");
            }
            Chain::TransposedBeside { of, low } => self.linear_transposed_beside(of, low, y)?,
            Chain::Scaled { x, w, is_transposed, factor } if self.is_tail(x, y) => {
                self.thin_product([x, w, y], is_transposed, factor)?;
            }
            Chain::Scaled { x, w, is_transposed, factor } => {
                let elements = self.shape(y).resolve(&self.sizes).iter().product();
                let mut of = self.low_rank(x, w, elements)?;
                of.floats.factor = factor;
                let out = self.make(y);
                let operation = if is_transposed { "linear_transposed" } else { "linear" };
                let label = self.label(operation, of.number);
                self.push(LowRankOp { of, is_transposed, out }, label);
            }
            Chain::NormGradient { of: NormGradientOf { kind, eps, x, t }, weight, residual } => {
                let is_layer = kind == NormKind::Layer;
                let (kernel, x, t) = (self.kernel("norm_gradient")?, self.slot(x)?, self.slot(t)?);
                let weight = weight.map(|weight| self.dense(weight)).transpose()?;
                let residual = residual.map(|residual| self.slot(residual)).transpose()?;
                let panels = self.panels_beside(y);
                let out = self.make(y);
                let op = NormGradientOp { kernel, eps, is_layer, x, t, weight, residual, panels, out };
                self.push(op, "norm_gradient");
            }
        }
        Ok(())
    }
}

impl Compiler<'_> {
    /// The kernel that makes gated products or their gradients `y`, and where they go.
    fn gated_place(&mut self, name: &str, y: ValueId) -> Result<(Kernel, GatedPlace), DeviceError> {
        if self.is_paneled(y) {
            return Ok((self.kernel(&format!("{name}_panels"))?, GatedPlace::Panels(self.make_paneled(y))));
        }
        Ok((self.kernel(name)?, GatedPlace::Floats(self.make(y))))
    }
}

/// True for the functions that feed-forward blocks gate with.
fn is_gate(function: Unary) -> bool {
    matches!(function, Unary::Silu | Unary::GeluTanh | Unary::GeluErf)
}
