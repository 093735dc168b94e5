//! Norms and reductions.

use crate::driver::{DriverError, Kernel};
use crate::ops::{Launch, row_threads};
use crate::params::{ArgmaxParams, CrossEntropyParams, NormParams, Ptr, ReduceParams, SoftmaxParams};
use crate::run::{AXES, Run, Slot};

/// A norm of each row, of either kind.
#[derive(Debug)]
pub(crate) struct NormOp {
    pub kernel: Kernel,
    pub eps: f32,
    pub x: Slot,
    pub weight: Option<Slot>,
    pub bias: Option<Slot>,
    pub out: Slot,
}

/// Softmax of each row.
#[derive(Debug)]
pub(crate) struct SoftmaxOp {
    pub kernel: Kernel,
    pub x: Slot,
    pub out: Slot,
}

/// The number of each row's largest element.
#[derive(Debug)]
pub(crate) struct ArgmaxOp {
    pub kernel: Kernel,
    pub x: Slot,
    pub out: Slot,
}

/// Each row's negative log-likelihood of its target.
#[derive(Debug)]
pub(crate) struct CrossEntropyOp {
    pub kernel: Kernel,
    pub x: Slot,
    pub targets: Slot,
    pub out: Slot,
}

/// A reduction along one axis of a dense value.
#[derive(Debug)]
pub(crate) struct ReduceOp {
    pub kernel: Kernel,
    /// The kernel's number for the function.
    pub function: u32,
    /// The axis, counted from the innermost.
    pub axis: usize,
    pub x: Slot,
    pub out: Slot,
}

/// Outputs of a block of `reduce`: a warp each.
const OUTPUTS_PER_BLOCK: u32 = 4;

impl Launch for NormOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.x).rows();
        let vector = |slot: &Option<Slot>| slot.as_ref().map_or(Ptr::NONE, |slot| run.tensor(slot).floats());
        let (w, b, y) = (vector(&self.weight), vector(&self.bias), run.tensor(&self.out).floats());
        let params = NormParams { x, w, b, y, eps: self.eps };
        run.launch(&self.kernel, rows, 1, row_threads(x.width), 0, &params)
    }
}

impl Launch for SoftmaxOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.x).rows();
        let params = SoftmaxParams { x, y: run.tensor(&self.out).floats() };
        run.launch(&self.kernel, rows, 1, row_threads(x.width), 0, &params)
    }
}

impl Launch for ArgmaxOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.x).rows();
        let params = ArgmaxParams { x, y: run.tensor(&self.out).integers() };
        run.launch(&self.kernel, rows, 1, row_threads(x.width), 0, &params)
    }
}

impl Launch for CrossEntropyOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.x).rows();
        let targets = run.tensor(&self.targets).integers();
        let params = CrossEntropyParams { x, targets, y: run.tensor(&self.out).floats(), fault: run.fault };
        run.launch(&self.kernel, rows, 1, row_threads(x.width), 0, &params)
    }
}

impl Launch for ReduceOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, out) = (run.tensor(&self.x), run.tensor(&self.out));
        let place = AXES - 1 - self.axis;
        let params = ReduceParams {
            x: x.floats(),
            y: out.floats(),
            outputs: out.count() as u32,
            len: x.dims[place],
            inner: x.dims[place + 1..].iter().product(),
            function: self.function,
        };
        let blocks = params.outputs.div_ceil(OUTPUTS_PER_BLOCK);
        run.launch(&self.kernel, blocks, 1, OUTPUTS_PER_BLOCK * 32, 0, &params)
    }
}
