//! Matrix products of two temporaries, and with the other side of a weight.
#![expect(unsafe_code, reason = "threads write disjoint columns of one result and rows of shared memory")]

use brasa_graph::{Dim, Sizes};

use crate::arena::{Region, RowsMut};
use crate::context::{Context, Mine};
use crate::kv::SharedKv;
use crate::linear::{Output, PackedLinear, TURNED_COLUMNS};
use crate::matrix::{
    FEW_COLUMNS, Factor, FactorRows, Found, ResultRows, Store, Strided, Vectors, multiply_few,
};
use crate::prepared::PreparedSize;
use crate::rounded::{RoundedView, SharedRounded, tile_rows};
use crate::slot::{Operands, Out, Place, Slot, Source};
use crate::step_state::StepState;
use crate::weights::CpuWeights;
use crate::{Isa, Team};

use super::linear_gradient::multiply_transposed;
use super::operation::{Cost, Operation};
use super::scratch::{Scratch, ScratchSize};

/// `out = op(a) · op(b)`.
#[derive(Clone, Debug)]
pub(crate) struct MatmulOp {
    pub transpose_a: bool,
    pub transpose_b: bool,
    pub a: Source,
    pub b: Source,
    /// Elements that are summed.
    pub inner: Dim,
    pub out: Out,
}

/// `out[r,k] = Σ_n y[r,n] · w[n,k]`.
#[derive(Clone, Debug)]
pub(crate) struct LinearTransposedOp {
    pub y: Source,
    /// Number of the weight.
    pub w: usize,
    /// Outputs of the weight.
    pub n: usize,
    /// Inputs of the weight.
    pub k: usize,
    /// Vectors in a row.
    pub per_row: usize,
    /// True if many rows may be multiplied in bf16.
    pub turns: bool,
    pub out: Out,
}

/// Rounds rows of `n` elements to bf16, each thread its share, and waits until all are.
pub(super) fn round_rows<'a, 'r>(
    cx: &mut Context<'a>,
    rows: usize,
    n: usize,
    row: impl Fn(usize) -> &'r [f32],
) -> RoundedView<'a> {
    let rounded = SharedRounded::over(n, cx.lend_prepared().rounded);
    for number in cx.share(rows) {
        // SAFETY: shares are disjoint, and what was lent in an earlier phase is no longer read.
        unsafe { rounded.round_row(cx.isa, number, row(number)) };
    }
    cx.wait();
    // SAFETY: all rows are written, and stay as they are for a phase, in which the view is used.
    unsafe { rounded.view(rows) }
}

/// Computes this thread's columns of the products of rounded rows with the other side of a weight.
pub(super) fn multiply_turned(
    cx: &Context<'_>,
    (y, rows): (RoundedView<'_>, usize),
    w: &PackedLinear,
    out: &Slot,
    region: Region,
) {
    let columns = Team::split(w.k(), TURNED_COLUMNS, cx.threads, cx.thread);
    if columns.is_empty() || rows == 0 {
        return;
    }
    // SAFETY: columns of the result are shared out.
    let view = unsafe { cx.write::<f32>(out, region.of_columns(columns.clone())) };
    let output =
        Output { values: view.elements(), stride: region.stride, column: region.offset.cast_signed() };
    // SAFETY: `view` holds these columns of all rows for this thread.
    unsafe { w.multiply_turned(cx.isa, (y, rows), columns, &output) };
}

impl Operation for MatmulOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("a", self.a).reads("b", self.b).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let (isa, a, b) = (cx.isa, cx.view(&self.a), cx.view(&self.b));
        let inner = self.inner.resolve(&cx.step.sizes);
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        let a = if self.transpose_a { Factor::Across(&a) } else { Factor::Summed(&a) };
        let b = if self.transpose_b { Factor::Summed(&b) } else { Factor::Across(&b) };
        scratch.products.multiply(isa, (a, rows), (b, columns), inner, Store::Replace, &mut out);
    }
}

impl Operation for LinearTransposedOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("y", self.y).reads("w", Place::Packed(self.w)).writes("out", self.out);
    }

    fn scratch(&self, _: &Sizes, size: &mut ScratchSize) {
        let rows = if self.k <= FEW_COLUMNS { self.n + 1 } else { 1 };
        size.decoded = size.decoded.max(rows * self.k);
    }

    fn prepared(&self, isa: Isa, sizes: &Sizes) -> PreparedSize {
        let rows = self.out.slot.outer.resolve(sizes);
        let rounded = if self.turns && isa.has_bf16() { tile_rows(rows, self.n) } else { 0 };
        PreparedSize { rounded, ..PreparedSize::default() }
    }

    /// Each thread decodes all weights for its rows or columns, or turns them for its columns.
    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let (isa, y, w) = (cx.isa, cx.view(&self.y), cx.weights.linear(self.w));
        let region = cx.region(&self.out.slot);
        if self.turns && w.turns(isa, region.rows) {
            let y = round_rows(cx, region.rows, self.n, |row| y.row(row));
            multiply_turned(cx, (y, region.rows), w, &self.out.slot, region);
            return;
        }
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        if rows.is_empty() || columns.is_empty() {
            return;
        }
        if self.k <= FEW_COLUMNS && self.per_row == 1 && columns.len() == self.k {
            let y = Found::new(|row| y.row(rows.start + row));
            let (row, decoded) = scratch.decoded.split_at_mut(self.k);
            for n in 0..self.n {
                w.decode_row(n, row);
                for (column, &x) in decoded[n..].iter_mut().step_by(self.n).zip(&*row) {
                    *column = x;
                }
            }
            let w = Strided { values: &*decoded, stride: self.n };
            multiply_few(isa, (&y, rows.len()), (&w, self.k), &mut out);
            return;
        }
        let memory = (&mut scratch.products, &mut scratch.decoded[..]);
        let y = Vectors { rows: &y, width: self.n, per_row: self.per_row };
        let y = Found::new(|vector| y.row(rows.start * self.per_row + vector));
        let count = rows.len() * self.per_row;
        if self.per_row == 1 {
            multiply_transposed(isa, (&y, count), (w, columns), memory, &mut out);
        } else {
            // Whole rows, whose vectors lie side by side.
            let mut out = VectorsOf { rows: &mut out, width: self.k, per_row: self.per_row };
            multiply_transposed(isa, (&y, count), (w, 0..self.k), memory, &mut out);
        }
    }

    fn cost(&self, step: &StepState, weights: &CpuWeights, _: SharedKv<'_>) -> Cost {
        Cost::of_linear(weights.linear(self.w), self.out.slot.outer.resolve(&step.sizes) * self.per_row)
    }
}

/// Vectors that lie side by side in the rows of a result.
struct VectorsOf<'r, 'a> {
    rows: &'r mut RowsMut<'a, f32>,
    width: usize,
    per_row: usize,
}

impl ResultRows for VectorsOf<'_, '_> {
    fn row_mut(&mut self, vector: usize) -> &mut [f32] {
        let column = vector % self.per_row * self.width;
        &mut self.rows.row(vector / self.per_row)[column..column + self.width]
    }
}
