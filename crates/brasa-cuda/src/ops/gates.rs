//! Gated products of activations, and their gradients.

use brasa_graph::op::Unary;

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::ops::elementwise::unary;
use crate::ops::gemm::Panels;
use crate::params::{GATED_TURNS, GatedPanelsParams, GatedParams, Ptr};
use crate::run::{Run, Slot, THREADS};

/// `function(gate) · up`, of rows.
#[derive(Debug)]
pub(crate) struct GatedOp {
    /// `gated`, or `gated_panels`.
    pub kernel: Kernel,
    pub function: Unary,
    pub gate: Slot,
    pub up: Slot,
    pub to: GatedPlace,
}

/// The gradients of a gated product that changes by `d`: `function'(gate) · (d · up)` and `d · function(gate)`, one behind the other in each row.
#[derive(Debug)]
pub(crate) struct GatedGradientOp {
    /// `gated_gradient`, or `gated_gradient_panels`.
    pub kernel: Kernel,
    pub function: Unary,
    pub gate: Slot,
    pub up: Slot,
    pub d: Slot,
    pub to: GatedPlace,
    /// True if the gradient of `gate` comes first.
    pub gate_first: bool,
}

/// Destination of a gate's results.
#[derive(Debug)]
pub(crate) enum GatedPlace {
    Floats(Slot),
    /// Halves, for products behind.
    Panels(Panels),
}

/// Elements of a block.
const BLOCK: u32 = 4 * THREADS;
/// Elements that a thread rounds together, and most threads that round a row.
const ROUNDED: u32 = 8;
const ROUNDING_THREADS: u32 = 448;
/// The widest gates whose rows a block rounds.
pub(crate) const WIDEST_GATED: usize = (ROUNDING_THREADS * GATED_TURNS * ROUNDED) as usize;

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

/// Queues rows to panels: the gradient of gates, or the product, from column `first` on, that of what they gate from column `second` on.
fn round(
    run: &Run<'_>,
    kernel: &Kernel,
    of: GatedParams,
    &Panels { data, row_scale, subs }: &Panels,
    [first, second]: [u32; 2],
) -> Result<(), DriverError> {
    let (panels, row_scale) = (Ptr::new(run.buffer(data)), Ptr::new(run.buffer(row_scale)));
    let params = GatedPanelsParams { of, panels, row_scale, subs: subs as u32, first, second };
    let pieces = of.width.div_ceil(ROUNDED);
    let turns = pieces.div_ceil(ROUNDING_THREADS).max(1);
    run.launch(kernel, of.rows, 1, pieces.div_ceil(turns).next_multiple_of(32).max(32), 0, &params)
}

impl Launch for GatedOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let params = parameters(run, self.function, &self.gate, &self.up);
        let out = match &self.to {
            GatedPlace::Floats(out) => run.tensor(out).floats(),
            GatedPlace::Panels(panels) => return round(run, &self.kernel, params, panels, [0, 0]),
        };
        let params = GatedParams { y: out, y_stride: params.width, ..params };
        run.launch(&self.kernel, params.width.div_ceil(BLOCK), params.rows as usize, THREADS, 0, &params)
    }
}

impl Launch for GatedGradientOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let params = parameters(run, self.function, &self.gate, &self.up);
        let ((d, _), width) = (run.tensor(&self.d).outer_rows(), params.width);
        let params = GatedParams { d: d.data, d_stride: d.stride, ..params };
        let out = match &self.to {
            GatedPlace::Floats(out) => run.tensor(out).address,
            GatedPlace::Panels(panels) => {
                let places = if self.gate_first { [0, width] } else { [width, 0] };
                return round(run, &self.kernel, params, panels, places);
            }
        };
        let halves = [Ptr::new(out), Ptr::new(out + u64::from(width) * 4)];
        let [y, up_y] = if self.gate_first { halves } else { [halves[1], halves[0]] };
        let params = GatedParams { y, up_y, y_stride: 2 * width, ..params };
        run.launch(&self.kernel, width.div_ceil(BLOCK), params.rows as usize, THREADS, 0, &params)
    }
}
