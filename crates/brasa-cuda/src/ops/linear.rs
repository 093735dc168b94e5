//! Matrix products.

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::params::{LinearParams, LinearTransposedParams, MatmulParams, StoredWeight};
use crate::run::{Run, Slot};

/// Outputs of a block: a warp each.
const OUTPUTS_PER_BLOCK: u32 = 4;
/// Rows that the wide kernels take together.
const WIDE_ROWS: usize = 8;

/// `out[r,n] = Σ_k x[r,k] · w[n,k]`.
#[derive(Debug)]
pub(crate) struct LinearOp {
    /// For each format that some rows of the weight have: kernels for one row and for many.
    pub kernels: Vec<(Kernel, Kernel)>,
    pub x: Slot,
    pub w: StoredWeight,
    /// The weight's number.
    pub number: usize,
    pub out: Slot,
}

/// `out[r,k] = Σ_n y[r,n] · w[n,k]`.
#[derive(Debug)]
pub(crate) struct LinearTransposedOp {
    pub kernel: Kernel,
    pub y: Slot,
    pub w: StoredWeight,
    /// The weight's number.
    pub number: usize,
    pub out: Slot,
}

/// `out = op(a) · op(b)` of dense temporaries.
#[derive(Debug)]
pub(crate) struct MatmulOp {
    pub kernel: Kernel,
    pub a: Slot,
    pub b: Slot,
    pub transpose_a: bool,
    pub transpose_b: bool,
    pub out: Slot,
}

impl Launch for LinearOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.x).rows();
        let outputs = self.w.rows;
        let params = LinearParams { x, w: self.w, y: run.tensor(&self.out).floats(), rows, outputs };
        let blocks = outputs.div_ceil(OUTPUTS_PER_BLOCK);
        for (narrow, wide) in &self.kernels {
            let (kernel, groups) =
                if rows == 1 { (narrow, 1) } else { (wide, (rows as usize).div_ceil(WIDE_ROWS)) };
            run.launch(kernel, blocks, groups, OUTPUTS_PER_BLOCK * 32, 0, &params)?;
        }
        Ok(())
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (_, rows) = run.tensor(&self.x).rows();
        (run.weights.stored_bytes(self.number), 2 * run.weights.elements(self.number) * u64::from(rows))
    }
}

impl Launch for LinearTransposedOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (y, rows) = run.tensor(&self.y).rows();
        let out = run.tensor(&self.out);
        let params = LinearTransposedParams { y, w: self.w, x: out.floats(), rows };
        run.each(&self.kernel, out.count(), &params)
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (_, rows) = run.tensor(&self.y).rows();
        (run.weights.stored_bytes(self.number), 2 * run.weights.elements(self.number) * u64::from(rows))
    }
}

impl Launch for MatmulOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (a, b, c) = (run.tensor(&self.a), run.tensor(&self.b), run.tensor(&self.out));
        // Dense matrices: rows are as far apart as a row is wide.
        let (a_width, b_width) = (a.dim_from_end(0), b.dim_from_end(0));
        let (a_row, a_column) = if self.transpose_a { (1, a_width) } else { (a_width, 1) };
        let (b_row, b_column) = if self.transpose_b { (1, b_width) } else { (b_width, 1) };
        let params = MatmulParams {
            a: a.floats(),
            b: b.floats(),
            c: c.floats(),
            m: (c.count() / u64::from(c.dim_from_end(0)).max(1)) as u32,
            n: c.dim_from_end(0),
            k: if self.transpose_a { a.dim_from_end(1) } else { a_width },
            a_row,
            a_column,
            b_row,
            b_column,
        };
        run.each(&self.kernel, c.count(), &params)
    }
}
