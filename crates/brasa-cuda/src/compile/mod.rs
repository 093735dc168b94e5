//! From a graph to a table of operations over one arena.
//!
//! Every node but views becomes an operation of its own, or one with its neighbours. What each operation reads and writes says how
//! long buffers are needed, hence where they lie.

mod ahead;
mod attention_rows;
mod banks;
mod chains;
mod derivatives;
mod forms;
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

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};

use brasa_graph::device::{DeviceError, KvType, ProgramLimits, ProgramSpec};
use brasa_graph::fuse::Norm;
use brasa_graph::op::Attention;
use brasa_graph::{Dim, Graph, Input, Item, NodeId, Schedule, ValueId, ValueKind};
use brasa_lower::{Base, BufferId, Dense, Lowering, Place as Slot};

use crate::driver::Kernel;
use crate::gpu::Gpu;
use crate::ops::{CopyOp, Launch};
use crate::run::AXES;
use crate::weights::CudaWeights;
use ahead::GatedProduct;
use chains::Chain;
use forms::Forms;
use fused::PATTERNS;
use joins::Place;
use mixture::Addition;
pub(crate) use nodes::CAPABILITIES;
use paneled::Paneled;
use tails::Beside;

/// Alignment of every buffer of an arena.
const ALIGNMENT_BYTES: usize = 256;

/// Operations and their places.
pub(crate) type Table = brasa_lower::Table<Box<dyn Launch>>;

/// A compiled graph.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub table: Table,
    /// Names of the kernels that each operation may launch, in the order of the table. A step launches some of them.
    pub kernels: Vec<Vec<String>>,
    /// True if an operation looks up numbers that are computed in the step, so that only the device can check them.
    pub computes_numbers: bool,
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
    spec: &ProgramSpec,
) -> Result<Compiled, DeviceError> {
    let mut compiler = Compiler::new(gpu, graph, weights, spec);
    compiler.check_sizes(&spec.limits)?;
    let schedule = Schedule::choose(graph, PATTERNS, |fused| compiler.fuses(fused));
    compiler.find_banks(&schedule);
    compiler.find_heads(&schedule);
    compiler.find_gates(&schedule);
    compiler.find_mixtures(&schedule);
    compiler.find_tails(&schedule);
    compiler.find_chains(&schedule);
    compiler.find_convolutions(&schedule);
    compiler.find_joins(&schedule);
    compiler.find_paneled(&schedule);
    for item in schedule.items() {
        match item {
            Item::Single(node) if compiler.folded.contains(node) => {}
            Item::Single(node) => compiler.lower_node(*node)?,
            Item::Fused(fused) => compiler.lower_fused(fused)?,
        }
    }
    let outputs = graph.outputs().iter().map(|&output| compiler.dense(output));
    let outputs = outputs.collect::<Result<Vec<Slot>, _>>()?;
    compiler.keep_turned()?;
    let Compiler { lowering, kernels, computes_numbers, .. } = compiler;
    Ok(Compiled { table: lowering.finish(outputs, ALIGNMENT_BYTES), kernels, computes_numbers })
}

/// Attention to rows that keeps something for its gradient.
#[derive(Debug)]
struct Attended {
    /// Queries, keys and values.
    operands: [ValueId; 3],
    attention: Attention,
    /// The buffer of what is kept.
    kept: BufferId,
    result: ValueId,
}

/// A graph that is being compiled: its [`Lowering`], and notes for the lowering of later operations.
struct Compiler<'g> {
    lowering: Lowering<'g, Box<dyn Launch>>,
    gpu: &'g Gpu,
    weights: &'g CudaWeights,
    /// The type of keys and values in caches.
    kv_type: KvType,
    /// Names of the kernels that the next operation has asked for.
    asked: RefCell<Vec<String>>,
    /// Names of the kernels of each operation.
    kernels: Vec<Vec<String>>,
    /// True if sums are f32 throughout, in an order that depends on a row alone.
    exact: bool,
    /// Norms that the products behind them compute: by the norm's result, its operand and the norm.
    normed: HashMap<ValueId, (ValueId, Norm)>,
    /// The forms of values besides floats.
    forms: Forms,
    /// Products whose only readers are the heads of one cache write.
    meet_heads: Vec<ValueId>,
    /// Attention to rows of the step, if the graph has its gradient.
    attended: Vec<Attended>,
    /// For each gradient of a loss, the buffer of its rows before they are multiplied by the rows' cotangents.
    loss_gradients: HashMap<ValueId, BufferId>,
    /// Chains of operations on each element, by the last node.
    chains: HashMap<NodeId, Chain>,
    /// Values that are joined side by side, each with its first column in the joined rows, by the node that joins them.
    joins: HashMap<NodeId, Vec<(ValueId, usize)>>,
    /// Places of values that are written straight into the rows of the value that joins them.
    places: HashMap<ValueId, Place>,
    /// Sums with products of banks of adapters that are added by an operation of their own, which leaves no sums of parts of K.
    banked: HashSet<ValueId>,
    /// Products with low-rank products beside them, by the sums of both.
    tails: HashMap<ValueId, Beside>,
    /// Values that are read as halves in panels.
    paneled: HashMap<ValueId, Paneled>,
    /// Low-rank products that gradients of matrices read.
    thin: HashSet<ValueId>,
    /// Sums of a low-rank product and a residual that the product behind computes.
    absorbed: HashSet<ValueId>,
    /// Gated products without a bias, by their operand.
    gates: HashMap<ValueId, GatedProduct>,
    /// For each gated product, the buffer of the powers of two by which its rows are divided.
    gated_scales: HashMap<ValueId, BufferId>,
    /// Additions behind mixtures of experts, by the mixtures' results.
    mixtures: HashMap<ValueId, Addition>,
    /// Nodes that another node's operation computes.
    folded: Vec<NodeId>,
    /// Activations that are the only readers of short convolutions, by the convolutions' results.
    convolutions: HashMap<ValueId, NodeId>,
    /// Buffers of transposed copies of frozen weights.
    turned: Vec<BufferId>,
    computes_numbers: bool,
}

impl<'g> Deref for Compiler<'g> {
    type Target = Lowering<'g, Box<dyn Launch>>;

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
    fn new(gpu: &'g Gpu, graph: &'g Graph, weights: &'g CudaWeights, spec: &ProgramSpec) -> Self {
        Self {
            lowering: Lowering::new(&*gpu.name, graph, &spec.limits),
            gpu,
            weights,
            kv_type: spec.kv_type,
            asked: RefCell::default(),
            kernels: Vec::new(),
            exact: !weights.is_fast(),
            normed: HashMap::new(),
            forms: Forms::default(),
            meet_heads: Vec::new(),
            attended: Vec::new(),
            loss_gradients: HashMap::new(),
            chains: HashMap::new(),
            joins: HashMap::new(),
            places: HashMap::new(),
            banked: HashSet::new(),
            tails: HashMap::new(),
            paneled: HashMap::new(),
            thin: HashSet::new(),
            absorbed: HashSet::new(),
            gates: HashMap::new(),
            gated_scales: HashMap::new(),
            mixtures: HashMap::new(),
            folded: Vec::new(),
            convolutions: HashMap::new(),
            turned: Vec::new(),
            computes_numbers: false,
        }
    }

    /// Every value has few enough axes and elements for kernels to count.
    fn check_sizes(&self, limits: &ProgramLimits) -> Result<(), DeviceError> {
        for value in self.graph.values() {
            if value.shape.rank() > AXES {
                return Err(self.gpu.unsupported(format!("a value {value} of more than {AXES} axes")));
            }
            let elements = self.elements(&value.shape);
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

    fn kernel(&self, name: &str) -> Result<Kernel, DeviceError> {
        self.ask(name);
        self.gpu.kernel(name)
    }

    /// A kernel of attention on tensor cores, which takes `shared_bytes` of dynamic shared memory.
    fn flash(&self, name: &str, shared_bytes: u32) -> Result<Kernel, DeviceError> {
        self.ask(name);
        self.gpu.flash(name, shared_bytes)
    }

    /// A kernel that takes `shared_bytes` of dynamic shared memory; `None` if no block has as much.
    fn kernel_with_shared(&self, name: &str, shared_bytes: u32) -> Result<Option<Kernel>, DeviceError> {
        self.ask(name);
        self.gpu.kernel_with_shared(name, shared_bytes)
    }

    /// Notes a kernel of the next operation, for people.
    fn ask(&self, name: &str) {
        self.asked.borrow_mut().push(name.to_owned());
    }

    /// The kernel called `name` for the program's type of keys and values.
    fn kernel_of_cache(&self, name: &str) -> Result<Kernel, DeviceError> {
        let kv_type = match self.kv_type {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::BF16 => "bf16",
            KvType::Q8 => "q8",
        };
        self.kernel(&format!("{name}_{kv_type}"))
    }

    /// The slot of a value that the next operation reads.
    fn slot(&mut self, value: ValueId) -> Result<Slot, DeviceError> {
        let slot = self.place(value)?;
        match slot.base {
            Base::Weight(weight) if self.weights.decoded(weight.0 as usize).is_none() => Err(self.odd(value)),
            _ => Ok(slot),
        }
    }

    /// A value whose elements follow each other without gaps: itself or a copy.
    fn dense(&mut self, value: ValueId) -> Result<Slot, DeviceError> {
        self.slot(value)?;
        match self.dense_place(value)? {
            Dense::Already(slot) => Ok(slot),
            Dense::Copied { from, to } => {
                let asked = self.asked.take();
                let kernels = self.each_element("copy")?;
                let copy = CopyOp { kernels, x: from, behind: None, is_part: true, out: to.clone() };
                self.push_in_front(copy, "copy");
                self.asked.replace(asked);
                Ok(to)
            }
        }
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
        self.kernels.push(self.asked.take());
        self.lowering.push(Box::new(op), label);
    }

    /// Appends an operation in front of the one that is being described, whose kernels must not be among those that were asked for.
    fn push_in_front(&mut self, op: impl Launch + 'static, label: impl Into<String>) {
        self.kernels.push(self.asked.take());
        self.lowering.push_in_front(Box::new(op), label);
    }

    /// The kernels called `prefix_format`, one for each format of weight `number`.
    fn kernels_of_formats(&self, prefix: &str, number: usize) -> Result<Vec<Kernel>, DeviceError> {
        let forms = self.weights.stored(number).map_or(&[][..], |stored| &stored.forms);
        forms.iter().map(|form| self.kernel(&format!("{prefix}_{}", form.kernel_suffix()))).collect()
    }
}
