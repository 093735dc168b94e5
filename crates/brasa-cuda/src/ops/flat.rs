//! Functions of each element of values whose inner axes are dense.

use crate::driver::{DriverError, Kernel};
use crate::params::{FlatParams, Ptr, Strided};
use crate::run::{AXES, Run, THREADS};

/// Elements of a thread.
const PIECE: u32 = 4;
/// Most rows of a grid.
const MOST_ROWS: u32 = 65_535;

/// The kernels of a function of each element: for any values, and for those whose inner axes are dense.
#[derive(Clone, Debug)]
pub(crate) struct EachElement {
    pub any: Kernel,
    pub flat: Kernel,
}

/// The kernel's number and parameters for a function.
pub(super) type Function = (u32, f32, f32);

/// Queues `y = function(a, b)`; false where values do not lie as the kernel needs them.
pub(super) fn launch(
    run: &Run<'_>,
    kernel: &Kernel,
    dims: &[u32; AXES],
    [a, b, y]: [Strided; 3],
    (function, c, d): Function,
) -> Result<bool, DriverError> {
    let outer = dims.iter().position(|&dim| dim > 1).unwrap_or(AXES - 1);
    let is_vector = outer == AXES - 1;
    let (mut rows, inner) = if is_vector { (1, outer) } else { (dims[outer], outer + 1) };
    let Some(mut width) = dims[inner..].iter().try_fold(1_u32, |all, &dim| all.checked_mul(dim)) else {
        return Ok(false);
    };
    let operands = [&a, &b, &y];
    let is_dense = |operand: &&Strided| {
        let mut dense = 1;
        (inner..AXES).rev().all(|axis| {
            let fits = dims[axis] == 1 || operand.strides[axis] == dense;
            dense *= dims[axis];
            fits
        })
    };
    let mut strides = operands.map(|operand| if is_vector { width } else { operand.strides[outer] });
    let aligned = operands.iter().all(|operand| operand.data.0.is_multiple_of(16))
        && strides.iter().all(|stride| stride.is_multiple_of(PIECE))
        && width.is_multiple_of(PIECE);
    if !aligned || !operands.iter().all(is_dense) {
        return Ok(false);
    }
    if strides == [width; 3]
        && let Some(all) = rows.checked_mul(width)
    {
        (rows, width, strides) = (1, all, [all; 3]);
    }
    if rows > MOST_ROWS || rows == 0 || width == 0 {
        return Ok(false);
    }
    let [a_stride, b_stride, y_stride] = strides;
    let pieces = width / PIECE;
    let params = FlatParams {
        a: a.data,
        b: b.data,
        y: Ptr::new(y.data.0),
        a_stride,
        b_stride,
        y_stride,
        pieces,
        function,
        c,
        d,
    };
    run.launch_blocks(kernel, [pieces.div_ceil(THREADS), rows, 1], THREADS, 0, &params)?;
    Ok(true)
}
