//! The persistent interpreter: one launch over all multiprocessors decodes many tokens of one sequence.
//!
//! A graph that is a decoder of known shape ([`recognise`]) becomes a list of instructions ([`encode`](mod@encode)) that `kernels/hopper/decode.cuh`
//! walks once a token. Steps of one row run on it, and chains of one row. One that takes the largest logits is a single launch: the device
//! draws, shows each token in memory that the host reads meanwhile, and ends at a stop id or where the host asks for it. Other chains are
//! queued ahead, a launch for each token with those that draw it behind. All other steps run on the program's table of operations.
//!
//! Activations are multiplied as f16 times a power of two for each 64 of them, and sums are f32 in an order that depends on the
//! row's shapes and index alone. So a chain equals single steps bit for bit, and the same row in a larger step only nearly.
#![expect(unsafe_code, reason = "launches a kernel")]

mod chain;
mod dealing;
mod encode;
mod plan;
mod program;
mod recognise;
mod yielding;

use std::sync::Arc;

use brasa_graph::Graph;
use brasa_graph::device::{DeviceError, KvType};
use brasa_graph::step::{Segment, Step};

use crate::driver::{Context, DeviceMemory, DriverError, Grid, Kernel, MappedWords, Module, PinnedMemory};
use crate::embedded;
use crate::gpu::Gpu;
use crate::kv::CudaKvPool;
use crate::params::{Ptr, Rows};
use crate::weights::{CudaWeights, Halves, Layout, Stretch};
use encode::{Places, Tiles, encode};
use plan::{BUFFERS, Buffer, Plan, PlannedOp, Rows as WeightRows};
use program::{IN_FLIGHT, Launch, MAX_STOPS, Row, SHARED_BYTES, THREADS};

pub(crate) use chain::Outcome;

/// Most tokens of a launch. A request that arrives waits for a step, not for the chain: the host can end it.
pub(crate) const MAX_CHAIN: usize = 128;

/// Words of the shared memory before the tokens: the host's wish to end the chain.
const CANCEL: usize = 0;
const TOKENS: usize = 1;

/// Bytes of a launch's numbers before its block tables: the barrier's counter, the row's state.
const TABLES: usize = 32;
const STATE: usize = 16;

/// Bytes of a tagged number, and of four tagged values; `values.cuh` has their layouts.
const SINGLE_BYTES: usize = 8;
const QUAD_BYTES: usize = 16;

/// Sequence numbers begin anew behind this one, all tagged values being forgotten.
const LAST_SEQUENCE: u32 = 0xf000_0000;

/// The interpreter's kernels.
#[derive(Clone, Debug)]
pub(crate) struct Kernels {
    dense: Kernel,
    /// The kernel for programs with mixtures of experts.
    mixed: Kernel,
}

/// The interpreter's kernels; `None` for a device that cannot run them.
pub(crate) fn load(context: &Arc<Context>) -> Result<Option<Kernels>, DriverError> {
    let device = context.device();
    let image = embedded::decode(device.capability).filter(|_| {
        device.runs_blocks_together
            && device.shared_bytes >= SHARED_BYTES as usize
            && device.multiprocessors > 0
    });
    let Some(image) = image else { return Ok(None) };
    let module = Module::load(context, &image?)?;
    let kernel = |name| {
        let kernel = module.kernel(name)?;
        kernel.allow_shared(SHARED_BYTES)?;
        Ok(kernel)
    };
    Ok(Some(Kernels { dense: kernel("interpret_tagged")?, mixed: kernel("interpret_mixed")? }))
}

/// A decoder on the interpreter.
#[derive(Debug)]
pub(crate) struct Interpreter {
    gpu: Arc<Gpu>,
    kernel: Kernel,
    blocks: u32,
    instrs: DeviceMemory,
    count: u32,
    frequencies: u64,
    rotary_dim: u32,
    groups: usize,
    /// Values that pass from instruction to instruction, and candidates.
    values: Values,
    logits: DeviceMemory,
    vocab_size: usize,
    /// Partial results of attention: elements for each page.
    partials: DeviceMemory,
    partial_elements: usize,
    max_pages: usize,
    /// State from which a launch begins.
    host: PinnedMemory,
    state: DeviceMemory,
    /// Words that host and device both read while a launch runs.
    shared: MappedWords,
    /// The last number that an instruction had.
    sequence: u32,
}

/// Addresses of tagged values.
#[derive(Debug)]
struct Values {
    memory: DeviceMemory,
    offsets: [usize; BUFFERS],
    candidates: usize,
}

impl Values {
    fn new(gpu: &Gpu, plan: &Plan, blocks: u32) -> Result<Self, DeviceError> {
        let mut bytes = 0;
        let mut part = |part_bytes: usize| {
            let start = bytes;
            bytes += part_bytes.next_multiple_of(256);
            start
        };
        let offsets = plan.widths.map(|width| part(width.div_ceil(4) * QUAD_BYTES));
        // Of two steps in turn.
        let candidates = part(2 * 2 * (blocks as usize + 1) * SINGLE_BYTES);
        Ok(Self { memory: gpu.allocate_zeros(bytes, "values of one row")?, offsets, candidates })
    }
}

/// Addresses of a program's parts, for its encoding.
struct Resolved<'a> {
    weights: &'a CudaWeights,
    values: &'a Values,
    logits: u64,
}

impl Places for Resolved<'_> {
    fn tiles(&self, rows: &WeightRows) -> Option<Vec<Tiles>> {
        let (number, halves) = match rows {
            WeightRows::Whole(number) => (*number, None),
            WeightRows::Paired(gate, up) if gate.weight == up.weight => {
                (gate.weight, Some(Halves { gate: gate.rows.clone(), up: up.rows.clone() }))
            }
            WeightRows::Paired(..) => return None,
        };
        let stored = self.weights.stored(number)?;
        let stretches = stored.stretches.iter();
        stretches.map(|stretch| tiles_of(stretch, stored.weight.row_len, halves.as_ref())).collect()
    }

    fn floats(&self, weight: usize) -> Option<(u64, u32, u32)> {
        let stored = self.weights.stored(weight)?;
        Some((stored.floats()?, stored.weight.rows, stored.weight.row_len))
    }

    fn decoded(&self, weight: usize) -> Option<u64> {
        self.weights.decoded(weight)
    }

    fn buffer(&self, buffer: Buffer) -> u64 {
        self.values.memory.address() + self.values.offsets[buffer as usize] as u64
    }

    fn logits(&self) -> u64 {
        self.logits
    }
}

/// The tiles of a stretch, if its halves are paired as they are gated.
fn tiles_of(stretch: &Stretch, inputs: u32, halves: Option<&Halves>) -> Option<Tiles> {
    let tiles = stretch.tiles.as_ref()?;
    let (paired, rows) = match halves {
        Some(halves) => (stretch.pairs(halves), 2 * stretch.rows.len()),
        None => (tiles.upper.is_none(), stretch.rows.len()),
    };
    paired.then_some(Tiles {
        address: tiles.data.0,
        format: tiles.layout.number(),
        rows: rows as u32,
        inputs,
        subs: tiles.subs as u32,
        unit_bytes: tiles.layout.unit_bytes() as u32,
        unit_subs: tiles.layout.unit_subs() as u32,
        factor: tiles.factor,
        // Quantised weights are multiplied as codes, whose range is that of f16.
        raise: if tiles.layout == Layout::BF16 { tiles.raise() } else { 1.0 },
    })
}

impl Interpreter {
    /// The interpreter of `graph`; `None` if the device, the graph, the storage of a weight or the type of keys and values is not one
    /// that it runs.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        graph: &Graph,
        weights: &CudaWeights,
        kv_type: KvType,
    ) -> Result<Option<Self>, DeviceError> {
        if kv_type != KvType::F16 {
            return Ok(None);
        }
        let Some(kernels) = gpu.interpreter().filter(|_| weights.is_fast()) else { return Ok(None) };
        let Ok(plan) = Plan::of(graph) else { return Ok(None) };
        let is_mixed = plan.ops.iter().any(|op| matches!(op, PlannedOp::Mixture(_)));
        let kernel = if is_mixed { &kernels.mixed } else { &kernels.dense };
        let blocks = gpu.context.device().multiprocessors as u32;
        let values = Values::new(gpu, &plan, blocks)?;
        let logits = gpu.allocate(plan.vocab_size * 4, "logits of one row")?;
        let resolved = Resolved { weights, values: &values, logits: logits.address() };
        let (Some(instrs), Some(frequencies)) =
            (encode(&plan, &resolved, blocks), weights.decoded(plan.frequencies))
        else {
            return Ok(None);
        };
        let failed = |error| gpu.error(error);
        let memory = gpu.allocate(size_of_val(&instrs[..]), "a program of instructions")?;
        gpu.write(&memory, 0, bytemuck::cast_slice(&instrs))?;
        Ok(Some(Self {
            kernel: kernel.clone(),
            blocks,
            count: instrs.len() as u32,
            instrs: memory,
            frequencies,
            rotary_dim: plan.rotary_dim,
            groups: plan.groups,
            values,
            logits,
            vocab_size: plan.vocab_size,
            partials: gpu.allocate(0, "partial results of attention")?,
            partial_elements: plan.heads * (plan.head_dim + 2),
            max_pages: 0,
            host: PinnedMemory::new(&gpu.context, 0).map_err(failed)?,
            state: gpu.allocate(0, "the state of a row")?,
            shared: MappedWords::new(&gpu.context, TOKENS + MAX_CHAIN).map_err(failed)?,
            sequence: 0,
            gpu: Arc::clone(gpu),
        }))
    }

    /// True for a step that runs here: one row of plain text.
    pub(crate) fn takes(step: &Step) -> bool {
        let [segment] = &step.segments[..] else { return false };
        let plain = segment.tree.is_none() && segment.embeddings.is_none() && segment.given.is_empty();
        segment.rows == 1 && segment.outs() <= 1 && plain
    }

    /// Bytes of device memory that it holds.
    pub(crate) fn size_bytes(&self) -> usize {
        [&self.instrs, &self.values.memory, &self.logits, &self.partials, &self.state]
            .into_iter()
            .map(DeviceMemory::size_bytes)
            .sum()
    }

    /// For people: how many instructions a token takes.
    pub(crate) fn describe(&self) -> String {
        format!("one row: {} instructions on {} multiprocessors, one launch a chain", self.count, self.blocks)
    }

    /// Runs a step that it [takes](Self::takes) and waits; writes the row's logits to `logits`, which may be empty.
    pub(crate) fn run(
        &mut self,
        step: &Step,
        pool: &CudaKvPool,
        logits: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.compute(step, pool)?;
        let bytes = logits.len().min(self.vocab_size * 4);
        let gpu = Arc::clone(&self.gpu);
        gpu.read(&self.logits, &mut logits[..bytes])
    }

    /// Queues a step that it [takes](Self::takes); returns where its logits will be.
    pub(crate) fn compute(&mut self, step: &Step, pool: &CudaKvPool) -> Result<Rows, DeviceError> {
        self.load(&step.segments[0], pool)?;
        self.shared.clear();
        self.queue()
    }

    /// Queues a step from the state that is there; returns where its logits will be.
    fn queue(&mut self) -> Result<Rows, DeviceError> {
        self.launch(1, &[], Draws::Nothing)?;
        let data = Ptr::new(self.logits.address());
        Ok(Rows { data, per: 1, stride: self.vocab_size as u32, width: self.vocab_size as u32 })
    }

    /// Brings a row's state and block tables to the device.
    fn load(&mut self, segment: &Segment, pool: &CudaKvPool) -> Result<(), DeviceError> {
        let pages = segment.pages.iter().map(Vec::len).max().unwrap_or(0);
        self.grow(pages)?;
        let row = Row {
            token: segment.tokens[0],
            index: segment.first_index as u32,
            position: segment.position(0),
            table: 0,
        };
        let bytes = self.host.bytes_mut();
        bytes.fill(0);
        bytes[STATE..TABLES].copy_from_slice(bytemuck::bytes_of(&row));
        let tables: &mut [u64] = bytemuck::cast_slice_mut(&mut bytes[TABLES..]);
        for (group, (table, to)) in segment.pages.iter().zip(tables.chunks_mut(self.max_pages)).enumerate() {
            for (page, to) in table.iter().zip(to) {
                // Behind a window there is no page, and nothing reads its address.
                *to = page.map_or(0, |page| pool.address(group, page));
            }
        }
        // SAFETY: both are equally long, and the host's is not written again before the launch that reads the copy has ended.
        unsafe { self.gpu.stream.upload(self.state.address(), self.host.bytes()) }
            .map_err(|error| self.gpu.error(error))
    }

    /// Makes room for block tables of `pages` entries.
    fn grow(&mut self, pages: usize) -> Result<(), DeviceError> {
        if pages <= self.max_pages && self.max_pages > 0 {
            return Ok(());
        }
        let max_pages = pages.next_power_of_two().max(16);
        let what = "partial results of attention";
        let bytes = TABLES + self.groups.max(1) * max_pages * 8;
        let partial_bytes = self.partial_elements.saturating_mul(max_pages).saturating_mul(SINGLE_BYTES);
        // Elements are counted in 32 bits.
        if partial_bytes / SINGLE_BYTES > u32::MAX as usize {
            return Err(DeviceError::OutOfMemory { bytes: partial_bytes as u64, what: what.into() });
        }
        self.max_pages = 0;
        self.partials = self.gpu.allocate_zeros(partial_bytes, what)?;
        self.state = self.gpu.allocate(bytes, "the state of a row")?;
        self.host = PinnedMemory::new(&self.gpu.context, bytes).map_err(|error| self.gpu.error(error))?;
        self.max_pages = max_pages;
        Ok(())
    }

    /// Queues the decoding of `steps` tokens from the loaded state on.
    fn launch(&mut self, steps: usize, stops: &[u32], draws: Draws) -> Result<(), DeviceError> {
        self.renumber(steps)?;
        let mut known = [0; MAX_STOPS];
        // The host looks at every token too, so ids beyond these end the row a little later.
        let stop_count = stops.len().min(MAX_STOPS);
        known[..stop_count].copy_from_slice(&stops[..stop_count]);
        let launch = Launch {
            program: self.instrs.address(),
            count: self.count,
            steps: steps as u32,
            rows: 1,
            first: 0,
            sequence: self.sequence,
            prefetch: 1,
            barriers: 1,
            in_flight: IN_FLIGHT,
            rotary: self.rotary_dim,
            draws: u32::from(draws == Draws::Largest),
            frequencies: self.frequencies,
            barrier: self.state.address(),
            states: self.state.address() + STATE as u64,
            tables: self.state.address() + TABLES as u64,
            candidates: self.values.memory.address() + self.values.candidates as u64,
            tokens: self.shared.address(TOKENS),
            cancel: self.shared.address(CANCEL),
            partials: self.partials.address(),
            max_pages: self.max_pages as u32,
            stop_count: stop_count as u32,
            stops: known,
            stamps: 0,
        };
        self.sequence += steps as u32 * self.count;
        let grid = Grid { blocks: [self.blocks, 1, 1], threads: THREADS, shared_bytes: SHARED_BYTES };
        // SAFETY: the kernel's own structure. Instructions address buffers and weights of this program in the sizes of its plan, the
        // launch addresses memory of this interpreter and pages of the pool, whose tables `load` has brought.
        unsafe { self.gpu.stream.launch_together(&self.kernel, grid, &launch) }
            .map_err(|error| self.gpu.error(error))
    }

    /// Begins the sequence numbers anew where those of `steps` tokens would come to an end.
    fn renumber(&mut self, steps: usize) -> Result<(), DeviceError> {
        let needed = (steps as u64).saturating_mul(u64::from(self.count));
        if u64::from(self.sequence) + needed < u64::from(LAST_SEQUENCE) {
            return Ok(());
        }
        self.sequence = 0;
        self.gpu.clear(&self.values.memory)?;
        self.gpu.clear(&self.partials)
    }
}

/// Use of the logits of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draws {
    /// Leaves the last ones to the host.
    Nothing,
    /// Takes the token with the largest and goes on.
    Largest,
}
