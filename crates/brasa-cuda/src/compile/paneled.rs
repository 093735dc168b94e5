//! Values that are read as halves in panels, and not as floats: by the product of a weight, by the low-rank product beside it, and
//! by the gradients of the low-rank matrices. They are rounded once, if possible by the operation that makes them, and take half
//! the memory.
//!
//! The low-rank product is the tail of the rows that it multiplies, so it is written to the last piece of their panels.

use std::collections::HashMap;

use brasa_graph::device::DeviceError;
use brasa_graph::fuse::Norm;
use brasa_graph::{Item, Node, NodeId, Op, Schedule, ValueId};

use super::Compiler;
use super::chains::Chain;
use crate::driver::Kernel;
use crate::ops::{
    Panels, RoundOp, ThinGradientOp, ThinProductOp, WIDEST_GATED, gradient_parts, product_floats,
};
use crate::params::{LOW_RANK_SHARED, Ptr};
use crate::weights::SUB_INPUTS;

/// A value in panels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paneled {
    /// The low-rank product of this value that is the tail of its rows.
    pub tail: Option<ValueId>,
    /// True if the value is written as panels alone, and never read as floats.
    pub alone: bool,
}

impl Compiler<'_> {
    /// Notes the values in panels, behind the search for tails, chains and joins.
    pub(super) fn find_paneled(&mut self, schedule: &Schedule) {
        if self.exact || !self.gpu.has_tensor_kernels() {
            return;
        }
        for node in self.graph.nodes().iter().filter(|node| matches!(node.op, Op::LinearGradient(_))) {
            let thin = node.inputs.iter().copied().filter(|&input| self.multiplied(input).is_some());
            let thin: Vec<ValueId> = thin.collect();
            self.thin.extend(thin);
        }
        // Values with a product with a tail, and the tails.
        let mut tails: HashMap<ValueId, Vec<ValueId>> = HashMap::new();
        let besides = self.tails.values().map(|beside| (beside.x, beside.u));
        let transposed = self.chains.values().filter_map(|chain| match *chain {
            Chain::TransposedBeside { of: [y, _], low: [u, _] } => Some((y, u)),
            _ => None,
        });
        for (x, u) in besides.chain(transposed) {
            tails.entry(x).or_default().push(u);
        }
        // One tail a row, of the row itself.
        tails.retain(|&x, us| us.len() == 1 && self.multiplied(us[0]) == Some(x));
        for item in schedule.items() {
            let Item::Single(id) = item else { continue };
            let &[y] = &self.graph.node(*id).outputs[..] else { continue };
            let tail = tails.get(&y).map(|us| us[0]);
            if self.rounds_its_result(*id) && self.reads_panels(y, tail) {
                self.paneled.insert(y, Paneled { tail, alone: true });
            }
        }
        for (x, us) in tails {
            self.paneled.entry(x).or_insert(Paneled { tail: Some(us[0]), alone: false });
        }
    }

    /// The value that the low-rank product `u` multiplies.
    fn multiplied(&self, u: ValueId) -> Option<ValueId> {
        let id = self.graph.producer(u)?;
        if let Some(Chain::Scaled { x, .. }) = self.chains.get(&id) {
            return Some(*x);
        }
        let Node { op, inputs, .. } = self.graph.node(id);
        match (op, &inputs[..]) {
            (Op::Linear(_), &[x, w]) if self.is_low_rank(w, 0) => Some(x),
            (Op::LinearTransposed(_), &[x, w]) if self.is_low_rank(w, 1) => Some(x),
            _ => None,
        }
    }

    /// True for an operation, or a chain's last node, that can write panels: a norm, or gates.
    fn rounds_its_result(&self, id: NodeId) -> bool {
        let aligned = |value: ValueId| {
            let view = self.graph.view(value);
            view.elements.start.is_multiple_of(4) && view.row_stride.is_multiple_of(4)
        };
        let gated = |operands: &[ValueId]| {
            let width = self.shape(operands[0]).width().unwrap_or(0);
            width.is_multiple_of(8) && width <= WIDEST_GATED && operands.iter().all(|&value| aligned(value))
        };
        match self.chains.get(&id) {
            Some(&Chain::Gated { gate, up, .. }) => gated(&[gate, up]),
            Some(&Chain::GatedGradient { gate, up, d, .. }) => gated(&[gate, up, d]),
            Some(_) => false,
            None => {
                let Node { op, inputs, .. } = self.graph.node(id);
                matches!(op, Op::RmsNorm(_))
                    && !self.folded.contains(&id)
                    && self.shape(inputs[0]).rank() == 2
            }
        }
    }

    /// True if all that reads `value` reads its panels: a product with a tail, the one that is the tail, and gradients of low-rank matrices.
    fn reads_panels(&self, value: ValueId, tail: Option<ValueId>) -> bool {
        let readers = self.readers.nodes(value);
        let mut products = 0;
        let reads = |&(id, read): &(NodeId, ValueId)| {
            let Node { op, inputs, .. } = self.graph.node(id);
            products += usize::from(matches!(op, Op::Linear(_) | Op::LinearTransposed(_)));
            read == value
                && match (op, &inputs[..]) {
                    (Op::Linear(_) | Op::LinearTransposed(_), &[x, _]) => x == value,
                    (Op::LinearGradient(_), &[dy, x]) => {
                        dy != x && self.thin.contains(if dy == value { &x } else { &dy })
                    }
                    _ => false,
                }
        };
        !readers.is_empty()
            && self.shape(value).rank() == 2
            && !self.readers.is_output(value)
            && readers.iter().all(reads)
            && products == if tail.is_some() { 2 } else { 0 }
    }

    /// The panels of a value; where none have been made yet, an operation in front of the next one makes them.
    pub(super) fn panels(&mut self, x: ValueId) -> Result<Panels, DeviceError> {
        if let Some(panels) = self.made_panels_with_tail(x) {
            return Ok(panels);
        }
        let asked = self.asked.take();
        let panels = self.make_panels(x);
        let (rounding, x) = (self.own_rounding(panels, None)?, self.slot(x)?);
        self.push_in_front(RoundOp { rounding, x, norm: None }, "round");
        self.asked.replace(asked);
        Ok(panels)
    }

    /// Room for the panels of a value that the next operation makes, with a piece for a tail.
    fn make_panels(&mut self, x: ValueId) -> Panels {
        let subs = self.shape(x).width().unwrap_or(0).div_ceil(SUB_INPUTS) + 1;
        let panels = self.new_panels(self.rows(x), subs);
        self.add_panels_with_tail(x, panels);
        panels
    }

    /// Allocates panels for a value that the next operation makes in panels alone. Readers find them with [`Self::panels`].
    pub(super) fn make_paneled(&mut self, y: ValueId) -> Panels {
        let panels = self.make_panels(y);
        self.set_buffer(y, panels.data);
        panels
    }

    /// Room for the panels of a value whose floats the next operation makes too; `None` if nothing reads panels.
    pub(super) fn panels_beside(&mut self, y: ValueId) -> Option<Panels> {
        let in_pieces = self.shape(y).width().is_some_and(|width| width.is_multiple_of(8));
        (in_pieces && self.paneled.contains_key(&y)).then(|| self.make_panels(y))
    }

    /// True if the operation that makes `value` writes its panels alone.
    pub(super) fn is_paneled(&self, value: ValueId) -> bool {
        self.paneled.get(&value).is_some_and(|paneled| paneled.alone)
    }

    /// Appends a norm that goes to panels.
    pub(super) fn norm_to_panels(&mut self, x: ValueId, norm: Norm, y: ValueId) -> Result<(), DeviceError> {
        let (norm, x) = (Some(self.head_norm(norm)?), self.slot(x)?);
        let panels = self.make_paneled(y);
        let rounding = self.own_rounding(panels, None)?;
        self.push(RoundOp { rounding, x, norm }, "rms_norm");
        Ok(())
    }

    /// True for the low-rank product `y` of `x` that is the tail of the panels of `x`.
    pub(super) fn is_tail(&self, x: ValueId, y: ValueId) -> bool {
        self.paneled.get(&x).is_some_and(|paneled| paneled.tail == Some(y))
    }

    /// Appends a low-rank product that becomes the tail of its rows.
    pub(super) fn thin_product(
        &mut self,
        [x, w, y]: [ValueId; 3],
        is_transposed: bool,
        factor: f32,
    ) -> Result<(), DeviceError> {
        let panels = self.panels(x)?;
        let number = self.weight(w).ok_or_else(|| self.odd(w))?;
        let stored = self.weights.stored(number).ok_or_else(|| self.odd(w))?;
        let w = Ptr::new(stored.floats().ok_or_else(|| self.odd(w))?);
        let size = (stored.weight.rows, stored.weight.row_len);
        let kernels = [self.low_rank_kernel("low_rank_product", x)?, self.kernel("low_rank_sums")?];
        let columns = self.shape(y).width().ok_or_else(|| self.odd(y))?;
        let floats = product_floats(self.rows(x), columns);
        let partial = self.buffer(floats);
        let (x, out) = (self.slot(x)?, self.make(y));
        let label = self.label(if is_transposed { "linear_transposed" } else { "linear" }, number);
        self.push(
            ThinProductOp { kernels, panels, x, number, w, size, is_transposed, factor, partial, out },
            label,
        );
        Ok(())
    }

    fn low_rank_kernel(&self, name: &str, rows: ValueId) -> Result<Kernel, DeviceError> {
        self.kernel_with_shared(name, LOW_RANK_SHARED)?.ok_or_else(|| self.odd(rows))
    }

    /// The operand of a matrix's gradient that is in panels, and the other one, which is a low-rank product.
    pub(super) fn thin_operand(&self, [dy, x]: [ValueId; 2]) -> Option<[ValueId; 2]> {
        [[dy, x], [x, dy]]
            .into_iter()
            .find(|[wide, thin]| self.paneled.contains_key(wide) && self.thin.contains(thin))
    }

    /// Appends the gradient of a low-rank matrix.
    pub(super) fn thin_gradient(
        &mut self,
        [wide, thin]: [ValueId; 2],
        rows_of_x: bool,
        dw: ValueId,
    ) -> Result<(), DeviceError> {
        let panels = self.panels(wide)?;
        let (width, columns) = (self.shape(wide).width(), self.shape(thin).width());
        let (width, columns) = width.zip(columns).ok_or_else(|| self.odd(wide))?;
        let parts = gradient_parts(width, columns, self.gpu.context.device().multiprocessors);
        let partial =
            if parts > 1 { width.saturating_mul(columns).saturating_mul(parts as usize) } else { 0 };
        let kernels = [self.low_rank_kernel("low_rank_gradient", wide)?, self.kernel("matmul_sums")?];
        let (thin, x) = (self.dense(thin)?, self.slot(wide)?);
        let (partial, out) = (self.buffer(partial), self.make(dw));
        self.push(
            ThinGradientOp { kernels, panels, x, thin, rows_of_x, partial, parts, out },
            "linear_gradient",
        );
        Ok(())
    }
}
