//! A low-rank product of a bank. Every row uses the ranks of its own adapters only.
//!
//! The ranks of one strip of `A` are a *unit*. A row multiplies the units that have a factor other than zero, and adds their products
//! one after the other, so its sums depend on its own adapters alone. Weights of adapters that no row uses are not read, nor are the
//! zeros of a `B` whose units belong to parts of a stacked projection.
#![expect(unsafe_code, reason = "threads write disjoint pieces of one result")]

use std::ops::Range;

use brasa_graph::Sizes;

use crate::context::{Context, View};
use crate::kv::SharedKv;
use crate::linear::{Ahead, Output, PackedLinear, RowMap, RowPair, STRIP, WeightClasses};
use crate::prepared::PreparedSize;
use crate::slot::{Operands, Place, Slot, Source};
use crate::step_state::StepState;
use crate::weights::CpuWeights;
use crate::{Isa, Team};

use super::operation::{Cost, Operation};
use super::prepare::Activations;
use super::scratch::{Scratch, ScratchSize};

/// Most rows that a thread multiplies with a strip of `A` at a time, so that threads can share the rows of one adapter.
const ROWS_AT_ONCE: usize = 64;
/// Strips of `B` that all rows are multiplied with before the next ones, if rows are many: the weights of a unit stay in the first cache.
const STRIPS_AT_ONCE: usize = 32;
/// Most rows for which all strips of a unit follow each other, and are fetched ahead.
const FEW_ROWS: usize = 8;

/// `out = residual + (factors ∘ x·Aᵀ)·Bᵀ`.
#[derive(Clone, Debug)]
pub(crate) struct LowRankRowsOp {
    pub activations: Activations,
    /// Number of the weight `A`, `[ranks, K]`.
    pub a: usize,
    /// Factors of each row's ranks, `[R, ranks]`.
    pub factors: Source,
    /// Memory for `x·Aᵀ`, `[R, ranks]`.
    pub narrow: Slot,
    /// Number of the weight `B`, `[N, ranks]`.
    pub b: usize,
    /// The strips of `A`.
    pub units: Vec<Unit>,
    pub residual: Source,
    pub out: Slot,
}

/// The ranks of one strip of `A`.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// The strip of `A`.
    pub strip: usize,
    /// The ranks, from an even one on.
    pub ranks: Range<usize>,
    /// The strips of `B` to whose outputs these ranks contribute.
    pub strips: Range<usize>,
}

/// The rows of a step by the units that they use. The memory is reused from step to step.
#[derive(Debug, Default)]
pub(crate) struct RowsByUnit {
    /// Unit u has the rows `starts[u]..starts[u + 1]`.
    starts: Vec<usize>,
    rows: Vec<RowPair>,
}

/// The units of a pair of weights, without those whose columns of `B` are zero; `None` if no kernel multiplies parts of `B`. If `B` may
/// change, its zeros count as used.
pub(crate) fn units(a: &PackedLinear, b: &PackedLinear, is_fixed: bool) -> Option<Vec<Unit>> {
    let floats = b.float_strips()?;
    let units = (0..a.strips()).map(|strip| {
        let ranks = a.strip_outputs(strip);
        let strips = if is_fixed { floats.used(&ranks) } else { 0..b.strips() };
        Unit { strip, ranks, strips }
    });
    let units: Vec<Unit> = units.filter(|unit| !unit.strips.is_empty()).collect();
    units.iter().all(|unit| floats.adds(&unit.ranks)).then_some(units)
}

impl RowsByUnit {
    fn gather(&mut self, units: &[Unit], factors: &View<'_>, rows: usize) {
        self.starts.clear();
        self.rows.clear();
        for unit in units {
            self.starts.push(self.rows.len());
            for row in 0..rows {
                if factors.row(row)[unit.ranks.clone()].iter().any(|&factor| factor != 0.0) {
                    self.rows.push(RowPair { x: row as u32, y: row as u32 });
                }
            }
        }
        self.starts.push(self.rows.len());
    }

    fn of(&self, unit: usize) -> &[RowPair] {
        &self.rows[self.starts[unit]..self.starts[unit + 1]]
    }

    /// Units with some of their rows, in an order that all threads agree on.
    fn pieces(&self) -> impl Iterator<Item = (usize, &[RowPair])> {
        let units = 0..self.starts.len().saturating_sub(1);
        units.flat_map(|unit| self.of(unit).chunks(ROWS_AT_ONCE).map(move |rows| (unit, rows)))
    }
}

impl Operation for LowRankRowsOp {
    fn operands(&self, list: &mut Operands) {
        self.activations.operands(list);
        list.reads("factors", self.factors).reads("residual", self.residual);
        list.reads("a", Place::Packed(self.a)).reads("b", Place::Packed(self.b));
        list.writes("narrow", self.narrow).writes("out", self.out);
    }

    fn products(&self) -> WeightClasses {
        self.activations.classes
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let rows = cx.region(&self.out).rows;
        if rows == 0 {
            return;
        }
        let Scratch { rows: private, ranks, up, .. } = scratch;
        ranks.gather(&self.units, &cx.view(&self.factors), rows);
        if !ranks.rows.is_empty() {
            let view = cx.view(&self.activations.x);
            let (input, cx) = self.activations.prepare(cx, &view, rows, private);
            let (a, region) = (cx.weights.linear(self.a), cx.region(&self.narrow));
            let mine = cx.share(ranks.pieces().count());
            for (unit, rows) in ranks.pieces().skip(mine.start).take(mine.len()) {
                let Unit { strip, ranks: of_unit, .. } = &self.units[unit];
                let (strip, columns) = (*strip, region.of_columns(of_unit.clone()));
                let mut values = None;
                for pair in rows {
                    let row = pair.y as usize;
                    // SAFETY: a piece, some rows of a unit, belongs to one thread.
                    let view = unsafe { cx.write::<f32>(&self.narrow, columns.of_rows(row..row + 1)) };
                    values = Some(view.elements());
                }
                let Some(values) = values else { continue };
                let column = region.offset.cast_signed();
                let output = Output { values, stride: region.stride, column };
                // SAFETY: the elements of these rows and ranks, which no other thread views before the barrier.
                unsafe { a.multiply(cx.isa, &input, RowMap::Pairs(rows), &output, strip..strip + 1) };
            }
        }
        cx.wait();
        self.add(cx, ranks, up);
    }

    fn warm(&self, cx: &Context<'_>) {
        let a = cx.weights.linear(self.a);
        a.warm(a.share(cx.threads, cx.thread).start.min(a.strips() - 1));
    }

    fn scratch(&self, _: &Sizes, size: &mut ScratchSize) {
        size.k = size.k.max(self.activations.k);
        size.up = size.up.max(STRIP);
    }

    fn prepared(&self, isa: Isa, sizes: &Sizes) -> PreparedSize {
        self.activations.size(isa, self.out.outer.resolve(sizes))
    }

    /// The work of a step in which all rows use all ranks.
    fn cost(&self, step: &StepState, weights: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let rows = self.out.outer.resolve(&step.sizes);
        Cost::of_linear(weights.linear(self.a), rows) + Cost::of_linear(weights.linear(self.b), rows)
    }
}

impl LowRankRowsOp {
    /// Adds the products with `B` to the residual, in this thread's columns of the result.
    fn add(&self, cx: &Context<'_>, by_unit: &RowsByUnit, memory: &mut [f32]) {
        let linear = cx.weights.linear(self.b);
        let Some(b) = linear.float_strips() else { unreachable!("units are of packed floats") };
        let (factors, residual, narrow) =
            (cx.view(&self.factors), cx.view(&self.residual), cx.rows::<f32>(&self.narrow));
        let region = cx.region(&self.out);
        let mine = Team::split(linear.strips(), 1, cx.threads, cx.thread);
        let (strips_at_once, ahead) = match region.rows {
            ..=FEW_ROWS => (mine.len().max(1), Ahead::Fetched),
            _ => (STRIPS_AT_ONCE, Ahead::Cached),
        };
        for start in mine.clone().step_by(strips_at_once) {
            let strips = start..mine.end.min(start + strips_at_once);
            let first = strips.start * STRIP;
            let columns = first..linear.n().min(strips.end * STRIP);
            // SAFETY: strips of `B` are split among threads.
            let mut out = unsafe { cx.write::<f32>(&self.out, region.of_columns(columns.clone())) };
            for row in 0..region.rows {
                out.row(row).copy_from_slice(&residual.row(row)[columns.clone()]);
            }
            for (number, unit) in self.units.iter().enumerate() {
                let used = strips.start.max(unit.strips.start)..strips.end.min(unit.strips.end);
                if used.is_empty() {
                    continue;
                }
                let part = used.start * STRIP - first..columns.len().min(used.end * STRIP - first);
                let x = &mut memory[..unit.ranks.len().next_multiple_of(2)];
                x.fill(0.0);
                for row in by_unit.of(number).iter().map(|pair| pair.y as usize) {
                    let ranks = narrow.row(row)[unit.ranks.clone()].iter();
                    for ((x, narrow), &factor) in
                        x.iter_mut().zip(ranks).zip(&factors.row(row)[unit.ranks.clone()])
                    {
                        *x = if factor == 0.0 { 0.0 } else { narrow * factor };
                    }
                    let y = &mut out.row(row)[part.clone()];
                    b.add(cx.isa, used.clone(), &unit.ranks, x, y, ahead);
                }
            }
        }
    }
}
