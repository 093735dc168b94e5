//! Compiles a graph to a table of operations over one arena.
//!
//! The graph is scheduled, which fuses nodes into items; every item becomes an operation with resolved operands. The
//! operands of all operations determine how long each buffer is needed, and so its place in the arena. Lowering runs
//! twice: once to find the lifetimes, once with the offsets that follow from them.
//!
//! Beyond the graph's fusions, a norm with a linear layer (or a pair of gate and up) as its only reader is computed when
//! that layer prepares its activations.

mod derivatives;
mod describe;
mod fused;
mod nodes;
mod recurrent;
mod residuals;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use brasa_graph::arena::{Demand, lay_out};
use brasa_graph::device::{DeviceError, ProgramLimits};
use brasa_graph::fuse::{Fusion, Pattern};
use brasa_graph::plan::ALIGNMENT_BYTES;
use brasa_graph::{Dim, Graph, Input, Item, Node, NodeId, Op, Schedule, Shape, Sizes, ValueId, ValueKind};

use crate::arena::ELEMENT_BYTES;
use crate::error::DEVICE;
use crate::ops::CompiledOp;
use crate::ops::arrange::CopyOp;
use crate::slot::{Operand, Operands, Out, Slot, Source, WeightView, collision};
use crate::weights::CpuWeights;
pub(crate) use describe::describe;

/// Fusions that pay on a CPU, in order of preference.
pub(crate) const PATTERNS: &[Pattern] = &[
    Pattern::RouterExperts,
    Pattern::LowRankRows,
    Pattern::GateUpActivation,
    Pattern::QkNormRopeCacheWrite,
    Pattern::LinearResidual,
    Pattern::NormLinear,
    Pattern::LinearActivation,
];

/// A compiled graph.
#[derive(Debug)]
pub(crate) struct Table {
    /// The operations, in order.
    pub ops: Vec<Entry>,
    /// Size of the arena.
    pub arena_elements: usize,
    /// The places of the step's numbers.
    pub inputs: Vec<(Input, Slot)>,
    /// The places of the results: dense rows.
    pub outputs: Vec<Slot>,
    /// Names of the weights.
    pub weights: Vec<String>,
}

/// An operation of a program.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The operation.
    pub op: CompiledOp,
    /// The operands and results of the operation.
    pub operands: Vec<Operand>,
    /// The operation and its weight, for people.
    pub label: String,
}

/// The number of a buffer of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BufferId(usize);

/// Compiles `graph`.
///
/// # Errors
///
/// [`DeviceError::Unsupported`]: an operation on shapes that the device cannot place.
pub(crate) fn compile(
    graph: &Graph,
    weights: &CpuWeights,
    limits: &ProgramLimits,
    patterns: &[Pattern],
) -> Result<Table, DeviceError> {
    let schedule = Schedule::new(graph, patterns);
    let first = Lowering::new(graph, weights, &schedule, limits, Vec::new()).lower()?;
    let (offsets, arena_bytes) = lay_out(&first.buffers, ALIGNMENT_BYTES);
    let arena_elements = arena_bytes / ELEMENT_BYTES;
    if arena_bytes > isize::MAX as usize {
        return Err(out_of_memory(arena_elements, limits));
    }
    let second = Lowering::new(graph, weights, &schedule, limits, offsets).lower()?;
    for entry in &second.ops {
        let collision = collision(&entry.operands, &second.sizes);
        assert!(collision.is_none(), "{}: {collision:?}", entry.label);
    }
    let weights = graph.weights().iter().map(|weight| weight.name.clone()).collect();
    let Lowering { ops, inputs, outputs, .. } = second;
    Ok(Table { ops, arena_elements, inputs, outputs, weights })
}

pub(super) fn unsupported(what: impl Into<String>) -> DeviceError {
    DeviceError::Unsupported { device: DEVICE.into(), what: what.into() }
}

/// A graph that is being compiled.
pub(super) struct Lowering<'g> {
    graph: &'g Graph,
    weights: &'g CpuWeights,
    schedule: &'g Schedule,
    sizes: Sizes,
    /// The offset of each buffer in bytes; empty in the first pass.
    offsets: Vec<usize>,
    /// The size of each buffer, and the operations that need it.
    buffers: Vec<Demand>,
    /// The buffer of each value that has one.
    values: Vec<Option<BufferId>>,
    /// Norms that their only reader computes, by their results.
    folded: HashMap<ValueId, NodeId>,
    /// Activations that the short convolutions in front of them have computed.
    followed: HashSet<NodeId>,
    /// Rotation tables, by positions, frequencies and magnitude.
    tables: HashMap<(ValueId, ValueId, u32), (BufferId, Slot)>,
    /// Gradients of losses that are computed beside them, of cotangents of one, by the gradient's result.
    loss_gradients: HashMap<ValueId, (BufferId, Slot)>,
    /// Numbers of weights whose int8 activations come with residuals.
    with_residuals: HashSet<usize>,
    /// The items that read each value itself, not a view of it.
    readers: Vec<Vec<usize>>,
    inputs: Vec<(Input, Slot)>,
    outputs: Vec<Slot>,
    ops: Vec<Entry>,
}

impl<'g> Lowering<'g> {
    fn new(
        graph: &'g Graph,
        weights: &'g CpuWeights,
        schedule: &'g Schedule,
        limits: &ProgramLimits,
        offsets: Vec<usize>,
    ) -> Self {
        let mut readers = vec![Vec::new(); graph.values().len()];
        for (number, item) in schedule.items().iter().enumerate() {
            for &node in item.nodes() {
                for input in &graph.node(node).inputs {
                    let readers: &mut Vec<usize> = &mut readers[input.0 as usize];
                    if readers.last() != Some(&number) {
                        readers.push(number);
                    }
                }
            }
        }
        Self {
            graph,
            weights,
            schedule,
            sizes: Sizes::at_most(limits),
            offsets,
            buffers: Vec::new(),
            values: vec![None; graph.values().len()],
            folded: HashMap::new(),
            followed: HashSet::new(),
            tables: HashMap::new(),
            loss_gradients: HashMap::new(),
            with_residuals: residuals::weights_with_residuals(graph),
            readers,
            inputs: Vec::new(),
            outputs: Vec::new(),
            ops: Vec::new(),
        }
    }

    fn lower(mut self) -> Result<Self, DeviceError> {
        for (id, value) in self.graph.values().iter().enumerate() {
            if let ValueKind::Input(input) = value.kind {
                let id = ValueId(id as u32);
                self.make(id)?;
                let slot = self.slot(id)?;
                self.inputs.push((input, slot));
            }
        }
        for item in self.schedule.items() {
            match item {
                Item::Single(node) => self.lower_node(*node)?,
                Item::Fused(fused) => {
                    if !self.lower_fused(fused)? {
                        for &node in &fused.nodes {
                            self.lower_node(node)?;
                        }
                    }
                }
            }
        }
        let outputs = self.graph.outputs().iter().map(|&output| self.lower_output(output));
        for (buffer, slot) in outputs.collect::<Result<Vec<_>, _>>()? {
            // Needed to the end, behind the copies of other outputs too.
            self.need(buffer);
            self.outputs.push(slot);
        }
        Ok(self)
    }

    fn node(&self, id: NodeId) -> &'g Node {
        self.graph.node(id)
    }

    fn shape(&self, value: ValueId) -> &'g Shape {
        &self.graph.value(value).shape
    }

    /// Elements along the innermost axis.
    fn width(&self, value: ValueId) -> Result<usize, DeviceError> {
        self.shape(value).width().ok_or_else(|| self.odd(value))
    }

    /// Elements of a row, over all inner axes.
    fn row_elements(&self, value: ValueId) -> Result<usize, DeviceError> {
        self.shape(value).row_elements().ok_or_else(|| self.odd(value))
    }

    /// The error for an operand of a shape that the device cannot place.
    fn odd(&self, value: ValueId) -> DeviceError {
        unsupported(format!("an operand {} here", self.graph.value(value)))
    }

    /// A new buffer of `elements`, which the next operation is the first to need.
    fn buffer(&mut self, elements: usize) -> BufferId {
        let now = self.ops.len();
        let size_bytes = elements.saturating_mul(ELEMENT_BYTES);
        self.buffers.push(Demand { items: (now, now), size_bytes });
        BufferId(self.buffers.len() - 1)
    }

    /// The first element of a buffer.
    fn offset(&self, buffer: BufferId) -> usize {
        self.offsets.get(buffer.0).map_or(0, |offset_bytes| offset_bytes / ELEMENT_BYTES)
    }

    /// Notes that the next operation needs a buffer.
    fn need(&mut self, buffer: BufferId) {
        self.buffers[buffer.0].items.1 = self.ops.len();
    }

    /// A dense temporary `[outer, width]`, written by the next operation.
    fn temporary(&mut self, outer: Dim, width: usize) -> (BufferId, Slot) {
        let buffer = self.buffer(outer.resolve(&self.sizes).saturating_mul(width));
        let width = Dim::from(width);
        (buffer, Slot { offset: self.offset(buffer), stride: width, width, outer })
    }

    /// Makes room for a result of the next operation, and returns its slot.
    fn make(&mut self, value: ValueId) -> Result<Slot, DeviceError> {
        let elements = self.shape(value).resolve(&self.sizes).into_iter().fold(1, usize::saturating_mul);
        let buffer = self.buffer(elements);
        self.values[value.0 as usize] = Some(buffer);
        self.slot(value)
    }

    /// The slot of a value that the next operation needs.
    fn slot(&mut self, value: ValueId) -> Result<Slot, DeviceError> {
        match self.source(value)? {
            Source::Arena(slot) => Ok(slot),
            Source::Weight(_) => Err(self.odd(value)),
        }
    }

    /// The place of a value that the next operation needs.
    fn source(&mut self, value: ValueId) -> Result<Source, DeviceError> {
        let view = self.graph.view(value);
        if let ValueKind::Weight(weight) = self.graph.value(view.root).kind {
            let (offset, stride) = (view.elements.start, view.row_stride);
            return Ok(Source::Weight(WeightView {
                weight: weight.0 as usize,
                offset,
                stride,
                width: view.elements.len(),
            }));
        }
        let Some(buffer) = self.values[view.root.0 as usize] else {
            return Err(unsupported(format!("{value} before it is made")));
        };
        self.need(buffer);
        let offset = self.offset(buffer);
        let outer = self.shape(value).outer();
        if view.root == value {
            let width = width_of(self.shape(value)).ok_or_else(|| self.odd(value))?;
            return Ok(Source::Arena(Slot { offset, stride: width, width, outer }));
        }
        let offset = offset + view.elements.start;
        Ok(Source::Arena(Slot {
            offset,
            stride: view.row_stride.into(),
            width: view.elements.len().into(),
            outer,
        }))
    }

    /// The place of a vector of constant length, as one row.
    fn vector(&mut self, value: ValueId) -> Result<Source, DeviceError> {
        let len = self.shape(value).outer().constant().ok_or_else(|| self.odd(value))?;
        Ok(match self.source(value)? {
            Source::Weight(view) if view.stride == 1 => {
                Source::Weight(WeightView { stride: len, width: len, ..view })
            }
            Source::Arena(slot) if slot.stride == Dim::from(1) => {
                Source::Arena(Slot { stride: len.into(), width: len.into(), outer: 1.into(), ..slot })
            }
            _ => return Err(self.odd(value)),
        })
    }

    /// The place of a part of a vector, as one row.
    fn part_of_vector(&mut self, value: ValueId, range: &Range<usize>) -> Result<Source, DeviceError> {
        Ok(match self.vector(value)? {
            Source::Weight(view) => {
                Source::Weight(WeightView { offset: view.offset + range.start, width: range.len(), ..view })
            }
            Source::Arena(slot) => {
                Source::Arena(Slot { offset: slot.offset + range.start, width: range.len().into(), ..slot })
            }
        })
    }

    /// The place of a value, or of a copy, whose rows follow each other without gaps.
    fn dense(&mut self, value: ValueId) -> Result<Source, DeviceError> {
        let source = self.source(value)?;
        let (stride, width) = match source {
            Source::Arena(slot) => (slot.stride, slot.width),
            Source::Weight(view) => (view.stride.into(), view.width.into()),
        };
        if stride == width {
            return Ok(source);
        }
        let elements = self.shape(value).resolve(&self.sizes).into_iter().fold(1, usize::saturating_mul);
        let buffer = self.buffer(elements);
        let out =
            Slot { offset: self.offset(buffer), stride: width, width, outer: self.shape(value).outer() };
        self.push(CompiledOp::Copy(CopyOp { x: source, out: Out::by_rows(out) }), "copy");
        self.need(buffer);
        Ok(Source::Arena(out))
    }

    /// Appends an operation.
    fn push(&mut self, op: CompiledOp, label: impl Into<String>) {
        let mut operands = Operands::default();
        op.operands(&mut operands);
        self.ops.push(Entry { op, operands: operands.0, label: label.into() });
    }

    /// The number of a weight.
    fn weight(&self, value: ValueId) -> Option<usize> {
        match self.graph.value(value).kind {
            ValueKind::Weight(weight) => Some(weight.0 as usize),
            _ => None,
        }
    }

    /// The label of an operation with a weight.
    fn label(&self, operation: &str, weight: usize) -> String {
        format!("{operation} {}", self.graph.weights()[weight].name)
    }

    /// A result of the program as dense rows: the value itself or a copy.
    fn lower_output(&mut self, value: ValueId) -> Result<(BufferId, Slot), DeviceError> {
        let x = self.source(value)?;
        if let Source::Arena(slot) = x
            && slot.stride == slot.width
            && let Some(buffer) = self.values[self.graph.view(value).root.0 as usize]
        {
            return Ok((buffer, slot));
        }
        let outer = self.shape(value).outer();
        let width = width_of(self.shape(value)).ok_or_else(|| self.odd(value))?;
        let elements = self.shape(value).resolve(&self.sizes).into_iter().fold(1, usize::saturating_mul);
        let buffer = self.buffer(elements);
        let out = Slot { offset: self.offset(buffer), stride: width, width, outer };
        self.push(CompiledOp::Copy(CopyOp { x, out: Out::by_rows(out) }), "copy");
        Ok((buffer, out))
    }
}

/// The product of all inner axes; `None` if more than one is symbolic.
fn width_of(shape: &Shape) -> Option<Dim> {
    shape.0.iter().skip(1).try_fold(Dim::from(1), |width, dim| {
        let symbol = match (width.symbol, dim.symbol) {
            (Some(_), Some(_)) => return None,
            (one, other) => one.or(other),
        };
        Some(Dim { factor: width.factor.saturating_mul(dim.factor), symbol })
    })
}

/// True if a fused item (or a linear node) computes the norm of its operand `x` itself.
fn takes_norm(graph: &Graph, item: &Item, x: ValueId) -> bool {
    match item {
        Item::Single(node) => {
            let node = graph.node(*node);
            matches!(node.op, Op::Linear(_))
                && node.inputs[0] == x
                && matches!(graph.value(node.inputs[1]).kind, ValueKind::Weight(_))
        }
        Item::Fused(fused) => match &fused.fusion {
            Fusion::LinearResidual(sum) => sum.x == x && sum.residual != x,
            Fusion::GateUpActivation(pair) => pair.x == x,
            Fusion::LinearActivation(layer) => layer.x == x,
            _ => false,
        },
    }
}

/// The error for an arena that cannot be allocated.
pub(crate) fn out_of_memory(elements: usize, limits: &ProgramLimits) -> DeviceError {
    DeviceError::OutOfMemory {
        bytes: (elements as u64).saturating_mul(ELEMENT_BYTES as u64),
        what: format!("an arena for steps of {} rows", limits.max_rows),
    }
}
