//! Values that are joined side by side, written where they are joined by the operations that make them.

use std::collections::HashSet;

use brasa_graph::device::DeviceError;
use brasa_graph::{Item, NodeId, Op, Schedule, ValueId};

use super::Compiler;
use crate::ops::CopyOp;
use crate::run::{Base, Slot};

/// The place of a value within the rows of another value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The value that holds the rows, `stride` elements wide.
    whole: ValueId,
    start: usize,
    stride: usize,
}

impl Compiler<'_> {
    /// Notes which values are joined where, and which of them can be written there. Joins of joins become one.
    pub(super) fn find_joins(&mut self, schedule: &Schedule) {
        let alone: HashSet<NodeId> = schedule
            .items()
            .iter()
            .filter_map(|item| match item {
                Item::Single(node) if !self.folded.contains(node) && !self.chains.contains_key(node) => {
                    Some(*node)
                }
                _ => None,
            })
            .collect();
        // From the last on: a join of joins comes behind these.
        for id in (0..self.graph.nodes().len() as u32).rev().map(NodeId) {
            if self.folded.contains(&id) || !alone.contains(&id) {
                continue;
            }
            let Some(parts) = self.joined(id) else { continue };
            let whole = self.graph.node(id).outputs[0];
            let mut flat = Vec::new();
            self.flatten(parts, &alone, &mut flat);
            let mut start = 0;
            let stride = self.shape(whole).width().unwrap_or(0);
            let mut placed = Vec::new();
            for part in flat {
                placed.push((part, start));
                if let Some(root) = self.turned(part, &alone) {
                    self.places.insert(root, Place { whole, start, stride });
                }
                start += self.shape(part).width().unwrap_or(0);
            }
            self.joins.insert(id, placed);
        }
    }

    /// The two operands of a join of columns; `None` for another operation.
    fn joined(&self, id: NodeId) -> Option<[ValueId; 2]> {
        let node = self.graph.node(id);
        match (&node.op, &node.inputs[..]) {
            (Op::Concat(op), &[a, b]) if op.axis == 1 && self.shape(a).rank() == 2 => Some([a, b]),
            _ => None,
        }
    }

    /// The parts of `parts` that are no joins themselves; joins that nothing else reads are folded.
    fn flatten(&mut self, parts: [ValueId; 2], alone: &HashSet<NodeId>, flat: &mut Vec<ValueId>) {
        for part in parts {
            let inner = self.graph.producer(part).filter(|maker| {
                alone.contains(maker) && self.readers.nodes(part).len() == 1 && !self.readers.is_output(part)
            });
            match inner.and_then(|id| Some((id, self.joined(id)?))) {
                Some((id, inner)) => {
                    self.folded.push(id);
                    self.flatten(inner, alone, flat);
                }
                None => flat.push(part),
            }
        }
    }

    /// The rotated heads that all of `part` is made of, if nothing else reads them.
    fn turned(&self, part: ValueId, alone: &HashSet<NodeId>) -> Option<ValueId> {
        let view = self.graph.view(part);
        let (root, width) = (view.root, self.shape(part).width()?);
        let maker = self.graph.producer(root).filter(|maker| alone.contains(maker))?;
        let is_whole = view.elements == (0..width)
            && view.row_stride == width
            && self.shape(root).outer() == self.shape(part).outer();
        let is_free = matches!(self.graph.node(maker).op, Op::Rope(_))
            && self.readers.nodes(root).len() == 1
            && !self.readers.is_output(root)
            && !self.places.contains_key(&root);
        (is_whole && is_free).then_some(root)
    }

    /// Allocates a value for the next operation's result, in its place among joined values if it has one.
    pub(super) fn make_in_place(&mut self, value: ValueId) -> Slot {
        let Some(Place { whole, start, stride }) = self.places.get(&value).copied() else {
            return self.make(value);
        };
        let buffer = self.buffer_of(whole);
        let shape = self.shape(value).clone();
        Slot { base: Base::Buffer(buffer), start, row_stride: Some(stride), shape }
    }

    /// Appends copies of the parts of a join that are not in their places yet.
    pub(super) fn join(&mut self, parts: Vec<(ValueId, usize)>, whole: ValueId) -> Result<(), DeviceError> {
        let stride = self.shape(whole).width().ok_or_else(|| self.odd(whole))?;
        let roots: HashSet<ValueId> = self.places.keys().copied().collect();
        let missing: Vec<(ValueId, usize)> =
            parts.into_iter().filter(|&(part, _)| !roots.contains(&self.graph.view(part).root)).collect();
        // Parts are needed until all copies have run.
        for &(part, start) in &missing {
            for &(other, _) in &missing {
                self.slot(other)?;
            }
            let (kernels, x) = (self.each_element("copy")?, self.slot(part)?);
            let shape = x.shape.clone();
            let base = Base::Buffer(self.buffer_of(whole));
            let out = Slot { base, start, row_stride: Some(stride), shape };
            self.push(CopyOp { kernels, x, behind: None, is_part: true, out }, "concat");
        }
        Ok(())
    }
}
