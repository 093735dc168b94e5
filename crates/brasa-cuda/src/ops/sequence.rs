//! Operations along the rows of a sequence, and sums into rows.

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::params::{IndexAddParams, MeanPoolParams, UnfoldParams};
use crate::run::{Run, Slot, THREADS};

/// The rows that each step of a convolution sees, side by side; the operand is dense.
#[derive(Debug)]
pub(crate) struct UnfoldOp {
    pub kernel: Kernel,
    /// Rows that are seen together.
    pub taps: usize,
    pub stride: usize,
    pub padding: usize,
    /// Rows of `x` for each row of the step.
    pub factor: usize,
    pub x: Slot,
    pub out: Slot,
}

/// The mean of each segment's rows; the operand is dense.
#[derive(Debug)]
pub(crate) struct MeanPoolOp {
    pub kernel: Kernel,
    /// Rows of `x` for each row of the step.
    pub factor: usize,
    pub x: Slot,
    pub out: Slot,
}

/// `out = base`, with rows of `x` added; all operands are dense.
#[derive(Debug)]
pub(crate) struct IndexAddOp {
    pub kernel: Kernel,
    pub base: Slot,
    pub indices: Slot,
    pub x: Slot,
    pub out: Slot,
}

impl Launch for UnfoldOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, out) = (run.tensor(&self.x), run.tensor(&self.out));
        let params = UnfoldParams {
            x: x.floats(),
            y: out.floats(),
            step: run.step.rows(),
            factor: self.factor as u32,
            channels: x.dim_from_end(0),
            taps: self.taps as u32,
            stride: self.stride as u32,
            padding: self.padding as u32,
            out_rows: out.dim_from_end(1),
        };
        run.each(&self.kernel, out.count(), &params)
    }
}

impl Launch for MeanPoolOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let out = run.tensor(&self.out);
        let params = MeanPoolParams {
            x: run.tensor(&self.x).floats(),
            y: out.floats(),
            step: run.step.rows(),
            factor: self.factor as u32,
            width: out.dim_from_end(0),
        };
        run.each(&self.kernel, out.count(), &params)
    }
}

impl Launch for IndexAddOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let indices = run.tensor(&self.indices);
        let (_, base_rows) = run.tensor(&self.base).outer_rows();
        let out = run.tensor(&self.out);
        let params = IndexAddParams {
            base: run.tensor(&self.base).floats(),
            indices: indices.integers(),
            x: run.tensor(&self.x).floats(),
            y: out.floats(),
            fault: run.fault,
            base_rows,
            rows: indices.count() as u32,
            width: (out.count() / u64::from(base_rows.max(1))) as u32,
        };
        run.launch(&self.kernel, base_rows, 1, THREADS, 0, &params)
    }
}
