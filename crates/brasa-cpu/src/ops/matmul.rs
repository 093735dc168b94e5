//! Matrix products without kernels of their own: of two temporaries, and with a transposed weight.

use brasa_graph::Sizes;

use crate::context::{Context, Mine};
use crate::slot::{Operands, Out, Place, Source};

use super::operation::Operation;
use super::scratch::{Scratch, ScratchSize};

/// `out = op(a) · op(b)`.
#[derive(Clone, Debug)]
pub(crate) struct MatmulOp {
    pub transpose_a: bool,
    pub transpose_b: bool,
    pub a: Source,
    pub b: Source,
    pub out: Out,
}

/// `out[r,k] = Σ_n y[r,n] · w[n,k]`; the weight is decoded row by row.
#[derive(Clone, Debug)]
pub(crate) struct LinearTransposedOp {
    pub y: Source,
    /// Number of the weight.
    pub w: usize,
    /// Outputs of the weight.
    pub n: usize,
    /// Inputs of the weight.
    pub k: usize,
    pub out: Out,
}

impl Operation for MatmulOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("a", self.a).reads("b", self.b).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (a, b) = (cx.view(&self.a), cx.view(&self.b));
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        let inner = if self.transpose_a { a.rows() } else { b_inner(b.rows(), b.row(0).len(), self) };
        for (i, row) in rows.enumerate() {
            let out = out.row(i);
            out.fill(0.0);
            for k in 0..inner {
                let a = if self.transpose_a { a.row(k)[row] } else { a.row(row)[k] };
                if self.transpose_b {
                    for (n, out) in out.iter_mut().enumerate() {
                        *out += a * b.row(n)[k];
                    }
                } else {
                    for (out, b) in out.iter_mut().zip(b.row(k)) {
                        *out += a * b;
                    }
                }
            }
        }
    }
}

fn b_inner(rows: usize, width: usize, op: &MatmulOp) -> usize {
    if op.transpose_b { width } else { rows }
}

impl Operation for LinearTransposedOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("y", self.y).reads("w", Place::Packed(self.w)).writes("out", self.out);
    }

    fn scratch(&self, _: &Sizes, size: &mut ScratchSize) {
        size.decoded = size.decoded.max(self.k);
    }

    /// Each thread decodes all weights for its rows.
    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let y = cx.view(&self.y);
        let w = cx.weights.linear(self.w);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for i in 0..rows.len() {
            out.row(i).fill(0.0);
        }
        let decoded = &mut scratch.decoded[..self.k];
        for n in 0..self.n {
            w.decode_row(n, decoded);
            for (i, row) in rows.clone().enumerate() {
                let vectors = y.row(row).chunks_exact(self.n).zip(out.row(i).chunks_exact_mut(self.k));
                for (y, out) in vectors {
                    for (out, w) in out.iter_mut().zip(&*decoded) {
                        *out += y[n] * w;
                    }
                }
            }
        }
    }
}
