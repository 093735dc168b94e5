//! A compiled graph: a table of operations over one arena, replayed step by step.
//!
//! Its tests are in `tests/suite/program.rs`; [`testing`](crate::testing) says why.
#![expect(unsafe_code, reason = "lets the threads of a team share an arena")]

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brasa_graph::device::{DeviceError, KvPool, LostPart, OpTime, Program, ProgramLimits, ProgramSpec};
use brasa_graph::fuse::Pattern;
use brasa_graph::output::{OutputPlace, Outputs};
use brasa_graph::shift::{KeyRotation, check_pages, check_type, key_rotations};
use brasa_graph::step::{GivenValues, PageId, Step};
use brasa_graph::{CacheId, Graph, Input, Sizes, StepRules};

use crate::arena::{Arena, ELEMENT_BYTES};
use crate::compile::{Table, compile, describe, out_of_memory};
use crate::context::{Context, Run};
use crate::error::DEVICE;
use crate::fault::Fault;
use crate::kv::{CpuKvPool, RowPages, RowPagesSize};
use crate::ops::operation::Cost;
use crate::ops::scratch::{Scratch, ScratchSize};
use crate::prepared::{Prepared, PreparedSize};
use crate::slot::Places;
use crate::step_state::StepState;
use crate::weights::CpuWeights;
use crate::{Isa, Team};

/// A program of the CPU device.
#[derive(Debug)]
pub(crate) struct CpuProgram {
    isa: Isa,
    team: Arc<Team>,
    weights: CpuWeights,
    rules: StepRules,
    /// How the keys of each cache were turned, and its group and place; or why keys cannot move.
    rotations: Result<Vec<(KeyRotation, usize, usize)>, String>,
    table: Table,
    outputs: Vec<OutputPlace>,
    arena: Arena,
    /// Partial results of attention; grows with the longest sequence.
    partials: Arena,
    /// Keys and values of a step's rows; grows with the largest step.
    row_pages: RowPages,
    prepared: Prepared,
    prepared_size: PreparedSize,
    state: StepState,
    scratch: Vec<Mutex<Scratch>>,
    counters: Vec<AtomicUsize>,
    fault: Fault,
    /// The next run's first phase; a phase lies between two barriers.
    phase: u64,
    /// Why the program cannot run any more.
    lost: Option<String>,
}

impl CpuProgram {
    /// Compiles `graph`, fused by `patterns`.
    pub(crate) fn new(
        graph: &Graph,
        weights: CpuWeights,
        spec: ProgramSpec,
        patterns: &[Pattern],
        isa: Isa,
        team: Arc<Team>,
    ) -> Result<Self, DeviceError> {
        let table = compile(graph, &weights, &spec.limits, patterns)?;
        let sizes = Sizes::at_most(&spec.limits);
        let prepared_size = prepared_size(&table, isa, &sizes);
        let refused = || out_of_memory(table.arena_elements, &spec.limits);
        let arena = Arena::new(table.arena_elements).ok_or_else(refused)?;
        let partials = Arena::new(0).ok_or_else(refused)?;
        let mut scratch_size = ScratchSize::default();
        table.ops.iter().for_each(|entry| entry.op.scratch(&sizes, &mut scratch_size));
        let scratch = (0..team.threads()).map(|_| Mutex::new(Scratch::new(&scratch_size))).collect();
        Ok(Self {
            isa,
            team,
            weights,
            rules: StepRules::new(graph, spec),
            rotations: placed_rotations(graph),
            counters: table.ops.iter().map(|_| AtomicUsize::new(0)).collect(),
            table,
            outputs: OutputPlace::of(graph),
            arena,
            partials,
            row_pages: RowPages::default(),
            prepared: Prepared::new(prepared_size),
            prepared_size,
            state: StepState::default(),
            scratch,
            fault: Fault::default(),
            phase: 1,
            lost: None,
        })
    }

    /// Runs a step; `between` is called on the calling thread after each operation.
    fn execute(
        &mut self,
        step: &Step,
        pool: &mut dyn KvPool,
        between: &(dyn Fn(usize) + Sync),
    ) -> Result<(), DeviceError> {
        if let Some(reason) = &self.lost {
            return Err(lost(reason.clone()));
        }
        self.rules.check(step, pool)?;
        let Some(pool) = pool.as_any_mut().downcast_mut::<CpuKvPool>() else {
            return Err(DeviceError::BadStep { what: "its KV pool belongs to another device".into() });
        };
        self.weights.refresh();
        self.load(step)?;
        if step.rows() == 0 {
            return Ok(());
        }
        let first_phase = self.phase;
        let waits = self.table.ops.iter().map(|entry| entry.op.waits(&self.state) as u64 + 1);
        self.phase += waits.sum::<u64>() + 1;
        let run = Run {
            isa: self.isa,
            step: &self.state,
            kv: pool.share(),
            weights: &self.weights,
            fault: &self.fault,
            offsets: &self.table.offsets,
            arenas: [self.arena.share(), self.partials.share()],
            row_pages: self.row_pages.share(),
            prepared: self.prepared.share(),
            counters: &self.counters,
            first_phase,
        };
        let (ops, scratch) = (&self.table.ops, &self.scratch);
        let result = self.team.run(|thread, barrier| {
            // SAFETY: all threads run `ops` in order; `compile` checked that no result collides with another operand.
            let mut cx = unsafe { Context::new(&run, thread, barrier) };
            let mut scratch = scratch[thread].lock().unwrap_or_else(PoisonError::into_inner);
            for (number, entry) in ops.iter().enumerate() {
                cx.begin(number, &entry.operands);
                entry.op.run(&mut cx, &mut scratch);
                if let Some(next) = ops.get(number + 1) {
                    next.op.warm(&cx);
                }
                cx.wait();
                if thread == 0 {
                    between(number);
                }
            }
        });
        if let Err(error) = result {
            let reason = error.to_string();
            self.lost = Some(reason.clone());
            return Err(lost(reason));
        }
        self.fault.take()
    }

    /// Lays the step out for the threads.
    fn load(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.state.load(step);
        for counter in &mut self.counters {
            *counter.get_mut() = 0;
        }
        let places = Places { sizes: &self.state.sizes, offsets: &self.table.offsets };
        for (input, slot) in &self.table.inputs {
            let region = slot.region(&places);
            let elements = region.offset..region.offset + region.rows * region.width;
            let mut numbers = self.arena.elements_mut::<u32>(elements).iter_mut();
            let mut put = |number: u32| {
                if let Some(to) = numbers.next() {
                    *to = number;
                }
            };
            let mut first = 0;
            for segment in &step.segments {
                match input {
                    Input::TokenIds => segment.tokens.iter().copied().for_each(&mut put),
                    Input::Positions => {
                        (0..segment.rows).map(|row| segment.position(row)).for_each(&mut put);
                    }
                    Input::OutRows => {
                        segment.out_rows().map(|row| (first + row) as u32).for_each(&mut put);
                    }
                    Input::Given(given) => match &segment.given[given.0 as usize] {
                        GivenValues::F32(values) => values.iter().map(|x| x.to_bits()).for_each(&mut put),
                        GivenValues::U32(values) => values.iter().copied().for_each(&mut put),
                    },
                }
                first += segment.rows;
            }
        }
        let threads = self.team.threads();
        let partials = self.table.ops.iter().map(|entry| entry.op.partial_elements(&self.state, threads));
        let needed = partials.max().unwrap_or(0);
        if needed * 4 > self.partials.size_bytes() {
            // By doubling, so that a growing sequence seldom pays for it.
            let elements = needed.next_power_of_two();
            self.partials = Arena::new(elements).ok_or_else(|| DeviceError::OutOfMemory {
                bytes: (elements as u64).saturating_mul(4),
                what: "partial results of attention".into(),
            })?;
        }
        let row_pages = self.table.ops.iter().map(|entry| entry.op.row_pages(&self.state));
        self.row_pages.reserve(row_pages.fold(RowPagesSize::default(), RowPagesSize::max))
    }

    /// The table, for `testing`.
    pub(crate) fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }
}

/// Bytes that a program of `graph` would take for its arena and its prepared activations. Allocates neither.
pub(crate) fn measure(
    graph: &Graph,
    weights: &CpuWeights,
    limits: &ProgramLimits,
    patterns: &[Pattern],
    isa: Isa,
) -> Result<u64, DeviceError> {
    let table = compile(graph, weights, limits, patterns)?;
    let prepared_size = prepared_size(&table, isa, &Sizes::at_most(limits));
    Ok((table.arena_elements * ELEMENT_BYTES + prepared_size.bytes()) as u64)
}

/// Memory for the activations that threads prepare together.
fn prepared_size(table: &Table, isa: Isa, sizes: &Sizes) -> PreparedSize {
    let prepared = table.ops.iter().map(|entry| entry.op.prepared(isa, sizes));
    prepared.fold(PreparedSize::default(), PreparedSize::max)
}

/// The caches whose keys turn with their positions.
fn placed_rotations(graph: &Graph) -> Result<Vec<(KeyRotation, usize, usize)>, String> {
    let rotations = key_rotations(graph)?.into_iter().enumerate();
    let placed = rotations.filter_map(|(cache, rotation)| {
        let (group, place) = graph.cache_place(CacheId(cache as u32));
        Some((rotation?, group.0 as usize, place))
    });
    Ok(placed.collect())
}

impl Program for CpuProgram {
    fn limits(&self) -> ProgramLimits {
        self.rules.limits()
    }

    fn arena_bytes(&self) -> u64 {
        let kept = self.partials.size_bytes() + self.row_pages.bytes();
        (self.arena.size_bytes() + kept + self.prepared_size.bytes()) as u64
    }

    fn describe(&self) -> String {
        describe(&self.table, &self.rules.limits(), self.isa)
    }

    fn run(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Outputs<'_>, DeviceError> {
        self.execute(step, pool, &|_| {})?;
        for (place, slot) in self.outputs.iter_mut().zip(&self.table.outputs) {
            place.resolve(&self.state.sizes, self.table.offsets[slot.buffer.index()] + slot.offset);
        }
        Ok(Outputs::new(&self.outputs, self.arena.elements_mut(0..self.table.arena_elements)))
    }

    fn check_shift(&self, pool: &dyn KvPool) -> Result<(), DeviceError> {
        let unsupported =
            |what: &String| DeviceError::Unsupported { device: DEVICE.into(), what: what.clone() };
        self.rotations.as_ref().map_err(unsupported)?;
        check_type(pool.spec().dtype).map_err(|what| unsupported(&what))
    }

    fn shift(&mut self, pool: &mut dyn KvPool, pages: &[Vec<PageId>], by: i32) -> Result<(), DeviceError> {
        self.check_shift(pool)?;
        self.rules.check_pool(pool)?;
        check_pages(pool, pages)?;
        let Some(pool) = pool.as_any_mut().downcast_mut::<CpuKvPool>() else {
            return Err(DeviceError::BadStep { what: "its KV pool belongs to another device".into() });
        };
        self.weights.refresh();
        for &(rotation, group, place) in self.rotations.iter().flatten() {
            let angles = rotation.angles(self.weights.floats(rotation.frequencies.0 as usize), by);
            for &page in &pages[group] {
                pool.rotate_keys(group, place, page.index(), &rotation, &angles);
            }
        }
        Ok(())
    }

    fn profile(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Vec<OpTime>, DeviceError> {
        let ends: Mutex<Vec<(usize, Instant)>> = Mutex::new(Vec::with_capacity(self.table.ops.len()));
        let mut start = Instant::now();
        self.execute(step, pool, &|number| {
            ends.lock().unwrap_or_else(PoisonError::into_inner).push((number, Instant::now()));
        })?;
        let ends = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Some(pool) = pool.as_any_mut().downcast_mut::<CpuKvPool>() else {
            return Err(DeviceError::BadStep { what: "its KV pool belongs to another device".into() });
        };
        let kv = pool.share();
        let mut times = Vec::with_capacity(ends.len());
        for (number, end) in ends {
            let entry = &self.table.ops[number];
            let Cost { bytes, flops } = entry.op.cost(&self.state, &self.weights, kv);
            let time: Duration = end.duration_since(start);
            start = end;
            times.push(OpTime { label: entry.label.clone(), time, bytes, flops });
        }
        Ok(times)
    }
}

/// The error of a program that has ended for `reason`. The team of threads, weights and pools stay usable.
fn lost(reason: String) -> DeviceError {
    DeviceError::Lost { device: DEVICE.into(), part: LostPart::Program, reason }
}
