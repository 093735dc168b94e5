//! A compiled graph: a table of operations over one arena, replayed step by step.
#![expect(unsafe_code, reason = "copies from device memory")]

mod learning;

use std::fmt::Write as _;
use std::sync::Arc;

use brasa_graph::chain::{self, Chain, Finish};
use brasa_graph::device::{
    DeviceError, DrawInputs, Drawn, FillMask, KvPool, KvType, OpTime, Program, ProgramLimits, ProgramSpec,
};
use brasa_graph::learn::Learner;
use brasa_graph::op::RopeLayout;
use brasa_graph::output::{OutputPlace, Outputs};
use brasa_graph::shift::{KeyRotation, check_pages, check_type, key_rotations};
use brasa_graph::step::{PageId, Step};
use brasa_graph::{CacheId, Graph, Sizes, StepRules};

use crate::compile::{Compiled, Table, compile};
use crate::draw::Drawer;
use crate::driver::{DeviceMemory, DriverError, Event, PinnedMemory};
use crate::gpu::Gpu;
use crate::interpreter::{self, Interpreter, Outcome};
use crate::kv::CudaKvPool;
use crate::params::{CachePages, Fault, Ptr, RotateKeysParams};
use crate::run::{Base, Run, Slot};
use crate::step_state::StepState;
use crate::weights::CudaWeights;

/// A program of the CUDA device.
#[derive(Debug)]
pub(crate) struct CudaProgram {
    gpu: Arc<Gpu>,
    weights: CudaWeights,
    rules: StepRules,
    rotations: Result<Vec<TurnedKeys>, String>,
    table: Table,
    /// Names of the kernels of each operation, of which a step takes some.
    kernels: Vec<Vec<String>>,
    /// True if an operation looks up numbers that are computed in the step, so that only the device can check them.
    computes_numbers: bool,
    arena: DeviceMemory,
    fault: DeviceMemory,
    step: StepState,
    /// Runs steps of one row, where the device and the graph allow it.
    interpreter: Option<Interpreter>,
    /// Place of each output in `outputs`.
    places: Vec<OutputPlace>,
    outputs: PinnedMemory,
    /// Draws tokens from logits.
    drawer: Drawer,
    /// Sums of gradients and moments, once `Learner::prepare` has made room for them.
    learning: Option<learning::Learning>,
    /// Why the program cannot run any more.
    lost: Option<DeviceError>,
}

/// How the keys of a cache were turned.
#[derive(Clone, Debug)]
struct TurnedKeys {
    rotation: KeyRotation,
    group: usize,
    place: usize,
    frequencies: Vec<f32>,
}

impl CudaProgram {
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        graph: &Graph,
        weights: CudaWeights,
        spec: ProgramSpec,
    ) -> Result<Self, DeviceError> {
        let Compiled { table, kernels, computes_numbers } = compile(gpu, graph, &weights, &spec)?;
        let what = format!("an arena for steps of {} rows", spec.limits.max_rows);
        if isize::try_from(table.arena_bytes).is_err() {
            return Err(DeviceError::OutOfMemory { bytes: table.arena_bytes as u64, what });
        }
        Ok(Self {
            arena: gpu.allocate(table.arena_bytes, &what)?,
            fault: gpu.allocate(size_of::<Fault>(), "a step's mistakes")?,
            step: StepState::new(gpu)?,
            interpreter: Interpreter::new(gpu, graph, &weights, spec.kv_type)?,
            places: OutputPlace::of(graph),
            outputs: PinnedMemory::new(&gpu.context, 0).map_err(|error| gpu.error(error))?,
            drawer: Drawer::new(gpu)?,
            gpu: Arc::clone(gpu),
            weights,
            rules: StepRules::new(graph, spec),
            rotations: rotations(graph)?,
            table,
            kernels,
            computes_numbers,
            learning: None,
            lost: None,
        })
    }

    /// Runs a step on the table and brings its outputs to the host; `between` is called when each operation has been queued.
    fn execute(
        &mut self,
        step: &Step,
        pool: &mut dyn KvPool,
        between: &mut dyn FnMut(&Run<'_>, usize) -> Result<(), DriverError>,
    ) -> Result<(), DeviceError> {
        self.execute_for(step, pool, usize::MAX, between)
    }

    /// Executes the program like [`execute`](Self::execute), but copies only the first `outputs` outputs to the host.
    fn execute_for(
        &mut self,
        step: &Step,
        pool: &mut dyn KvPool,
        outputs: usize,
        between: &mut dyn FnMut(&Run<'_>, usize) -> Result<(), DriverError>,
    ) -> Result<(), DeviceError> {
        self.prepare(step, pool)?;
        let bytes = self.places.iter().take(outputs).map(|place| place.elements() * 4).sum();
        let pool = own(&self.gpu, pool)?;
        if step.rows() == 0 {
            return Ok(());
        }
        let queued = self.reserve_outputs(bytes).and_then(|()| self.queue(step, pool, between));
        let downloaded = queued.and_then(|()| self.download(pool, bytes, outputs));
        let result = downloaded.and_then(|()| self.check_fault());
        self.note(result)
    }

    /// Refuses a step that cannot run; returns the bytes of its outputs.
    fn prepare(&mut self, step: &Step, pool: &dyn KvPool) -> Result<usize, DeviceError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        self.rules.check(step, pool)?;
        let sizes = Sizes::of(step);
        let mut words = 0;
        for place in &mut self.places {
            words += place.resolve(&sizes, words);
        }
        Ok(words * 4)
    }

    /// Remembers that the program is finished, where a result says so.
    fn note<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(error @ DeviceError::Lost { .. }) = &result {
            self.lost = Some(error.clone());
        }
        result
    }

    /// Runs a step on the interpreter; false where the step is not one that it takes.
    fn interpret(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<bool, DeviceError> {
        if self.interpreter.is_none() || !Interpreter::takes(step) {
            return Ok(false);
        }
        let bytes = self.prepare(step, pool)?;
        let pool = own(&self.gpu, pool)?;
        self.reserve_outputs(bytes)?;
        let steady = self.weights.hold_steady();
        let logits = &mut self.outputs.bytes_mut()[..bytes];
        let result = match &mut self.interpreter {
            Some(interpreter) => interpreter.run(step, pool, logits).map(|()| true),
            None => Ok(false),
        };
        drop(steady);
        self.note(result)
    }

    /// Room on the host for outputs of `bytes`.
    fn reserve_outputs(&mut self, bytes: usize) -> Result<(), DeviceError> {
        if bytes > self.outputs.bytes().len() {
            let memory = PinnedMemory::new(&self.gpu.context, bytes.next_power_of_two());
            self.outputs = memory.map_err(|error| self.gpu.error(error))?;
        }
        Ok(())
    }

    /// Queues the operations of a step.
    fn queue(
        &mut self,
        step: &Step,
        pool: &CudaKvPool,
        between: &mut dyn FnMut(&Run<'_>, usize) -> Result<(), DriverError>,
    ) -> Result<(), DeviceError> {
        let gpu = Arc::clone(&self.gpu);
        let failed = |error| gpu.error(error);
        let _steady = self.weights.hold_steady();
        self.step.load(&gpu, step, pool)?;
        if self.computes_numbers {
            // SAFETY: the allocation is that large.
            unsafe { gpu.stream.clear(self.fault.address(), size_of::<Fault>()) }.map_err(failed)?;
        }
        let run = self.as_run(pool);
        for (number, entry) in self.table.ops.iter().enumerate() {
            entry.op.launch(&run).map_err(failed)?;
            between(&run, number).map_err(failed)?;
        }
        Ok(())
    }

    /// Addresses of the values of the step that was loaded last.
    fn as_run<'a>(&'a self, pool: &'a CudaKvPool) -> Run<'a> {
        Run {
            gpu: &self.gpu,
            step: &self.step,
            pool,
            weights: &self.weights,
            arena: self.arena.address(),
            offsets: &self.table.offsets,
            kept: &self.table.kept,
            fault: Ptr::new(self.fault.address()),
        }
    }

    /// Waits for the first `count` outputs of the queued step, which take `bytes`.
    fn download(&mut self, pool: &CudaKvPool, bytes: usize, count: usize) -> Result<(), DeviceError> {
        let gpu = Arc::clone(&self.gpu);
        let mut outputs = Vec::with_capacity(self.table.outputs.len());
        let run = self.as_run(pool);
        outputs.extend(self.table.outputs.iter().take(count).map(|slot| run.tensor(slot)));
        let mut rest = &mut self.outputs.bytes_mut()[..bytes];
        for output in outputs {
            let (to, after) = rest.split_at_mut(output.count() as usize * 4);
            // SAFETY: the output is dense and lies in the arena, the step's numbers or a weight, all of which are alive.
            unsafe { gpu.stream.download(to, output.address) }.map_err(|error| gpu.error(error))?;
            rest = after;
        }
        if self.table.outputs.is_empty() {
            gpu.stream.synchronize().map_err(|error| gpu.error(error))?;
        }
        Ok(())
    }

    /// Reports a number that was computed and looked up beyond its table.
    fn check_fault(&self) -> Result<(), DeviceError> {
        if !self.computes_numbers {
            return Ok(());
        }
        let mut fault = [0_u32; size_of::<Fault>() / 4];
        // SAFETY: the allocation is that large.
        unsafe { self.gpu.stream.download(bytemuck::cast_slice_mut(&mut fault), self.fault.address()) }
            .map_err(|error| self.gpu.error(error))?;
        let [found, number, limit] = fault;
        if found == 0 {
            return Ok(());
        }
        Err(DeviceError::BadStep { what: format!("a computed number is {number}, expected below {limit}") })
    }

    /// Turns the keys of one cache in some pages.
    fn rotate(
        &self,
        pool: &CudaKvPool,
        turned: &TurnedKeys,
        pages: &[PageId],
        by: i32,
    ) -> Result<(), DeviceError> {
        let TurnedKeys { rotation, group, place, frequencies } = turned;
        let angles = rotation.angles(frequencies, by).into_iter();
        let angles: Vec<f32> = angles.flat_map(|(cosine, sine)| [cosine, sine]).collect();
        let addresses: Vec<u64> = pages.iter().map(|&page| pool.address(*group, page)).collect();
        let angles_bytes: &[u8] = bytemuck::cast_slice(&angles);
        let pages_bytes: &[u8] = bytemuck::cast_slice(&addresses);
        let memory = self.gpu.allocate(pages_bytes.len() + angles_bytes.len(), "a context shift")?;
        self.gpu.write(&memory, 0, pages_bytes)?;
        self.gpu.write(&memory, pages_bytes.len(), angles_bytes)?;
        let CachePages { offset_bytes, kv_heads, head_dim, head_bytes, .. } =
            pool.cache(*group, *place, Ptr::NONE, Ptr::NONE);
        let params = RotateKeysParams {
            pages: Ptr::new(memory.address()),
            angles: Ptr::new(memory.address() + pages_bytes.len() as u64),
            offset_bytes,
            pages_count: pages.len() as u32,
            kv_heads,
            head_dim,
            head_bytes,
            rotary_dim: rotation.rotary_dim as u32,
            interleaved: u32::from(rotation.layout == RopeLayout::Interleaved),
        };
        let kernel = match pool.spec().dtype {
            KvType::F32 => "rotate_keys_f32",
            _ => "rotate_keys_f16",
        };
        let kernel = self.gpu.kernel(kernel)?;
        let run = self.as_run(pool);
        let positions = pages.len() * brasa_graph::step::PAGE_POSITIONS * kv_heads as usize;
        run.each(&kernel, (positions * rotation.rotary_dim / 2) as u64, &params)
            .and_then(|()| self.gpu.stream.synchronize())
            .map_err(|error| self.gpu.error(error))
    }
}

impl Program for CudaProgram {
    fn limits(&self) -> ProgramLimits {
        self.rules.limits()
    }

    fn arena_bytes(&self) -> u64 {
        let learning = self.learning.as_ref().map_or(0, learning::Learning::size_bytes);
        let interpreter = self.interpreter.as_ref().map_or(0, Interpreter::size_bytes);
        (self.arena.size_bytes() + learning + interpreter) as u64
    }

    fn learner(&mut self) -> Option<&mut dyn Learner> {
        Some(self)
    }

    fn describe(&self) -> String {
        let mut out = String::new();
        if let Some(interpreter) = &self.interpreter {
            let _ = writeln!(out, "{}", interpreter.describe());
        }
        for (number, (entry, kernels)) in self.table.ops.iter().zip(&self.kernels).enumerate() {
            let _ = writeln!(out, "{}", entry.label);
            if !kernels.is_empty() {
                let _ = writeln!(out, "  by    {}", kernels.join(", "));
            }
            out.push_str(&self.table.describe_buffers(number));
        }
        out
    }

    /// The mask of a token can be computed only when the token before it has come to the host.
    fn max_chain(&self, masked: bool) -> usize {
        if self.interpreter.is_some() && !masked { interpreter::MAX_CHAIN } else { chain::STEPWISE_TOKENS }
    }

    fn run_chain(
        &mut self,
        step: &mut Step,
        pool: &mut dyn KvPool,
        mut chain: Chain<'_, '_>,
    ) -> Result<Finish, DeviceError> {
        chain::check(step, pool, chain.rows)?;
        let takes = self.interpreter.is_some() && Interpreter::takes(step);
        let Some(row) = chain.rows.first() else { return Ok(Finish { lengths: Vec::new() }) };
        let draws = takes && step.outs() > 0 && (row.takes_largest() || Drawer::takes_chain(row));
        if !draws {
            return chain::stepwise(self, step, pool, chain);
        }
        self.prepare(step, pool)?;
        let pool_here = own(&self.gpu, pool)?;
        let steady = self.weights.hold_steady();
        let result = match &mut self.interpreter {
            Some(interpreter) if chain.rows[0].takes_largest() => {
                interpreter.run_chain(step, pool_here, &mut chain)
            }
            Some(interpreter) => interpreter.run_drawn_chain(step, pool_here, &mut chain, &mut self.drawer),
            None => Ok(Outcome::Undrawn),
        };
        drop(steady);
        match self.note(result)? {
            Outcome::Ended(length) => Ok(Finish { lengths: vec![length] }),
            Outcome::Undrawn => chain::stepwise(self, step, pool, chain),
        }
    }

    fn run_drawn(
        &mut self,
        step: &Step,
        pool: &mut dyn KvPool,
        draws: &[DrawInputs<'_>],
        fill: &mut FillMask<'_>,
    ) -> Result<Option<Vec<Drawn>>, DeviceError> {
        let sizes = Sizes::of(step);
        let is_logits = |slot: &Slot| {
            let dims = slot.shape.resolve(&sizes);
            matches!(slot.base, Base::Buffer(_)) && dims.len() == 2 && Drawer::takes(dims[1])
        };
        let has_logits = matches!(&self.table.outputs[..], [output] if is_logits(output));
        if !has_logits || step.outs() == 0 || step.outs() != draws.len() {
            return Ok(None);
        }
        self.prepare(step, pool)?;
        let interprets = Interpreter::takes(step);
        let pool = own(&self.gpu, pool)?;
        let result = match self.interpreter.as_mut().filter(|_| interprets) {
            Some(interpreter) => {
                let _steady = self.weights.hold_steady();
                interpreter.compute(step, pool)
            }
            None => self.queue(step, pool, &mut |_, _| Ok(())).map(|()| {
                let (x, _) = self.as_run(pool).tensor(&self.table.outputs[0]).rows();
                x
            }),
        };
        let x = self.note(result)?;
        let drawn = self.drawer.draw(x, draws, fill);
        let drawn = drawn.and_then(|ids| self.check_fault().map(|()| ids));
        self.note(drawn).map(Some)
    }

    fn run(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Outputs<'_>, DeviceError> {
        if !self.interpret(step, pool)? {
            self.execute(step, pool, &mut |_, _| Ok(()))?;
        }
        Ok(Outputs::new(&self.places, bytemuck::cast_slice(self.outputs.bytes())))
    }

    fn check_shift(&self, pool: &dyn KvPool) -> Result<(), DeviceError> {
        self.rotations.as_ref().map_err(|what| self.gpu.unsupported(what))?;
        check_type(pool.spec().dtype).map_err(|what| self.gpu.unsupported(what))
    }

    fn shift(&mut self, pool: &mut dyn KvPool, pages: &[Vec<PageId>], by: i32) -> Result<(), DeviceError> {
        self.check_shift(pool)?;
        self.rules.check_pool(pool)?;
        check_pages(pool, pages)?;
        let pool = own(&self.gpu, pool)?;
        for turned in self.rotations.iter().flatten() {
            self.rotate(pool, turned, &pages[turned.group], by)?;
        }
        Ok(())
    }

    /// Times the operations of the table, for steps of one row too: an interpreter's launch cannot be timed in parts.
    fn profile(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Vec<OpTime>, DeviceError> {
        let gpu = Arc::clone(&self.gpu);
        let mut events = vec![Event::record(&gpu.stream).map_err(|error| gpu.error(error))?];
        let mut costs = Vec::new();
        let labels: Vec<String> = self.table.ops.iter().map(|entry| entry.label.clone()).collect();
        self.execute(step, pool, &mut |_, _| {
            events.push(Event::record(&gpu.stream)?);
            Ok(())
        })?;
        if step.rows() > 0 {
            let run = self.as_run(own(&gpu, pool)?);
            costs.extend(self.table.ops.iter().map(|entry| entry.op.cost(&run)));
        }
        let timed = labels.into_iter().zip(costs).zip(events.windows(2));
        timed
            .map(|((label, (bytes, flops)), ends)| {
                let time = ends[1].since(&ends[0]).map_err(|error| gpu.error(error))?;
                Ok(OpTime { label, time, bytes, flops })
            })
            .collect()
    }
}

/// The pool as this device's own.
fn own<'a>(gpu: &Gpu, pool: &'a mut dyn KvPool) -> Result<&'a CudaKvPool, DeviceError> {
    let pool = pool.as_any_mut().downcast_mut::<CudaKvPool>().filter(|pool| pool.is_on(gpu));
    pool.map(|pool| &*pool)
        .ok_or_else(|| DeviceError::BadStep { what: "its KV pool belongs to another device".into() })
}

/// The caches whose keys turn with their positions, or why they cannot.
fn rotations(graph: &Graph) -> Result<Result<Vec<TurnedKeys>, String>, DeviceError> {
    let rotations = match key_rotations(graph) {
        Ok(rotations) => rotations,
        Err(why) => return Ok(Err(why)),
    };
    let mut placed = Vec::new();
    for (cache, rotation) in rotations.into_iter().enumerate() {
        let Some(rotation) = rotation else { continue };
        let (group, place) = graph.cache_place(CacheId(cache as u32));
        let weight = brasa_graph::reference::decode_weight(graph.weight(rotation.frequencies))?;
        let frequencies = weight.floats().to_vec();
        placed.push(TurnedKeys { rotation, group: group.0 as usize, place, frequencies });
    }
    Ok(Ok(placed))
}
