//! Products that have no kernels of their own: of temporaries, and of a weight's other side.

use crate::context::{Context, Slot, Source};

/// `out = op(a) · op(b)`.
#[derive(Clone, Debug)]
pub(crate) struct MatmulOp {
    pub transpose_a: bool,
    pub transpose_b: bool,
    pub a: Source,
    pub b: Source,
    pub out: Slot,
}

/// `out[r,k] = Σ_n y[r,n] · w[n,k]`, of vectors of N elements; weights decoded row by row.
#[derive(Clone, Debug)]
pub(crate) struct LinearTransposedOp {
    pub y: Source,
    /// Number of the weight.
    pub w: usize,
    pub n: usize,
    pub k: usize,
    pub out: Slot,
}

impl MatmulOp {
    pub(crate) fn run(&self, cx: &Context<'_>) {
        let (a, b) = (cx.view(&self.a), cx.view(&self.b));
        let (rows, mut out) = cx.my_rows::<f32>(&self.out);
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

impl LinearTransposedOp {
    /// Each thread decodes all weights for its rows.
    pub(crate) fn run(&self, cx: &Context<'_>, decoded: &mut [f32]) {
        let y = cx.view(&self.y);
        let w = cx.weights.linear(self.w);
        let (rows, mut out) = cx.my_rows::<f32>(&self.out);
        for i in 0..rows.len() {
            out.row(i).fill(0.0);
        }
        let decoded = &mut decoded[..self.k];
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
