//! Gated products of activations, and their gradients.

use brasa_graph::op::Unary;

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::ops::elementwise::unary;
use crate::params::{GatedParams, Ptr};
use crate::run::{Run, Slot, THREADS};

/// `out = function(gate) · up`, of rows.
#[derive(Debug)]
pub(crate) struct GatedOp {
    /// `gated`.
    pub kernel: Kernel,
    pub function: Unary,
    pub gate: Slot,
    pub up: Slot,
    pub out: Slot,
}

/// The gradients of a gated product that changes by `d`: `function'(gate) · (d · up)` and `d · function(gate)`, side by side in `out`.
#[derive(Debug)]
pub(crate) struct GatedGradientOp {
    /// `gated_gradient`.
    pub kernel: Kernel,
    pub function: Unary,
    pub gate: Slot,
    pub up: Slot,
    pub d: Slot,
    /// Both gradients, one behind the other in each row.
    pub out: Slot,
    /// True where the gradient of `gate` comes first.
    pub gate_first: bool,
}

/// Elements of a block.
const BLOCK: u32 = 4 * THREADS;

fn parameters(run: &Run<'_>, function: Unary, gate: &Slot, up: &Slot) -> GatedParams {
    let ((gate, rows), (up, _)) = (run.tensor(gate).outer_rows(), run.tensor(up).outer_rows());
    let (function, ..) = unary(function);
    GatedParams {
        gate: gate.data,
        up: up.data,
        d: Ptr::NONE,
        y: Ptr::NONE,
        up_y: Ptr::NONE,
        gate_stride: gate.stride,
        up_stride: up.stride,
        d_stride: 0,
        y_stride: 0,
        width: gate.width,
        rows,
        function,
    }
}

impl Launch for GatedOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let params = parameters(run, self.function, &self.gate, &self.up);
        let params = GatedParams { y: run.tensor(&self.out).floats(), y_stride: params.width, ..params };
        run.launch(&self.kernel, params.width.div_ceil(BLOCK), params.rows as usize, THREADS, 0, &params)
    }
}

impl Launch for GatedGradientOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let params = parameters(run, self.function, &self.gate, &self.up);
        let (d, _) = run.tensor(&self.d).outer_rows();
        let (out, width) = (run.tensor(&self.out).address, params.width);
        let halves = [Ptr::new(out), Ptr::new(out + u64::from(width) * 4)];
        let [y, up_y] = if self.gate_first { halves } else { [halves[1], halves[0]] };
        let params = GatedParams { d: d.data, d_stride: d.stride, y, up_y, y_stride: 2 * width, ..params };
        run.launch(&self.kernel, width.div_ceil(BLOCK), params.rows as usize, THREADS, 0, &params)
    }
}
