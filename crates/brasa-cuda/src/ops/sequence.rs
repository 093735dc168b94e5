//! Operations along the rows of a sequence, and sums into rows.

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::params::{Conv1dParams, IndexAddParams, MeanPoolParams};
use crate::run::{Run, Slot};

/// A convolution along the rows of each segment; all operands are dense.
#[derive(Debug)]
pub(crate) struct Conv1dOp {
    pub kernel: Kernel,
    pub stride: usize,
    pub padding: usize,
    /// Rows of `x` for each row of the step.
    pub factor: usize,
    pub x: Slot,
    pub w: Slot,
    pub b: Slot,
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

impl Launch for Conv1dOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (w, out) = (run.tensor(&self.w), run.tensor(&self.out));
        let params = Conv1dParams {
            x: run.tensor(&self.x).floats(),
            w: w.floats(),
            b: run.tensor(&self.b).floats(),
            y: out.floats(),
            step: run.step.rows(),
            factor: self.factor as u32,
            channels: w.dim_from_end(1),
            outputs: w.dim_from_end(2),
            taps: w.dim_from_end(0),
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
        run.each(&self.kernel, out.count(), &params)
    }
}
