//! Changes passed back through linear layers: to the weights, and through chosen experts.

use std::ops::Range;

use brasa_graph::{Dim, Sizes};

use crate::Isa;
use crate::arena::RowsMut;
use crate::context::{Context, Mine};
use crate::kv::SharedKv;
use crate::linear::{ExpertInput, OtherSide, PackedLinear, RowPair};
use crate::matrix::{
    Factor, FactorRows, Found, INNER, Part, ProductScratch, ResultRows, Store, Strided, Vectors,
};
use crate::slot::{Operands, Out, Place, Slot, Source};
use crate::step_state::StepState;
use crate::weights::CpuWeights;

use super::operation::{Cost, Operation};
use super::scratch::{Scratch, ScratchSize};

/// `out[n,k] = Σ_r dy[r,n] · x[r,k]`.
#[derive(Clone, Debug)]
pub(crate) struct LinearGradientOp {
    pub dy: Source,
    pub x: Source,
    /// Rows of `dy` and of `x`.
    pub rows: Dim,
    /// Vectors of `dy` and of `x` in a row.
    pub per_row: usize,
    /// Elements of a vector of `dy`, and of `x`.
    pub n: usize,
    pub k: usize,
    pub out: Out,
}

/// `out[r,j,k] = Σ_n y[r,j,n] · w[experts[r,j],n,k]`.
#[derive(Clone, Debug)]
pub(crate) struct ExpertLinearTransposedOp {
    pub y: Source,
    pub experts: Slot,
    /// Number of the weight.
    pub weight: usize,
    /// Experts per row.
    pub chosen: usize,
    pub n: usize,
    pub k: usize,
    pub out: Out,
}

/// `out[e,n,k] = Σ dy[r,j,n] · x[r,(j),k]` over all rows r and places j that chose expert e.
#[derive(Clone, Debug)]
pub(crate) struct ExpertLinearGradientOp {
    pub dy: Source,
    pub experts: Slot,
    pub x: Source,
    /// Number of experts.
    pub count: usize,
    /// Experts per row.
    pub chosen: usize,
    pub input: ExpertInput,
    pub n: usize,
    pub k: usize,
    pub out: Out,
}

impl Operation for LinearGradientOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("dy", self.dy).reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let (isa, dy, x) = (cx.isa, cx.view(&self.dy), cx.view(&self.x));
        let inner = self.rows.resolve(&cx.step.sizes) * self.per_row;
        let dy = Vectors { rows: &dy, width: self.n, per_row: self.per_row };
        let x = Vectors { rows: &x, width: self.k, per_row: self.per_row };
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        if self.k < self.n {
            // Tiles are wider than high: long rows leave less of them empty.
            let Scratch { products, swapped, .. } = scratch;
            swapped.resize(swapped.len().max(self.k * rows.len()), 0.0);
            let (a, b) = ((Factor::Across(&x), columns), (Factor::Across(&dy), rows.clone()));
            let mut turned = Strided { values: &mut swapped[..], stride: rows.len() };
            products.multiply(isa, a, b, inner, Store::Replace, &mut turned);
            for row in 0..rows.len() {
                let column = swapped[row..].iter().step_by(rows.len());
                out.row(row).iter_mut().zip(column).for_each(|(out, &x)| *out = x);
            }
            return;
        }
        let (a, b) = ((Factor::Across(&dy), rows), (Factor::Across(&x), columns));
        scratch.products.multiply(isa, a, b, inner, Store::Replace, &mut out);
    }

    fn cost(&self, step: &StepState, _: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let rows = self.rows.resolve(&step.sizes) * self.per_row;
        Cost { bytes: 0, flops: (2 * rows * self.n * self.k) as u64 }
    }
}

/// Computes the product of vectors of `y`, `[rows, N]`, and columns of a weight `[N, K]`, of which a few rows at a time are decoded to
/// panels. Columns begin at a multiple of [`TURNED_COLUMNS`](crate::linear::TURNED_COLUMNS); `row` is memory for a row of the weight.
pub(super) fn multiply_transposed(
    isa: Isa,
    (y, rows): (&impl FactorRows, usize),
    (w, columns): (&PackedLinear, Range<usize>),
    (products, row): (&mut ProductScratch, &mut [f32]),
    out: &mut impl ResultRows,
) {
    let ProductScratch { packed, rows: memory } = products;
    for first in (0..w.n()).step_by(INNER) {
        let part = first..w.n().min(first + INNER);
        packed.pack_itself(isa, &mut OtherSide { weight: w, row }, &columns, &part);
        let y = Found::new(|row| &y.row(row)[part.clone()]);
        let store = if first == 0 { Store::Replace } else { Store::Add };
        let part = Part { rows: 0..rows, columns: 0..columns.len(), inner: 0..part.len() };
        packed.multiply(isa, Factor::Summed(&y), &part, store, memory, out);
    }
}

impl Operation for ExpertLinearTransposedOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("y", self.y).reads("experts", self.experts).reads("w", Place::Packed(self.weight));
        list.writes("out", self.out);
    }

    fn scratch(&self, _: &Sizes, size: &mut ScratchSize) {
        size.decoded = size.decoded.max(self.k);
    }

    /// Each thread passes its own rows through the experts that they chose.
    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let (isa, fault, y) = (cx.isa, cx.fault, cx.view(&self.y));
        let experts = cx.weights.experts(self.weight).experts();
        let numbers = cx.rows::<u32>(&self.experts);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        let chosen = &mut scratch.experts.chosen;
        chosen.clear();
        for row in rows.clone() {
            chosen.extend(numbers.row(row).iter().map(|&x| fault.index(x, experts.len()) as u32));
        }
        scratch.experts.groups.gather(chosen, self.chosen, experts.len(), ExpertInput::Own);
        let y = Vectors { rows: &y, width: self.n, per_row: self.chosen };
        for (expert, linear) in experts.iter().enumerate() {
            let pairs = scratch.experts.groups.pairs(expert);
            if pairs.is_empty() {
                continue;
            }
            let y = Found::new(|pair: usize| y.row(rows.start * self.chosen + pairs[pair].x as usize));
            let mut out = Chosen { rows: &mut out, pairs, width: self.k, per_row: self.chosen };
            let memory = (&mut scratch.products, &mut scratch.decoded[..]);
            multiply_transposed(isa, (&y, pairs.len()), (linear, 0..self.k), memory, &mut out);
        }
    }

    fn cost(&self, step: &StepState, weights: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let pairs = self.out.slot.outer.resolve(&step.sizes) * self.chosen;
        Cost::of_experts(weights.experts(self.weight).experts(), pairs)
    }
}

/// The vectors of a result that belong to the pairs of an expert.
struct Chosen<'r, 'a> {
    rows: &'r mut RowsMut<'a, f32>,
    pairs: &'r [RowPair],
    width: usize,
    per_row: usize,
}

impl ResultRows for Chosen<'_, '_> {
    fn row_mut(&mut self, pair: usize) -> &mut [f32] {
        let vector = self.pairs[pair].y as usize;
        let column = vector % self.per_row * self.width;
        &mut self.rows.row(vector / self.per_row)[column..column + self.width]
    }
}

impl Operation for ExpertLinearGradientOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("dy", self.dy).reads("experts", self.experts).reads("x", self.x).writes("out", self.out);
    }

    /// Each thread sums the gradients of its own experts.
    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let (isa, fault, dy, x) = (cx.isa, cx.fault, cx.view(&self.dy), cx.view(&self.x));
        let numbers = cx.rows::<u32>(&self.experts);
        let chosen = &mut scratch.experts.chosen;
        chosen.clear();
        for row in 0..numbers.region().rows {
            chosen.extend(numbers.row(row).iter().map(|&x| fault.index(x, self.count) as u32));
        }
        scratch.experts.groups.gather(chosen, self.chosen, self.count, self.input);
        let x_per_row = if self.input == ExpertInput::Own { self.chosen } else { 1 };
        let dy = Vectors { rows: &dy, width: self.n, per_row: self.chosen };
        let x = Vectors { rows: &x, width: self.k, per_row: x_per_row };
        let Mine { rows: experts, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, expert) in experts.enumerate() {
            let pairs = scratch.experts.groups.pairs(expert);
            let dy = Found::new(|pair: usize| dy.row(pairs[pair].y as usize));
            let x = Found::new(|pair: usize| x.row(pairs[pair].x as usize));
            let mut out = Strided { values: out.row(i), stride: self.k };
            let (a, b) = ((Factor::Across(&dy), 0..self.n), (Factor::Across(&x), 0..self.k));
            scratch.products.multiply(isa, a, b, pairs.len(), Store::Replace, &mut out);
        }
    }

    fn cost(&self, step: &StepState, _: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let pairs = self.experts.outer.resolve(&step.sizes) * self.chosen;
        Cost { bytes: 0, flops: (2 * pairs * self.n * self.k) as u64 }
    }
}
