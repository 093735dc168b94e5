//! Compiles a graph to a table of operations over one arena.
//!
//! The graph is scheduled, which fuses nodes into items; every item becomes an operation with resolved operands. What all devices do
//! alike, places and lifetimes of values above all, is in [`brasa_lower`].
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
use std::ops::{Deref, DerefMut, Range};

use brasa_graph::device::{DeviceError, ProgramLimits};
use brasa_graph::fuse::{Fusion, Pattern};
use brasa_graph::{Dim, Graph, Input, Item, Node, NodeId, Op, Schedule, Shape, ValueId, ValueKind};
use brasa_lower::{Base, Dense, Lowering, Place};

use crate::arena::ELEMENT_BYTES;
use crate::error::DEVICE;
use crate::memory::ALIGNMENT_BYTES;
use crate::ops::CompiledOp;
use crate::ops::arrange::CopyOp;
use crate::slot::{Operand, Operands, Out, Places, Slot, Source, WeightView, collision};
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
    /// First element of each buffer in the arena.
    pub offsets: Vec<usize>,
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
    let mut compiler = Compiler::new(graph, weights, &schedule, limits);
    let inputs = compiler.inputs()?;
    for item in schedule.items() {
        compiler.lower_item(item)?;
    }
    let outputs = graph.outputs().iter().map(|&output| compiler.output(output));
    let outputs = outputs.collect::<Result<Vec<Place>, _>>()?;
    let slots = outputs.iter().map(slot_at).collect::<Result<_, _>>()?;
    let sizes = compiler.sizes;
    let table = compiler.lowering.finish(outputs, ALIGNMENT_BYTES);
    let arena_elements = table.arena_bytes / ELEMENT_BYTES;
    if table.arena_bytes > isize::MAX as usize {
        return Err(out_of_memory(arena_elements, limits));
    }
    let offsets: Vec<usize> = table.offsets.iter().map(|offset_bytes| offset_bytes / ELEMENT_BYTES).collect();
    let places = Places { sizes: &sizes, offsets: &offsets };
    let mut ops = Vec::with_capacity(table.ops.len());
    for brasa_lower::Entry { op, label, .. } in table.ops {
        let mut operands = Operands::default();
        op.operands(&mut operands);
        let Operands(operands) = operands;
        let collision = collision(&operands, &places);
        assert!(collision.is_none(), "{label}: {collision:?}");
        ops.push(Entry { op, operands, label });
    }
    let weights = graph.weights().iter().map(|weight| weight.name.clone()).collect();
    Ok(Table { ops, offsets, arena_elements, inputs, outputs: slots, weights })
}

pub(super) fn unsupported(what: impl Into<String>) -> DeviceError {
    DeviceError::Unsupported { device: DEVICE.into(), what: what.into() }
}

/// A graph that is being compiled: its [`Lowering`], and notes for the lowering of later operations.
pub(super) struct Compiler<'g> {
    lowering: Lowering<'g, CompiledOp>,
    weights: &'g CpuWeights,
    schedule: &'g Schedule,
    /// Norms that their only reader computes, by their results.
    folded: HashMap<ValueId, NodeId>,
    /// Activations that the short convolutions in front of them have computed.
    followed: HashSet<NodeId>,
    /// Gradients that the operation of a loss computes too, for cotangents of one; by the result of the gradient's node.
    loss_gradients: HashMap<ValueId, Slot>,
    /// Numbers of weights whose int8 activations come with residuals.
    with_residuals: HashSet<usize>,
}

impl<'g> Deref for Compiler<'g> {
    type Target = Lowering<'g, CompiledOp>;

    fn deref(&self) -> &Self::Target {
        &self.lowering
    }
}

impl DerefMut for Compiler<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.lowering
    }
}

impl<'g> Compiler<'g> {
    fn new(
        graph: &'g Graph,
        weights: &'g CpuWeights,
        schedule: &'g Schedule,
        limits: &ProgramLimits,
    ) -> Self {
        Self {
            lowering: Lowering::new(DEVICE, graph, limits),
            weights,
            schedule,
            folded: HashMap::new(),
            followed: HashSet::new(),
            loss_gradients: HashMap::new(),
            with_residuals: residuals::weights_with_residuals(graph),
        }
    }

    /// Makes room in the arena for the step's numbers.
    fn inputs(&mut self) -> Result<Vec<(Input, Slot)>, DeviceError> {
        let mut inputs = Vec::new();
        for (id, value) in self.graph.values().iter().enumerate() {
            if let ValueKind::Input(input) = value.kind {
                inputs.push((input, self.make(ValueId(id as u32))?));
            }
        }
        Ok(inputs)
    }

    fn lower_item(&mut self, item: &Item) -> Result<(), DeviceError> {
        match item {
            Item::Single(node) => self.lower_node(*node),
            Item::Fused(fused) => {
                if self.lower_fused(fused)? {
                    return Ok(());
                }
                fused.nodes.iter().try_for_each(|&node| self.lower_node(node))
            }
        }
    }

    fn node(&self, id: NodeId) -> &'g Node {
        self.lowering.graph.node(id)
    }

    /// A dense temporary `[outer, width]`, written by the next operation.
    fn temporary(&mut self, outer: Dim, width: usize) -> Slot {
        let elements = outer.resolve(&self.sizes).saturating_mul(width);
        let (buffer, width) = (self.buffer(elements), Dim::from(width));
        Slot { buffer, offset: 0, stride: width, width, outer }
    }

    /// Notes that the next operation needs what lies in a slot.
    fn need_slot(&mut self, slot: Slot) -> Slot {
        self.need(slot.buffer);
        slot
    }

    /// Makes room for a result of the next operation, and returns its slot.
    fn make(&mut self, value: ValueId) -> Result<Slot, DeviceError> {
        let place = self.lowering.make(value);
        slot_at(&place)
    }

    /// The slot of a value that the next operation needs.
    fn slot(&mut self, value: ValueId) -> Result<Slot, DeviceError> {
        let place = self.place(value)?;
        slot_at(&place)
    }

    /// The place of a value that the next operation needs.
    fn source(&mut self, value: ValueId) -> Result<Source, DeviceError> {
        let place = self.place(value)?;
        source_at(&place)
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
        match self.dense_place(value)? {
            Dense::Already(place) => source_at(&place),
            Dense::Copied { from, to } => {
                self.copy(&from, &to)?;
                source_at(&to)
            }
        }
    }

    /// A result of the program as dense rows of the arena: the value itself or a copy.
    fn output(&mut self, value: ValueId) -> Result<Place, DeviceError> {
        let (from, to) = match self.dense_place(value)? {
            Dense::Already(place) if matches!(place.base, Base::Buffer(_)) => return Ok(place),
            Dense::Already(from) => {
                let to = self.make_shape(from.shape.clone());
                (from, to)
            }
            Dense::Copied { from, to } => (from, to),
        };
        self.copy(&from, &to)?;
        Ok(to)
    }

    /// Appends a copy in front of the next operation.
    fn copy(&mut self, from: &Place, to: &Place) -> Result<(), DeviceError> {
        let (x, out) = (source_at(from)?, Out::by_rows(slot_at(to)?));
        self.push_in_front(CompiledOp::Copy(CopyOp { x, out }), "copy");
        Ok(())
    }
}

/// The slot of a place in the arena.
fn slot_at(place: &Place) -> Result<Slot, DeviceError> {
    match source_at(place)? {
        Source::Arena(slot) => Ok(slot),
        Source::Weight(_) => Err(unsupported(format!("an operand {} here", place.shape))),
    }
}

/// The place as an operand of operations.
fn source_at(place: &Place) -> Result<Source, DeviceError> {
    let Place { base, start: offset, row_stride, ref shape } = *place;
    let odd = || unsupported(format!("an operand {shape} here"));
    let width = width_of(shape).ok_or_else(odd)?;
    let stride = row_stride.map_or(width, Dim::from);
    match base {
        Base::Buffer(buffer) => {
            Ok(Source::Arena(Slot { buffer, offset, stride, width, outer: shape.outer() }))
        }
        Base::Weight(weight) => {
            let (stride, width) = stride.constant().zip(width.constant()).ok_or_else(odd)?;
            Ok(Source::Weight(WeightView { weight: weight.0 as usize, offset, stride, width }))
        }
        Base::Input(_) => Err(odd()),
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
