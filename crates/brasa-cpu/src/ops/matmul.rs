//! Matrix products without kernels of their own: of two temporaries, and with a transposed weight.

use brasa_graph::{Dim, Sizes};

use crate::arena::RowsMut;
use crate::context::{Context, Mine};
use crate::kv::SharedKv;
use crate::matrix::{Factor, FactorRows, Found, INNER, ResultRows, Store, Vectors};
use crate::slot::{Operands, Out, Place, Source};
use crate::step_state::StepState;
use crate::weights::CpuWeights;

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
    pub out: Out,
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
        size.decoded = size.decoded.max(INNER * self.k);
    }

    /// Each thread decodes all weights for its rows or columns.
    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let (isa, y, w) = (cx.isa, cx.view(&self.y), cx.weights.linear(self.w));
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        if rows.is_empty() || columns.is_empty() {
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
