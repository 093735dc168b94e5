//! From a graph to a table of operations over one arena.
//!
//! Every node but views becomes an operation of its own, or one with its neighbours. What each operation reads and writes says how
//! long buffers are needed, hence where they lie.

mod ahead;
mod attention_rows;
mod banks;
mod chains;
mod derivatives;
mod fused;
mod head_linear;
mod joins;
mod linear;
mod losses;
mod mixture;
mod nodes;
mod paneled;
mod recurrent;
mod tails;
mod transposed;

use std::collections::{HashMap, HashSet};

use brasa_graph::arena::{Demand, lay_out};
use brasa_graph::device::{DeviceError, ProgramLimits};
use brasa_graph::fuse::Norm;
use brasa_graph::op::{Attention, Rope};
use brasa_graph::{Dim, Graph, Input, Item, NodeId, Schedule, Shape, Sizes, ValueId, ValueKind};

use crate::driver::Kernel;
use crate::gpu::Gpu;
use crate::ops::{CopyOp, Launch, LeftParts, Panels};
use crate::run::{AXES, Base, Slot};
use crate::weights::CudaWeights;
use ahead::GatedProduct;
use chains::Chain;
use fused::PATTERNS;
use joins::Place;
use mixture::Addition;
pub(crate) use nodes::CAPABILITIES;
use paneled::Paneled;
use tails::Beside;

/// Alignment of every buffer of an arena.
const ALIGNMENT_BYTES: usize = 256;

/// A compiled graph.
#[derive(Debug)]
pub(crate) struct Table {
    pub ops: Vec<Entry>,
    /// Offset of each buffer in the arena, in bytes.
    pub offsets: Vec<usize>,
    pub arena_bytes: usize,
    /// Buffers that keep their contents from step to step.
    pub kept: HashSet<usize>,
    /// The program's results: dense rows.
    pub outputs: Vec<Slot>,
    /// True if an operation looks up numbers that are computed in the step, so that only the device can check them.
    pub computes_numbers: bool,
}

/// An operation and its name.
#[derive(Debug)]
pub(crate) struct Entry {
    pub op: Box<dyn Launch>,
    /// For people: the operation and its weight.
    pub label: String,
}

/// Compiles `graph`.
///
/// # Errors
///
/// [`DeviceError::Unsupported`]: an operation on shapes that the device cannot place; [`DeviceError::OutOfMemory`]: values
/// beyond any memory.
pub(crate) fn compile(
    gpu: &Gpu,
    graph: &Graph,
    weights: &CudaWeights,
    limits: &ProgramLimits,
) -> Result<Table, DeviceError> {
    let mut lowering = Lowering {
        gpu,
        graph,
        weights,
        exact: !weights.is_fast(),
        sizes: Sizes::at_most(limits),
        buffers: Vec::new(),
        values: vec![None; graph.values().len()],
        normed: HashMap::new(),
        rounded: HashMap::new(),
        meet_heads: Vec::new(),
        left_parts: HashMap::new(),
        attended: Vec::new(),
        loss_gradients: HashMap::new(),
        chains: HashMap::new(),
        joins: HashMap::new(),
        places: HashMap::new(),
        banked: HashSet::new(),
        tails: HashMap::new(),
        paneled: HashMap::new(),
        panels_made: HashMap::new(),
        thin: HashSet::new(),
        absorbed: HashSet::new(),
        gates: HashMap::new(),
        gated_scales: HashMap::new(),
        mixtures: HashMap::new(),
        folded: Vec::new(),
        convolutions: HashMap::new(),
        rotations: Vec::new(),
        turned: Vec::new(),
        ops: Vec::new(),
        needed: Vec::new(),
        computes_numbers: false,
    };
    lowering.check_sizes(limits)?;
    let schedule = Schedule::choose(graph, PATTERNS, |fused| lowering.fuses(fused));
    lowering.find_banks(&schedule);
    lowering.find_heads(&schedule);
    lowering.find_gates(&schedule);
    lowering.find_mixtures(&schedule);
    lowering.find_tails(&schedule);
    lowering.find_chains(&schedule);
    lowering.find_convolutions(&schedule);
    lowering.find_joins(&schedule);
    lowering.find_paneled(&schedule);
    for item in schedule.items() {
        match item {
            Item::Single(node) if lowering.folded.contains(node) => {}
            Item::Single(node) => lowering.lower_node(*node)?,
            Item::Fused(fused) => lowering.lower_fused(fused)?,
        }
    }
    let outputs = graph.outputs().iter().map(|&output| lowering.dense(output));
    let outputs = outputs.collect::<Result<Vec<Slot>, _>>()?;
    for slot in &outputs {
        // Needed to the end, behind the copies of other outputs too.
        if let Base::Buffer(buffer) = slot.base {
            lowering.need(buffer);
        }
    }
    let (mut offsets, mut arena_bytes) = lay_out(&lowering.buffers, ALIGNMENT_BYTES);
    let kept = lowering.keep_turned(arena_bytes)?;
    if !kept.is_empty() {
        (offsets, arena_bytes) = lay_out(&lowering.buffers, ALIGNMENT_BYTES);
    }
    let Lowering { ops, computes_numbers, .. } = lowering;
    Ok(Table { ops, offsets, arena_bytes, kept, outputs, computes_numbers })
}

/// Attention to rows that keeps something for its gradient.
#[derive(Debug)]
struct Attended {
    /// Queries, keys and values.
    operands: [ValueId; 3],
    attention: Attention,
    /// The buffer of what is kept.
    kept: usize,
    result: ValueId,
}

/// A graph on its way.
struct Lowering<'g> {
    gpu: &'g Gpu,
    graph: &'g Graph,
    weights: &'g CudaWeights,
    /// True if sums are f32 throughout, in an order that depends on a row alone.
    exact: bool,
    sizes: Sizes,
    buffers: Vec<Demand>,
    /// The buffer of each value that has one.
    values: Vec<Option<usize>>,
    /// Norms that the products behind them compute: the result, what is normed, and how.
    normed: HashMap<ValueId, (ValueId, Norm)>,
    /// Values that an operation has rounded for products, and where.
    rounded: HashMap<ValueId, Panels>,
    /// Products whose only readers are the heads of one cache write.
    meet_heads: Vec<ValueId>,
    /// Sums of parts of K that products leave to the heads behind, by their results.
    left_parts: HashMap<ValueId, LeftParts>,
    /// Attention to rows whose gradient comes.
    attended: Vec<Attended>,
    /// Buffers of the gradients of the losses of rows, by the gradients that are these times factors of rows.
    loss_gradients: HashMap<ValueId, usize>,
    /// Chains of operations on each element, by the last node.
    chains: HashMap<NodeId, Chain>,
    /// Values that are joined side by side, each with the elements of a row in front of it, by the node that joins them.
    joins: HashMap<NodeId, Vec<(ValueId, usize)>>,
    /// Values that are written where they are joined.
    places: HashMap<ValueId, Place>,
    /// Sums of banks of adapters that are not added within a product, and leave no sums of parts to the heads behind.
    banked: HashSet<ValueId>,
    /// Products with low-rank products beside them, by their sums.
    tails: HashMap<ValueId, Beside>,
    /// Values that are read as halves in panels, and those panels that have been made.
    paneled: HashMap<ValueId, Paneled>,
    panels_made: HashMap<ValueId, Panels>,
    /// Low-rank products that gradients of matrices read.
    thin: HashSet<ValueId>,
    /// Sums of fused products that are computed by the product behind.
    absorbed: HashSet<ValueId>,
    /// Gated products without a bias, by what is multiplied.
    gates: HashMap<ValueId, GatedProduct>,
    /// Buffers of the powers of two by which rows of gated products are divided, by the products.
    gated_scales: HashMap<ValueId, usize>,
    /// Additions behind mixtures of experts, by the mixtures' results.
    mixtures: HashMap<ValueId, Addition>,
    /// Nodes that an operation in front has computed.
    folded: Vec<NodeId>,
    /// Activations behind short convolutions that nothing else reads, by the convolutions' results.
    convolutions: HashMap<ValueId, NodeId>,
    /// Buffers of weights that are turned around for products with their other side, and do not change.
    turned: Vec<usize>,
    /// Tables of rotations that there are: what makes them, and their buffers.
    rotations: Vec<((Rope, ValueId, ValueId), usize)>,
    ops: Vec<Entry>,
    /// Buffers that the next operation reads or writes. Copies of its operands, which run before it, must not overwrite them.
    needed: Vec<usize>,
    computes_numbers: bool,
}

impl<'g> Lowering<'g> {
    /// Every value has few enough axes and elements for kernels to count.
    fn check_sizes(&self, limits: &ProgramLimits) -> Result<(), DeviceError> {
        for value in self.graph.values() {
            if value.shape.rank() > AXES {
                return Err(self.gpu.unsupported(format!("a value {value} of more than {AXES} axes")));
            }
            let elements = value.shape.resolve(&self.sizes).into_iter().fold(1, usize::saturating_mul);
            let is_weight = matches!(value.kind, ValueKind::Weight(_));
            if elements > u32::MAX as usize && !is_weight {
                return Err(DeviceError::OutOfMemory {
                    bytes: (elements as u64).saturating_mul(4),
                    what: format!("a value {value} of steps of {} rows", limits.max_rows),
                });
            }
        }
        Ok(())
    }

    fn shape(&self, value: ValueId) -> &'g Shape {
        &self.graph.value(value).shape
    }

    /// The refusal of an operand.
    fn odd(&self, value: ValueId) -> DeviceError {
        self.gpu.unsupported(format!("an operand {} here", self.graph.value(value)))
    }

    fn kernel(&self, name: &str) -> Result<Kernel, DeviceError> {
        self.gpu.kernel(name)
    }

    /// One kernel for each element type of pools.
    fn kernels_of_types(&self, name: &str) -> Result<[Kernel; 4], DeviceError> {
        let [a, b, c, d] = ["f32", "f16", "bf16", "q8"].map(|kind| self.kernel(&format!("{name}_{kind}")));
        Ok([a?, b?, c?, d?])
    }

    /// Allocates a value for the next operation's result; the same place if the value can be computed in several ways.
    fn make(&mut self, value: ValueId) -> Slot {
        let buffer = match self.values[value.0 as usize] {
            Some(known) => {
                self.need(known);
                known
            }
            None => self.buffer(self.shape(value)),
        };
        self.values[value.0 as usize] = Some(buffer);
        Slot { base: Base::Buffer(buffer), start: 0, row_stride: None, shape: self.shape(value).clone() }
    }

    fn buffer(&mut self, shape: &Shape) -> usize {
        self.scratch(shape.resolve(&self.sizes).into_iter().fold(1, usize::saturating_mul))
    }

    /// Room for `elements` that the next operation makes and reads itself. Each has four bytes, halves too, which are kept as the floats
    /// that they stand for.
    fn scratch(&mut self, elements: usize) -> usize {
        let now = self.ops.len();
        self.buffers.push(Demand { items: (now, now), size_bytes: elements.saturating_mul(4) });
        self.needed.push(self.buffers.len() - 1);
        self.buffers.len() - 1
    }

    /// The slot of a value that the next operation reads.
    fn slot(&mut self, value: ValueId) -> Result<Slot, DeviceError> {
        let view = self.graph.view(value);
        let base = match self.graph.value(view.root).kind {
            ValueKind::Input(input) => Base::Input(input),
            ValueKind::Weight(weight) => {
                let number = weight.0 as usize;
                self.weights.decoded(number).ok_or_else(|| self.odd(value))?;
                Base::Decoded(number)
            }
            ValueKind::Temporary(_) => {
                let buffer = self.values[view.root.0 as usize].ok_or_else(|| self.odd(value))?;
                self.need(buffer);
                Base::Buffer(buffer)
            }
            ValueKind::Removed => return Err(self.odd(value)),
        };
        let row_stride = (view.root != value).then_some(view.row_stride);
        let start = if row_stride.is_some() { view.elements.start } else { 0 };
        Ok(Slot { base, start, row_stride, shape: self.shape(value).clone() })
    }

    /// Notes that the next operation needs a buffer.
    fn need(&mut self, buffer: usize) {
        self.buffers[buffer].items.1 = self.ops.len();
        self.needed.push(buffer);
    }

    /// A value whose elements follow each other without gaps: itself or a copy.
    fn dense(&mut self, value: ValueId) -> Result<Slot, DeviceError> {
        let slot = self.slot(value)?;
        if slot.row_stride.is_none() || slot.row_stride == slot.shape.row_elements() {
            return Ok(slot);
        }
        let buffer = self.buffer(&slot.shape);
        let out = Slot { base: Base::Buffer(buffer), start: 0, row_stride: None, shape: slot.shape.clone() };
        let kernels = self.each_element("copy")?;
        let copy = CopyOp { kernels, x: slot, behind: None, is_part: true, out: out.clone() };
        self.append(copy, "copy");
        Ok(out)
    }

    /// Numbers that look something up in what has a constant length. The device checks them where [the step's
    /// rules](brasa_graph::StepRules) have not.
    fn numbers(&mut self, value: ValueId) -> Result<Slot, DeviceError> {
        let slot = self.dense(value)?;
        self.computes_numbers |= !matches!(slot.base, Base::Input(input) if input != Input::OutRows);
        Ok(slot)
    }

    /// Numbers of rows of `x`. The device checks them unless they are those of the step's output rows among all rows.
    fn numbers_of_rows(&mut self, value: ValueId, x: ValueId) -> Result<Slot, DeviceError> {
        let is_known = self.is_input(value, Input::OutRows) && self.shape(x).outer() == Dim::ROWS;
        let slot = self.dense(value)?;
        self.computes_numbers |= !is_known;
        Ok(slot)
    }

    /// Appends the operation that needs what was asked for.
    fn push(&mut self, op: impl Launch + 'static, label: impl Into<String>) {
        for buffer in std::mem::take(&mut self.needed) {
            self.buffers[buffer].items.1 = self.ops.len();
        }
        self.append(op, label);
    }

    fn append(&mut self, op: impl Launch + 'static, label: impl Into<String>) {
        self.ops.push(Entry { op: Box::new(op), label: label.into() });
    }

    /// `operation weight`.
    fn label(&self, operation: &str, weight: usize) -> String {
        format!("{operation} {}", self.graph.weights()[weight].name)
    }

    /// The number of a weight.
    fn weight(&self, value: ValueId) -> Option<usize> {
        match self.graph.value(value).kind {
            ValueKind::Weight(weight) => Some(weight.0 as usize),
            _ => None,
        }
    }

    /// The kernels called `prefix_format`, one for each format of weight `number`.
    fn kernels_of_formats(&self, prefix: &str, number: usize) -> Result<Vec<Kernel>, DeviceError> {
        let forms = self.weights.stored(number).map_or(&[][..], |stored| &stored.forms);
        forms.iter().map(|form| self.kernel(&format!("{prefix}_{}", form.kernel_suffix()))).collect()
    }

    /// True for the step's own numbers.
    fn is_input(&self, value: ValueId, input: Input) -> bool {
        self.graph.value(value).kind == ValueKind::Input(input)
    }
}
