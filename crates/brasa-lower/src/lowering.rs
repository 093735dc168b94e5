//! The builder of a table of operations and of the buffers that they need, and the table.

use std::collections::HashSet;
use std::fmt::Write as _;

use brasa_graph::device::{DeviceError, ProgramLimits};
use brasa_graph::op::Rope;
use brasa_graph::{Dim, Graph, Input, Shape, Sizes, Symbol, ValueId, ValueKind, WeightId};

use crate::arena::{Demand, lay_out};
use crate::{Base, BufferId, Place, Readers};

/// Bytes of every element in an arena. Values of 16-bit types are stored as f32.
const ELEMENT_BYTES: usize = 4;

/// A graph that is being lowered to a [`Table`] of operations `O`.
///
/// A device asks for the places of an operation's operands ([`place`](Self::place)) and results ([`make`](Self::make)), then
/// appends the operation ([`push`](Self::push)). A buffer lives from the first to the last operation that needs it.
#[derive(Debug)]
pub struct Lowering<'g, O> {
    /// The graph.
    pub graph: &'g Graph,
    /// The sizes of the largest step.
    pub sizes: Sizes,
    /// The readers of each value of the graph.
    pub readers: Readers,
    device: String,
    /// The size of each buffer in bytes, and the operations that need it.
    demands: Vec<Demand>,
    /// A description of each buffer's contents, for people; empty for a buffer without a [`name`](Self::name).
    names: Vec<String>,
    /// Buffers that keep their contents from step to step.
    kept: HashSet<BufferId>,
    /// The buffer of each value, by the value's number; `None` if the value has none.
    values: Vec<Option<BufferId>>,
    /// Buffers of tables of cosines and sines, each with its rotation, positions and frequencies.
    rotations: Vec<((Rope, ValueId, ValueId), BufferId)>,
    ops: Vec<Entry<O>>,
    /// Buffers that the next operation needs.
    needed: Vec<BufferId>,
}

/// An operation of a table.
#[derive(Debug)]
pub struct Entry<O> {
    /// The operation.
    pub op: O,
    /// The operation and its weight, for people.
    pub label: String,
    /// Buffers that the operation needs.
    pub buffers: Vec<BufferId>,
}

/// A lowered graph: its operations, and the layout of the arena that they share.
#[derive(Debug)]
pub struct Table<O> {
    /// The operations, in the order in which they run.
    pub ops: Vec<Entry<O>>,
    /// Offset of each buffer in the arena, in bytes, by [`BufferId::index`].
    pub offsets: Vec<usize>,
    /// The size of each buffer in bytes, and the operations that need it, by [`BufferId::index`].
    pub demands: Vec<Demand>,
    /// A description of each buffer's contents, for people, by [`BufferId::index`]; empty for a buffer without a name.
    pub names: Vec<String>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// Buffers that keep their contents from step to step.
    pub kept: HashSet<BufferId>,
    /// The results of the program, in the order of the graph's outputs.
    pub outputs: Vec<Place>,
}

/// A value without gaps between its rows.
#[derive(Clone, Debug)]
pub enum Dense {
    /// The value itself is dense.
    Already(Place),
    /// The value has gaps between its rows. The device must append a copy with [`Lowering::push_in_front`].
    Copied {
        /// The value, with gaps.
        from: Place,
        /// A buffer for the copy.
        to: Place,
    },
}

impl<'g, O> Lowering<'g, O> {
    /// Begins to lower `graph` for the largest step that `limits` allow. Errors name `device`.
    pub fn new(device: impl Into<String>, graph: &'g Graph, limits: &ProgramLimits) -> Self {
        Self {
            graph,
            sizes: Sizes::at_most(limits),
            readers: Readers::of(graph),
            device: device.into(),
            demands: Vec::new(),
            names: Vec::new(),
            kept: HashSet::new(),
            values: vec![None; graph.values().len()],
            rotations: Vec::new(),
            ops: Vec::new(),
            needed: Vec::new(),
        }
    }

    /// [`DeviceError::Unsupported`] by this device. `what` names the part of the graph that the device does not compute.
    pub fn unsupported(&self, what: impl Into<String>) -> DeviceError {
        DeviceError::Unsupported { device: self.device.clone(), what: what.into() }
    }

    /// [`DeviceError::Unsupported`] for the operand `value`: the device does not take its shape, type or place.
    pub fn odd(&self, value: ValueId) -> DeviceError {
        self.unsupported(format!("an operand {} here", self.graph.value(value)))
    }

    /// The shape of a value.
    pub fn shape(&self, value: ValueId) -> &'g Shape {
        &self.graph.value(value).shape
    }

    /// Elements along the innermost axis.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if their number depends on the step.
    pub fn width(&self, value: ValueId) -> Result<usize, DeviceError> {
        self.shape(value).width().ok_or_else(|| self.odd(value))
    }

    /// Elements of a row, over all inner axes.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if their number depends on the step.
    pub fn row_elements(&self, value: ValueId) -> Result<usize, DeviceError> {
        self.shape(value).row_elements().ok_or_else(|| self.odd(value))
    }

    /// Rows of a value for each row of the step.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if their number is no multiple of the step's rows.
    pub fn rows_per_row(&self, value: ValueId) -> Result<usize, DeviceError> {
        let Dim { factor, symbol } = self.shape(value).outer();
        if symbol == Some(Symbol::Rows) { Ok(factor) } else { Err(self.odd(value)) }
    }

    /// Elements of a value of `shape` in the largest step.
    pub fn elements(&self, shape: &Shape) -> usize {
        shape.resolve(&self.sizes).into_iter().fold(1, usize::saturating_mul)
    }

    /// The id of the weight `value`; `None` if `value` is no weight, or a view of one.
    pub fn weight_of(&self, value: ValueId) -> Option<WeightId> {
        match self.graph.value(value).kind {
            ValueKind::Weight(weight) => Some(weight),
            _ => None,
        }
    }

    /// The index of the weight `value` in [`Graph::weights`]; `None` if `value` is no weight, or a view of one.
    pub fn weight(&self, value: ValueId) -> Option<usize> {
        self.weight_of(value).map(|weight| weight.0 as usize)
    }

    /// The label of an operation with a weight: `operation`, then the name of weight number `weight`.
    pub fn label(&self, operation: &str, weight: usize) -> String {
        format!("{operation} {}", self.graph.weights()[weight].name)
    }

    /// True if `value` is the input `input` of the step itself, not a view of it.
    pub fn is_input(&self, value: ValueId, input: Input) -> bool {
        self.graph.value(value).kind == ValueKind::Input(input)
    }

    /// A new buffer of `elements` elements of four bytes, which the next operation needs.
    pub fn buffer(&mut self, elements: usize) -> BufferId {
        let now = self.ops.len();
        let buffer = BufferId(self.demands.len() as u32);
        self.demands.push(Demand { items: (now, now), size_bytes: elements.saturating_mul(ELEMENT_BYTES) });
        self.names.push(String::new());
        self.needed.push(buffer);
        buffer
    }

    /// Describes the contents of `buffer` by `name`, for people.
    pub fn name(&mut self, buffer: BufferId, name: impl Into<String>) {
        self.names[buffer.index()] = name.into();
    }

    /// A new buffer for a dense value of `shape` that the next operation makes, as a place.
    pub fn make_shape(&mut self, shape: Shape) -> Place {
        let elements = self.elements(&shape);
        Place::whole(self.buffer(elements), shape)
    }

    /// The place of `value`, which the next operation makes: the buffer that the value already has, or a new one.
    pub fn make(&mut self, value: ValueId) -> Place {
        Place::whole(self.buffer_of(value), self.shape(value).clone())
    }

    /// The buffer of `value`, which the next operation makes: the one that the value already has, or a new one.
    pub fn buffer_of(&mut self, value: ValueId) -> BufferId {
        if let Some(known) = self.values[value.0 as usize] {
            self.need(known);
            return known;
        }
        let elements = self.elements(self.shape(value));
        let buffer = self.buffer(elements);
        self.set_buffer(value, buffer);
        buffer
    }

    /// Places `value` in `buffer`. A buffer without a name is named after the value.
    pub fn set_buffer(&mut self, value: ValueId, buffer: BufferId) {
        self.values[value.0 as usize] = Some(buffer);
        if self.names[buffer.index()].is_empty() {
            self.name(buffer, format!("{value} {}", self.graph.value(value)));
        }
    }

    /// True if `value`, or the value that it is a view of, has a buffer.
    pub fn is_made(&self, value: ValueId) -> bool {
        self.values[self.graph.view(value).root.0 as usize].is_some()
    }

    /// The place of a value that the next operation reads.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] for a value that no operation has made.
    pub fn place(&mut self, value: ValueId) -> Result<Place, DeviceError> {
        let view = self.graph.view(value);
        let base = match (self.values[view.root.0 as usize], self.graph.value(view.root).kind) {
            (Some(buffer), _) => {
                self.need(buffer);
                Base::Buffer(buffer)
            }
            (None, ValueKind::Input(input)) => Base::Input(input),
            (None, ValueKind::Weight(weight)) => Base::Weight(weight),
            (None, ValueKind::Temporary(_) | ValueKind::Removed) => return Err(self.odd(value)),
        };
        let is_view = view.root != value;
        Ok(Place {
            base,
            start: if is_view { view.elements.start } else { 0 },
            row_stride: is_view.then_some(view.row_stride),
            shape: self.shape(value).clone(),
        })
    }

    /// The place of a value that the next operation reads without gaps between rows; with a buffer for a copy if it has gaps.
    ///
    /// # Errors
    ///
    /// The errors of [`place`](Self::place).
    pub fn dense_place(&mut self, value: ValueId) -> Result<Dense, DeviceError> {
        let from = self.place(value)?;
        if from.is_dense() {
            return Ok(Dense::Already(from));
        }
        let to = self.make_shape(from.shape.clone());
        Ok(Dense::Copied { from, to })
    }

    /// Notes that the next operation needs a buffer.
    pub fn need(&mut self, buffer: BufferId) {
        self.demands[buffer.index()].items.1 = self.ops.len();
        self.needed.push(buffer);
    }

    /// Appends `op`. It needs every buffer that was asked for since the last `push`.
    pub fn push(&mut self, op: O, label: impl Into<String>) {
        let mut buffers = std::mem::take(&mut self.needed);
        for buffer in &buffers {
            self.demands[buffer.index()].items.1 = self.ops.len();
        }
        buffers.sort_unstable();
        buffers.dedup();
        self.ops.push(Entry { op, label: label.into(), buffers });
    }

    /// Appends `op`, such as a copy of an operand, in front of the next operation. Both need the buffers that were asked for
    /// since the last [`push`](Self::push).
    pub fn push_in_front(&mut self, op: O, label: impl Into<String>) {
        // Among them are those of the operation behind, which alone knows its own.
        let buffers = self.needed.clone();
        self.ops.push(Entry { op, label: label.into(), buffers });
    }

    /// The buffer of cosines and sines of the rotation `rope` by `positions` and `frequencies`, which the next operation needs;
    /// `None` if [`keep_rotation`](Self::keep_rotation) has noted no such buffer.
    pub fn rotation(&mut self, rope: &Rope, positions: ValueId, frequencies: ValueId) -> Option<BufferId> {
        let key = (*rope, positions, frequencies);
        let found = self.rotations.iter().find(|(known, _)| *known == key);
        let &(_, buffer) = found?;
        self.need(buffer);
        Some(buffer)
    }

    /// Notes that `buffer` holds the cosines and sines of a rotation, so that layers with the same rotation share it.
    pub fn keep_rotation(&mut self, rope: &Rope, [positions, frequencies]: [ValueId; 2], buffer: BufferId) {
        self.rotations.push(((*rope, positions, frequencies), buffer));
    }

    /// Bytes of an arena for all buffers so far, each at a multiple of `alignment` bytes.
    pub fn arena_bytes(&self, alignment: usize) -> usize {
        lay_out(&self.demands, alignment).1
    }

    /// Bytes that `buffer` takes from an arena: its size, rounded up to a multiple of `alignment` bytes.
    pub fn taken_bytes(&self, buffer: BufferId, alignment: usize) -> usize {
        self.demands[buffer.index()].taken_bytes(alignment)
    }

    /// Keeps the contents of a buffer from step to step: no other buffer shares its bytes.
    pub fn keep(&mut self, buffer: BufferId) {
        self.demands[buffer.index()].items = (0, usize::MAX);
        self.kept.insert(buffer);
    }

    /// Lays out the arena, with buffers at multiples of `alignment` bytes, and returns the table. The buffers of `outputs` live
    /// to its end.
    pub fn finish(mut self, outputs: Vec<Place>, alignment: usize) -> Table<O> {
        for output in &outputs {
            if let Base::Buffer(buffer) = output.base
                && !self.kept.contains(&buffer)
            {
                self.need(buffer);
            }
        }
        let (offsets, arena_bytes) = lay_out(&self.demands, alignment);
        let Self { ops, demands, names, kept, .. } = self;
        Table { ops, offsets, demands, names, arena_bytes, kept, outputs }
    }
}

impl<O> Table<O> {
    /// Lines for people about the buffers of operation number `number`: contents and offset in bytes of each buffer that the
    /// operation reads or makes, and the bytes that no other operation needs.
    ///
    /// ```text
    ///   reads %3 f32[rows, 64] @ 0
    ///   makes %4 f32[rows, 64] @ 131072
    ///   uses  4096 bytes of its own
    /// ```
    pub fn describe_buffers(&self, number: usize) -> String {
        let mut out = String::new();
        let mut own_bytes = 0;
        for &buffer in &self.ops[number].buffers {
            let Demand { items: (first, last), size_bytes } = self.demands[buffer.index()];
            let (name, offset_bytes) = (&self.names[buffer.index()], self.offsets[buffer.index()]);
            if name.is_empty() && first == last {
                own_bytes += size_bytes;
                continue;
            }
            let verb = if first == number { "makes" } else { "reads" };
            let name = if name.is_empty() { "what an operation keeps" } else { name };
            let _ = writeln!(out, "  {verb} {name} @ {offset_bytes}");
        }
        if own_bytes > 0 {
            let _ = writeln!(out, "  uses  {own_bytes} bytes of its own");
        }
        out
    }
}
