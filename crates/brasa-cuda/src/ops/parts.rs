//! Attention of few rows on tensor cores: to part of the positions at a time.

use crate::driver::{DriverError, Kernel};
use crate::ops::gemm::{Panels, Rounding};
use crate::params::{AttentionParams, PartsParams, Ptr};
use crate::run::{BufferId, Run};
use crate::step_state::MOST_ARRIVALS;

/// Threads of a block, and its warps.
const THREADS: u32 = 128;
const WARPS: usize = 4;
/// Places of a warp for keys or values of a step.
const PLACES: usize = 3;
/// Heads of a block, and most that share keys.
const HEADS: usize = 8;
const MOST_SHARING: usize = 16;
/// Widths of heads that there are kernels for.
const WIDTHS: [usize; 6] = [32, 64, 96, 128, 192, 256];

/// The kernel for heads of some width.
#[derive(Debug)]
pub(crate) struct Parts {
    pub kernel: Kernel,
    pub shared_bytes: u32,
}

/// Rows that see as many positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowsSeeing {
    pub rows: u32,
    pub positions: usize,
}

/// The kernel's name for `sharing` heads of `width` that share keys, and the shared memory that it needs; `None` if there is none.
pub(crate) fn parts_kernel(width: usize, sharing: usize) -> Option<(String, u32)> {
    let has_kernel = WIDTHS.contains(&width) && sharing <= MOST_SHARING;
    let shared_bytes = WARPS * PLACES * step_positions(width) * width * 2;
    has_kernel.then(|| (format!("attend_parts_{width}"), shared_bytes as u32))
}

/// Positions that a warp takes at a time.
fn step_positions(width: usize) -> usize {
    if width <= 64 { 32 } else { 16 }
}

/// Blocks that a multiprocessor holds.
fn resident(width: usize) -> usize {
    match width {
        0..=128 => 4,
        129..=192 => 3,
        _ => 2,
    }
}

/// The shortest part for which all blocks run at once, where rows allow it, or else for which there are hardly more blocks than tasks.
fn span(rows: &[RowsSeeing], of_row: usize, slots: usize, step: usize) -> usize {
    let tasks = rows.iter().map(|some| some.rows as usize).sum::<usize>() * of_row;
    let most = slots.max(tasks + slots / 4);
    let fits = |steps: usize| {
        let blocks =
            rows.iter().map(|some| some.rows as usize * some.positions.div_ceil(steps * step).max(1));
        blocks.sum::<usize>() * of_row <= most
    };
    let longest = rows.iter().map(|some| some.positions).max().unwrap_or(1);
    let (mut low, mut high) = (WARPS, longest.div_ceil(step).max(WARPS));
    while low < high {
        let middle = usize::midpoint(low, high);
        if fits(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low * step
}

impl Parts {
    /// Queues attention of neighbouring rows from `first_row` on, whose result is rounded for the product behind where `rounding` is given.
    /// `partial` is the buffer of the parts' sums, and how many floats it holds.
    pub(super) fn launch(
        &self,
        run: &Run<'_>,
        attention: AttentionParams,
        first_row: u32,
        rows: &[RowsSeeing],
        partial: (BufferId, usize),
        rounding: Option<&Rounding>,
    ) -> Result<(), DriverError> {
        let (heads, kv_heads, width) =
            (attention.heads as usize, attention.kv_heads as usize, attention.head_dim as usize);
        let of_row = kv_heads * (heads / kv_heads).div_ceil(HEADS);
        let slots = run.gpu.context.device().multiprocessors * resident(width);
        let of_part = HEADS * (width + 4);
        let longest = rows.iter().map(|some| some.positions).max().unwrap_or(0).max(1);
        // At least one task has room for the sums of its parts.
        let fewest = longest.div_ceil((partial.1 / of_part).max(1)).next_multiple_of(step_positions(width));
        let span = span(rows, of_row, slots, step_positions(width)).max(fewest);
        let parts = longest.div_ceil(span);
        let tasks = rows.iter().map(|some| some.rows).sum::<u32>() * of_row as u32;
        let most = if parts == 1 { tasks } else { (partial.1 / (parts * of_part)).min(MOST_ARRIVALS) as u32 };
        let (panels, row_scale, subs) = match rounding {
            Some(Rounding { panels: Panels { data, row_scale, subs }, .. }) => {
                (Ptr::new(run.buffer(*data)), Ptr::new(run.buffer(*row_scale)), *subs as u32)
            }
            None => (Ptr::NONE, Ptr::NONE, 0),
        };
        let first = first_row * of_row as u32;
        for first_task in (first..first + tasks).step_by(most.max(1) as usize) {
            let params = PartsParams {
                attention,
                partial: Ptr::new(run.buffer(partial.0)),
                arrivals: run.step.arrivals(),
                panels,
                row_scale,
                subs,
                first_task,
                span: span as u32,
            };
            let count = most.min(first + tasks - first_task);
            run.launch(&self.kernel, count, parts, THREADS, self.shared_bytes, &params)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fill_the_device_once() {
        let of = |rows, positions| RowsSeeing { rows, positions };
        // An 8B model's eight KV heads on 132 multiprocessors.
        let span = |rows: &[RowsSeeing]| span(rows, 8, 528, 16);
        assert_eq!(span(&[of(64, 545)]), 560);
        assert_eq!(span(&[of(16, 545)]), 144);
        assert_eq!(span(&[of(1, 64)]), 64);
        // A long text beside short ones is cut alone.
        let mixed = span(&[of(63, 512), of(1, 16_384)]);
        assert!((512..1_100).contains(&mixed), "{mixed}");
    }
}
