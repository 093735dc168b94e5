//! Operations that copy elements into another arrangement.

use brasa_graph::Dim;

use crate::driver::DriverError;
use crate::ops::Launch;
use crate::ops::flat::{self, EachElement};
use crate::params::{CopyParams, Ptr, Strided};
use crate::run::{AXES, Run, Slot};

/// Copies `x` into a box of `out` that begins where the elements of `behind` end, repeating `x` to fill the box.
#[derive(Debug)]
pub(crate) struct CopyOp {
    pub kernels: EachElement,
    pub x: Slot,
    /// The axis, counted from the innermost, along which the box begins behind another value; none for all of `out`.
    pub behind: Option<(usize, Slot)>,
    /// True if the box has the shape of `x`, false if it is all of `out`.
    pub is_part: bool,
    pub out: Slot,
}

/// `out` = `x` with its axes in another order.
#[derive(Debug)]
pub(crate) struct TransposeOp {
    pub kernels: EachElement,
    /// For each axis of the result, the operand's axis.
    pub axes: Vec<usize>,
    pub x: Slot,
    pub out: Slot,
}

/// `out` = elements of `x` from `start` on along an axis.
#[derive(Debug)]
pub(crate) struct NarrowOp {
    pub kernels: EachElement,
    /// The axis, counted from the innermost.
    pub axis: usize,
    pub start: Dim,
    pub x: Slot,
    pub out: Slot,
}

impl Launch for NarrowOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, out) = (run.tensor(&self.x), run.tensor(&self.out));
        let before = self.start.resolve(&run.step.sizes) as u64 * u64::from(x.strides[AXES - 1 - self.axis]);
        let x = Strided { data: Ptr::new(x.address + before * 4), strides: x.strides };
        self.kernels.copy(run, x, out.strided(), out.dims)
    }
}

impl Launch for CopyOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, out) = (run.tensor(&self.x), run.tensor(&self.out));
        let before = self.behind.as_ref().map_or(0, |(axis, other)| {
            let place = AXES - 1 - axis;
            u64::from(out.strides[place]) * u64::from(run.tensor(other).dims[place])
        });
        let dims = if self.is_part { x.dims } else { out.dims };
        let y = Strided { data: Ptr::new(out.address + before * 4), strides: out.strides };
        self.kernels.copy(run, x.repeated(), y, dims)
    }
}

impl Launch for TransposeOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, out) = (run.tensor(&self.x), run.tensor(&self.out));
        let missing = AXES - self.axes.len();
        let mut strides = [0; AXES];
        for (place, &axis) in self.axes.iter().enumerate() {
            strides[missing + place] = x.strides[missing + axis];
        }
        let x = Strided { data: x.floats(), strides };
        self.kernels.copy(run, x, out.strided(), out.dims)
    }
}

impl EachElement {
    /// Queues a copy of a box of elements.
    fn copy(&self, run: &Run<'_>, x: Strided, y: Strided, dims: [u32; AXES]) -> Result<(), DriverError> {
        if flat::launch(run, &self.flat, &dims, [x, x, y], (0, 0.0, 0.0))? {
            return Ok(());
        }
        let count = dims.iter().map(|&dim| u64::from(dim)).product::<u64>();
        run.each(&self.any, count, &CopyParams { x, y, dims, count: count as u32 })
    }
}
