//! What an operation sees while it runs: its thread, the step, and where values are.
#![expect(unsafe_code, reason = "a barrier is what allows threads to see each other's writes")]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use brasa_graph::{Dim, Sizes};

use crate::arena::{ArenaAccess, Element, Region, Rows, RowsMut, Shared};
use crate::fault::Fault;
use crate::kv::SharedKv;
use crate::ops::prepare::SharedPrepared;
use crate::step_state::StepState;
use crate::team::Barrier;
use crate::weights::CpuWeights;
use crate::{Isa, Team};

/// Where a value lies in the arena, before the step's sizes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// First element.
    pub offset: usize,
    /// Elements from one row to the next.
    pub stride: Dim,
    /// Elements of a row.
    pub width: Dim,
    /// Rows.
    pub outer: Dim,
}

impl Slot {
    /// The region that it is in a step of these sizes.
    pub(crate) fn region(&self, sizes: &Sizes) -> Region {
        Region {
            offset: self.offset,
            stride: self.stride.resolve(sizes),
            width: self.width.resolve(sizes),
            rows: self.outer.resolve(sizes),
        }
    }
}

/// A float operand: a value of the arena, or a weight as plain floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Arena(Slot),
    Weight(WeightView),
}

/// Rows of a weight of plain floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightView {
    /// Number of the weight.
    pub weight: usize,
    pub offset: usize,
    pub stride: usize,
    pub width: usize,
}

/// Rows of a [`Source`].
#[derive(Clone, Debug)]
pub(crate) enum View<'a, T = f32> {
    Arena(Rows<'a, T>),
    Weight(&'a [T], WeightView),
}

impl<T: Element> View<'_, T> {
    /// Row `row`.
    pub(crate) fn row(&self, row: usize) -> &[T] {
        match self {
            Self::Arena(rows) => rows.row(row),
            Self::Weight(values, view) => &values[view.offset + row * view.stride..][..view.width],
        }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Arena(rows) => rows.region().rows,
            Self::Weight(values, view) => values.len() / view.stride.max(1),
        }
    }
}

/// One thread's side of a run.
pub(crate) struct Context<'a> {
    pub isa: Isa,
    pub thread: usize,
    pub threads: usize,
    pub step: &'a StepState,
    pub kv: SharedKv<'a>,
    pub weights: &'a CpuWeights,
    pub fault: &'a Fault,
    /// The program's values.
    pub arena: ArenaAccess<'a>,
    /// Partial results of attention.
    pub partials: ArenaAccess<'a>,
    /// Memory for activations that threads prepare together.
    pub prepared: SharedPrepared<'a>,
    arenas: [Shared<'a>; 2],
    barrier: &'a Barrier,
    /// Barriers passed since the run began.
    phase: u64,
    /// Items taken of each operation; the operation's number.
    counters: &'a [AtomicUsize],
    operation: usize,
}

/// What all threads of a run share.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub isa: Isa,
    pub step: &'a StepState,
    pub kv: SharedKv<'a>,
    pub weights: &'a CpuWeights,
    pub fault: &'a Fault,
    /// The program's values, and the partial results of attention; held by nobody else.
    pub arenas: [Shared<'a>; 2],
    pub prepared: SharedPrepared<'a>,
    /// One per operation, zero.
    pub counters: &'a [AtomicUsize],
    /// Number of the first phase, larger than any of an earlier run.
    pub first_phase: u64,
}

impl<'a> Context<'a> {
    /// The context of `thread` at the beginning of a run.
    pub(crate) fn new(run: &Run<'a>, thread: usize, barrier: &'a Barrier) -> Self {
        // SAFETY: phases are separated by the team's barrier (here, by the beginning of the run).
        let accesses = run.arenas.map(|arena| unsafe { arena.access(thread, run.first_phase) });
        Self {
            isa: run.isa,
            thread,
            threads: barrier.threads(),
            step: run.step,
            kv: run.kv,
            weights: run.weights,
            fault: run.fault,
            arena: accesses[0],
            partials: accesses[1],
            prepared: run.prepared,
            arenas: run.arenas,
            barrier,
            phase: run.first_phase,
            counters: run.counters,
            operation: 0,
        }
    }

    /// Waits for all threads; what they wrote may be read afterwards.
    pub(crate) fn wait(&mut self) {
        self.barrier.wait();
        self.phase += 1;
        // SAFETY: all threads have finished the phases before.
        let accesses = self.arenas.map(|arena| unsafe { arena.access(self.thread, self.phase) });
        [self.arena, self.partials] = accesses;
    }

    /// Goes on to operation number `operation`.
    pub(crate) fn begin(&mut self, operation: usize) {
        self.operation = operation;
    }

    /// Takes the next item of the operation, which no other thread gets.
    pub(crate) fn take(&self) -> usize {
        self.counters[self.operation].fetch_add(1, Ordering::Relaxed)
    }

    /// Where a value is in this step.
    pub(crate) fn region(&self, slot: &Slot) -> Region {
        slot.region(&self.step.sizes)
    }

    /// A float operand.
    pub(crate) fn view(&self, source: &Source) -> View<'a> {
        self.view_of(source)
    }

    /// The bits of an operand.
    pub(crate) fn view_of<T: Element>(&self, source: &Source) -> View<'a, T> {
        match source {
            Source::Arena(slot) => View::Arena(self.arena.read(self.region(slot))),
            Source::Weight(view) => {
                View::Weight(bytemuck::cast_slice(self.weights.floats(view.weight)), *view)
            }
        }
    }

    /// An operand of numbers.
    pub(crate) fn numbers(&self, slot: &Slot) -> Rows<'a, u32> {
        self.arena.read(self.region(slot))
    }

    /// This thread's share of `count` things.
    pub(crate) fn share(&self, count: usize) -> Range<usize> {
        Team::split(count, 1, self.threads, self.thread)
    }

    /// This thread's rows of a result, and which they are.
    pub(crate) fn my_rows<T: Element>(&self, slot: &Slot) -> (Range<usize>, RowsMut<'a, T>) {
        let region = self.region(slot);
        let rows = self.share(region.rows);
        (rows.clone(), self.arena.write(region.of_rows(rows)))
    }

    /// This thread's part of a result whose elements do not depend on each other: rows where there are enough,
    /// otherwise columns.
    pub(crate) fn my_part(&self, slot: &Slot) -> (Range<usize>, Range<usize>, RowsMut<'a, f32>) {
        let region = self.region(slot);
        let (rows, columns) = if region.rows >= self.threads {
            (self.share(region.rows), 0..region.width)
        } else {
            (0..region.rows, Team::split(region.width, 64, self.threads, self.thread))
        };
        let part = region.of_rows(rows.clone()).of_columns(columns.clone());
        (rows, columns, self.arena.write(part))
    }
}
