//! The view of an operation while it runs: its thread, the step, its operands and results.
//!
//! A run is divided into phases by barriers. In a phase, threads may write different parts of a result, and nothing reads
//! what another thread writes. Three rules make the safe functions of [`Context`] sound:
//!
//! - no operation's result overlaps another operand or result of it, which [`collision`](crate::slot::collision) checks once
//!   per program;
//! - parts of a result belong to one thread each ([`Out`]);
//! - a part for writing borrows the context mutably, so a thread has one at a time, and drops it before the next barrier.
//!
//! A build with debug assertions checks in addition that an operation views nothing that it does not list.
#![expect(unsafe_code, reason = "barriers and disjoint parts are what allows threads to share an arena")]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arena::{ArenaAccess, Element, Region, Rows, RowsMut, Shared};
use crate::fault::Fault;
use crate::kv::layout::TileLayout;
use crate::kv::{CacheView, SharedKv, SharedRowPages};
use crate::prepared::SharedPrepared;
use crate::slot::{Access, Operand, Out, Part, Places, Slot, Source, WeightView};
use crate::step_state::StepState;
use crate::team::Barrier;
use crate::weights::CpuWeights;
use crate::{Isa, Team};

/// The rows of a [`Source`], for reading.
#[derive(Clone, Debug)]
pub(crate) enum View<'a, T = f32> {
    /// Rows of the arena.
    Arena(Rows<'a, T>),
    /// All elements of a weight, and which of them are meant.
    Weight(&'a [T], WeightView),
}

impl<T: Element> View<'_, T> {
    /// Row `row` of the operand.
    pub(crate) fn row(&self, row: usize) -> &[T] {
        match self {
            Self::Arena(rows) => rows.row(row),
            Self::Weight(values, view) => &values[view.offset + row * view.stride..][..view.width],
        }
    }

    /// Number of rows of the operand.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Arena(rows) => rows.region().rows,
            Self::Weight(values, view) => values.len() / view.stride.max(1),
        }
    }
}

/// One thread's side of a run.
pub(crate) struct Context<'a> {
    /// The instructions that kernels use.
    pub isa: Isa,
    /// Number of this thread.
    pub thread: usize,
    /// Number of threads.
    pub threads: usize,
    /// The rows and pages of the step.
    pub step: &'a StepState,
    /// Keys and values.
    pub kv: SharedKv<'a>,
    /// The weights of the program.
    pub weights: &'a CpuWeights,
    /// Takes reports of numbers that are out of range.
    pub fault: &'a Fault,
    /// The first element of each buffer in the arena.
    offsets: &'a [usize],
    arena: ArenaAccess<'a>,
    partials: ArenaAccess<'a>,
    row_pages: SharedRowPages<'a>,
    prepared: SharedPrepared<'a>,
    /// The first phase in which no thread can still read prepared activations.
    prepared_from: u64,
    arenas: [Shared<'a>; 2],
    barrier: &'a Barrier,
    /// Number of the current phase.
    phase: u64,
    /// For each operation, the number of items that threads have taken.
    counters: &'a [AtomicUsize],
    /// Number of the current operation.
    operation: usize,
    /// The operands of the current operation.
    operands: &'a [Operand],
}

/// The data that all threads of a run share.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    /// The instructions that kernels use.
    pub isa: Isa,
    /// The rows and pages of the step.
    pub step: &'a StepState,
    /// Keys and values.
    pub kv: SharedKv<'a>,
    /// The weights of the program.
    pub weights: &'a CpuWeights,
    /// Takes reports of numbers that are out of range.
    pub fault: &'a Fault,
    /// The first element of each buffer in the arena.
    pub offsets: &'a [usize],
    /// The program's values, and the partial results of attention.
    pub arenas: [Shared<'a>; 2],
    /// Pages for the keys and values of the step's rows.
    pub row_pages: SharedRowPages<'a>,
    /// Memory for activations that threads prepare together.
    pub prepared: SharedPrepared<'a>,
    /// A zero for each operation.
    pub counters: &'a [AtomicUsize],
    /// Number of the first phase, larger than any of an earlier run.
    pub first_phase: u64,
}

/// A thread's part of a result, for writing.
pub(crate) struct Mine<'c, T> {
    /// Rows of the result.
    pub rows: Range<usize>,
    /// Columns of the result.
    pub columns: Range<usize>,
    /// The elements in these rows and columns; row 0 is the first of `rows`.
    pub out: RowsMut<'c, T>,
}

impl<'a> Context<'a> {
    /// The context of `thread` at the beginning of a run.
    ///
    /// # Safety
    ///
    /// Every thread of the team of `barrier` makes one context of this run, with its own number. All of them run the same
    /// operations in the same order, call [`begin`](Self::begin) before each and [`wait`](Self::wait) after each. No two
    /// operands of an operation of which one is a result [collide](crate::slot::collision).
    pub(crate) unsafe fn new(run: &Run<'a>, thread: usize, barrier: &'a Barrier) -> Self {
        let [arena, partials] = run.arenas.map(|arena| arena.access(thread, run.first_phase));
        Self {
            isa: run.isa,
            thread,
            threads: barrier.threads(),
            step: run.step,
            kv: run.kv,
            weights: run.weights,
            fault: run.fault,
            offsets: run.offsets,
            arena,
            partials,
            row_pages: run.row_pages,
            prepared: run.prepared,
            prepared_from: run.first_phase,
            arenas: run.arenas,
            barrier,
            phase: run.first_phase,
            counters: run.counters,
            operation: 0,
            operands: &[],
        }
    }

    /// Waits for all threads and begins the next phase, in which what any thread wrote may be read.
    pub(crate) fn wait(&mut self) {
        self.barrier.wait();
        self.phase += 1;
        [self.arena, self.partials] = self.arenas.map(|arena| arena.access(self.thread, self.phase));
    }

    /// Goes on to operation number `operation`, which has these operands.
    pub(crate) fn begin(&mut self, operation: usize, operands: &'a [Operand]) {
        self.operation = operation;
        self.operands = operands;
    }

    /// Takes the next item of the operation, which no other thread gets.
    pub(crate) fn take(&self) -> usize {
        self.counters[self.operation].fetch_add(1, Ordering::Relaxed)
    }

    fn places(&self) -> Places<'a> {
        Places { sizes: &self.step.sizes, offsets: self.offsets }
    }

    /// The region of a value in this step.
    pub(crate) fn region(&self, slot: &Slot) -> Region {
        slot.region(&self.places())
    }

    /// Views a float operand.
    pub(crate) fn view(&self, source: &Source) -> View<'a> {
        self.view_of(source)
    }

    /// Views the bits of an operand.
    pub(crate) fn view_of<T: Element>(&self, source: &Source) -> View<'a, T> {
        match source {
            Source::Arena(slot) => View::Arena(self.rows(slot)),
            Source::Weight(view) => {
                View::Weight(bytemuck::cast_slice(self.weights.floats(view.weight)), *view)
            }
        }
    }

    /// Views some rows of a float operand.
    pub(crate) fn view_rows(&self, source: &Source, rows: Range<usize>) -> View<'a> {
        match source {
            Source::Arena(slot) => View::Arena(self.rows_in(slot, self.region(slot).of_rows(rows))),
            Source::Weight(view) => {
                let offset = view.offset + rows.start * view.stride;
                self.view(&Source::Weight(WeightView { offset, ..*view }))
            }
        }
    }

    /// Views an operand that lies in the arena.
    pub(crate) fn rows<T: Element>(&self, slot: &Slot) -> Rows<'a, T> {
        self.rows_in(slot, self.region(slot))
    }

    /// Views the elements of an operand that lie in `region`.
    pub(crate) fn rows_in<T: Element>(&self, slot: &Slot, region: Region) -> Rows<'a, T> {
        self.check(slot, region, Access::Read);
        // SAFETY: no result of the operation overlaps an operand. Results that an operation reads back, it reads behind a
        // barrier, after which it does not write them.
        unsafe { self.arena.read(region) }
    }

    /// The share of this thread of `count` things.
    pub(crate) fn share(&self, count: usize) -> Range<usize> {
        Team::split(count, 1, self.threads, self.thread)
    }

    /// This thread's part of a result.
    pub(crate) fn mine<T: Element>(&mut self, out: &Out) -> Mine<'_, T> {
        let Part { rows, columns, region } = out.part(&self.places(), self.threads, self.thread);
        // SAFETY: no other operand overlaps the result, its parts do not overlap each other, and the borrow of the context
        // keeps this thread from a second view and from the next phase.
        Mine { rows, columns, out: unsafe { self.write(&out.slot, region) } }
    }

    /// This thread's parts of two results of different slots.
    pub(crate) fn mine_of_both<T: Element, U: Element>(
        &mut self,
        first: &Out,
        second: &Out,
    ) -> (Mine<'_, T>, Mine<'_, U>) {
        let [one, other] = [first, second].map(|out| out.part(&self.places(), self.threads, self.thread));
        assert!(!one.region.overlaps(&other.region), "{first:?} and {second:?}");
        // SAFETY: as in `mine`; the two parts do not overlap.
        let (out, other_out) =
            unsafe { (self.write(&first.slot, one.region), self.write(&second.slot, other.region)) };
        (
            Mine { rows: one.rows, columns: one.columns, out },
            Mine { rows: other.rows, columns: other.columns, out: other_out },
        )
    }

    /// A view of the elements of a result that lie in `region`, for an operation that shares its results out by itself.
    ///
    /// # Safety
    ///
    /// While the view or a slice from it lives, no other view overlaps `region`, of this thread or another. Other
    /// threads view it in a later phase only.
    pub(crate) unsafe fn write<T: Element>(&self, slot: &Slot, region: Region) -> RowsMut<'a, T> {
        self.check(slot, region, Access::Write);
        // SAFETY: by the contract.
        unsafe { self.arena.write(region) }
    }

    /// The memory for partial results of attention.
    pub(crate) fn partials(&self) -> ArenaAccess<'a> {
        self.partials
    }

    /// Temporary pages for the keys and values of the step's rows, with the layout and heads of a cache. Each operation that lists
    /// them finds them unused.
    pub(crate) fn row_pages(&self, layout: TileLayout, heads: usize) -> CacheView<'a> {
        self.row_pages.view(layout, heads)
    }

    /// Hands out the memory for activations that threads prepare together: to be filled in this phase, and read in the
    /// next.
    ///
    /// # Panics
    ///
    /// If a thread may still read what was prepared before.
    pub(crate) fn lend_prepared(&mut self) -> SharedPrepared<'a> {
        assert!(self.phase >= self.prepared_from, "activations prepared twice without a barrier between");
        self.prepared_from = self.phase + 2;
        self.prepared
    }

    /// In builds with debug assertions, panics if the current operation views what it does not list.
    fn check(&self, slot: &Slot, region: Region, access: Access) {
        debug_assert!(
            self.region(slot).encloses(&region)
                && self.operands.iter().any(|operand| operand.allows(slot, access)),
            "operation {} views {region:?} of {slot:?} for {access:?} and lists {:?}",
            self.operation,
            self.operands
        );
    }
}
