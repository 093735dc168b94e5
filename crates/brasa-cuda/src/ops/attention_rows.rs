//! Attention to the rows of the step, and its gradient, on tensor cores.

use crate::driver::{DriverError, Grid, Kernel};
use crate::ops::attention::{Flash, GROUP_ROWS, GROUP_THREADS, SPAN, STAGES, shared_tiles};
use crate::params::{self, AttentionParams, AttentionRowsParams, Ptr, RowsHalvesParams, RowsSumsParams};
use crate::run::{BufferId, Order, Run, Slot, THREADS};

/// Widths of heads that there are kernels for.
const WIDTHS: [usize; 4] = [32, 64, 96, 128];
/// Blocks that look for the largest magnitude of a gradient, and blocks that round.
const LARGEST_BLOCKS: u32 = 256;
const ROUNDING_BLOCKS: u32 = 512;
/// Alignment of the parts of the scratch memory, in bytes.
const ALIGNMENT: usize = 256;

/// A kernel's name, and the bytes of shared memory that it needs.
pub(crate) type Named = (String, u32);

/// Warp groups of a block that makes gradients of heads of `width`.
fn gradient_groups(width: u32) -> u32 {
    if width <= 64 { 1 } else { 2 }
}

/// Names and shared memory of the kernels for heads of `width`: attention, its gradient by queries, its gradient by keys.
/// `is_capped` chooses the kernels with a soft-cap. `None` for widths without such kernels.
pub(crate) fn rows_kernels(width: usize, is_capped: bool) -> Option<[Named; 3]> {
    let tiles = shared_tiles(width);
    let keys = 2 * gradient_groups(width as u32) * GROUP_ROWS * width as u32 * 2;
    let cap = if is_capped { "_capped" } else { "" };
    let of = |name: &str, bytes| (format!("{name}{cap}_{width}"), bytes);
    WIDTHS.contains(&width).then(|| {
        [
            of("attention_rows", tiles),
            of("attention_gradient_rows_queries", tiles),
            of("attention_gradient_rows_keys", keys + tiles + STAGES * SPAN * 8),
        ]
    })
}

/// Attention of halves.
#[derive(Debug)]
pub(crate) struct AttentionRows {
    /// `rows_halves`.
    pub halves: Kernel,
    pub attention: Flash,
    /// The buffer of [`Room`].
    pub room: BufferId,
    /// The buffer of logarithms of sums of exponentials, a number for each row and head, if the gradient wants them.
    pub kept: Option<BufferId>,
}

/// The gradient of attention of halves.
#[derive(Debug)]
pub(crate) struct AttentionGradientRows {
    /// `rows_largest`, `rows_halves`.
    pub largest: Kernel,
    pub halves: Kernel,
    pub queries: Flash,
    pub keys: Flash,
    /// `rows_sums`.
    pub sums: Kernel,
    /// The buffer of [`Room`].
    pub room: BufferId,
    /// The forward operation's results: the buffer of [`AttentionRows::kept`], and the attended values.
    pub forward: Option<(BufferId, Slot)>,
}

/// Bytes before each part of what the kernels leave each other.
pub(crate) struct Room {
    /// Halves of queries, keys, values, gradients.
    halves: [usize; 4],
    sums: usize,
    largest: usize,
    /// Gradients of keys and of values by each query head, where several share a KV head.
    by_heads: [usize; 2],
    /// Bytes of all parts together.
    pub bytes: usize,
}

impl Room {
    /// Room for `rows` rows; without a gradient, the last parts are empty.
    pub(crate) fn new(rows: usize, heads: usize, kv_heads: usize, width: usize, of_gradient: bool) -> Self {
        let mut bytes = 0_usize;
        let mut part = |of: usize| {
            let start = bytes;
            bytes = start.saturating_add(of).next_multiple_of(ALIGNMENT);
            start
        };
        let [queries, keys] = [heads, kv_heads].map(|heads| rows.saturating_mul(heads * width * 2));
        let gradients = if of_gradient { queries } else { 0 };
        let halves = [part(queries), part(keys), part(keys), part(gradients)];
        let sums = part(if of_gradient { rows.saturating_mul(heads * 8) } else { 0 });
        let largest = part(if of_gradient { (LARGEST_BLOCKS as usize + 1) * 4 } else { 0 });
        let shared = if of_gradient && heads > kv_heads { queries.saturating_mul(2) } else { 0 };
        let by_heads = [part(shared), part(shared)];
        Self { halves, sums, largest, by_heads, bytes }
    }
}

/// True if the kernels take this step's attention: no drafts, no bias by distance, and operands that are aligned.
fn takes(run: &Run<'_>, params: &AttentionParams) -> bool {
    let AttentionParams { q, k, v, q_stride, k_stride, v_stride, source, .. } = *params;
    matches!(source, params::SOURCE_STEP_CAUSAL | params::SOURCE_STEP_BOTH_WAYS)
        && run.step.segments.iter().all(|segment| !segment.is_tree)
        && [q.0, k.0, v.0].iter().all(|address| address.is_multiple_of(16))
        && [q_stride, k_stride, v_stride].iter().all(|stride| stride.is_multiple_of(4))
}

/// Parameters of a launch: the addresses of its operands, and how they are rounded.
fn parameters(
    run: &Run<'_>,
    of: &AttentionParams,
    dy: Ptr<f32>,
    room: BufferId,
) -> (AttentionRowsParams, RowsHalvesParams) {
    let rows = run.step.sizes.rows;
    let [heads, kv_heads, width] = [of.heads, of.kv_heads, of.head_dim].map(|count| count as usize);
    let parts = Room::new(rows, heads, kv_heads, width, dy.0 != 0);
    let base = run.buffer(room);
    let at = |bytes: usize| base + bytes as u64;
    let halves: [Ptr<u8>; 4] = parts.halves.map(|bytes| Ptr::new(at(bytes)));
    let (queries, keys) = ((heads * width) as u32, (kv_heads * width) as u32);
    let (softcap, largest) = (if of.has_softcap != 0 { of.softcap } else { 0.0 }, at(parts.largest));
    let [q, k, v, dy_halves] = halves;
    let attention = AttentionRowsParams {
        q,
        k,
        v,
        dy: dy_halves,
        y: of.y,
        dk: Ptr::NONE,
        dv: Ptr::NONE,
        sums: Ptr::new(at(parts.sums)),
        kept: Ptr::NONE,
        result: Ptr::NONE,
        raise: Ptr::new(largest + u64::from(LARGEST_BLOCKS) * 4),
        step: of.step,
        rows: rows as u32,
        heads: of.heads,
        kv_heads: of.kv_heads,
        is_causal: u32::from(of.source == params::SOURCE_STEP_CAUSAL),
        window: if of.has_window != 0 { of.window } else { 0 },
        scale: of.scale,
        softcap,
    };
    let rounding = RowsHalvesParams {
        from: [of.q, of.k, of.v, dy],
        to: halves,
        largest: Ptr::new(largest),
        strides: [of.q_stride, of.k_stride, of.v_stride, queries],
        widths: [queries, keys, keys, queries],
        rows: rows as u32,
        largest_count: LARGEST_BLOCKS,
        factor: if softcap > 0.0 { of.scale } else { of.scale * std::f32::consts::LOG2_E },
    };
    (attention, rounding)
}

/// Heads, blocks of `groups` warp groups for the rows of the longest segment, and segments.
fn grid(run: &Run<'_>, of: &AttentionParams, groups: u32, shared_bytes: u32) -> Grid {
    let longest = run.step.segments.iter().map(|segment| segment.rows).max().unwrap_or(0) as u32;
    let blocks = [of.heads, longest.div_ceil(groups * GROUP_ROWS), run.step.segments.len() as u32];
    Grid { blocks, threads: groups * GROUP_THREADS, shared_bytes }
}

/// Segments of a grid, and blocks of a head's rows.
const MOST_BLOCKS: usize = 65_535;

fn fits(run: &Run<'_>, params: &AttentionParams) -> bool {
    let longest = run.step.segments.iter().map(|segment| segment.rows).max().unwrap_or(0);
    let blocks = longest.div_ceil(GROUP_ROWS as usize).max(run.step.segments.len());
    longest > 0 && takes(run, params) && blocks <= MOST_BLOCKS
}

impl AttentionRows {
    /// Queues attention; false where other kernels must compute it.
    pub(super) fn launch(&self, run: &Run<'_>, of: &AttentionParams) -> Result<bool, DriverError> {
        if !fits(run, of) {
            return Ok(false);
        }
        let (params, rounding) = parameters(run, of, Ptr::NONE, self.room);
        let kept = self.kept.map_or(Ptr::NONE, |kept| Ptr::new(run.buffer(kept)));
        let params = AttentionRowsParams { kept, ..params };
        run.launch_blocks(&self.halves, [ROUNDING_BLOCKS, 3, 1], THREADS, 0, &rounding)?;
        let Flash { kernel, shared_bytes } = &self.attention;
        run.launch_in_order(kernel, grid(run, of, 1, *shared_bytes), Order::Overlapping, &params)?;
        Ok(true)
    }
}

impl AttentionGradientRows {
    /// Queues the gradients of attention; false where other kernels must compute them.
    pub(super) fn launch(
        &self,
        run: &Run<'_>,
        of: &AttentionParams,
        dy: Ptr<f32>,
        [dk, dv]: [Ptr<f32>; 2],
    ) -> Result<bool, DriverError> {
        if !fits(run, of) {
            return Ok(false);
        }
        let (params, rounding) = parameters(run, of, dy, self.room);
        let (kept, result) = self.forward.as_ref().map_or((Ptr::NONE, Ptr::NONE), |(kept, result)| {
            (Ptr::new(run.buffer(*kept)), run.tensor(result).floats())
        });
        let (sharing, groups) = (of.heads / of.kv_heads, gradient_groups(of.head_dim));
        let by_heads = if sharing == 1 { [dk, dv] } else { self.by_heads(run, of).map(Ptr::new) };
        let params = AttentionRowsParams { dk: by_heads[0], dv: by_heads[1], kept, result, ..params };
        run.launch_blocks(&self.largest, [LARGEST_BLOCKS, 1, 1], THREADS, 0, &rounding)?;
        run.launch_blocks(&self.halves, [ROUNDING_BLOCKS, 4, 1], THREADS, 0, &rounding)?;
        let Flash { kernel, shared_bytes } = &self.queries;
        run.launch_in_order(kernel, grid(run, of, groups, *shared_bytes), Order::Overlapping, &params)?;
        let Flash { kernel, shared_bytes } = &self.keys;
        run.launch_in_order(kernel, grid(run, of, groups, *shared_bytes), Order::Overlapping, &params)?;
        if sharing > 1 {
            let (rows, kv_heads, head_dim) = (params.rows, of.kv_heads, of.head_dim);
            let sums = RowsSumsParams { from: by_heads, to: [dk, dv], rows, kv_heads, sharing, head_dim };
            run.launch_blocks(&self.sums, [ROUNDING_BLOCKS, 2, 1], THREADS, 0, &sums)?;
        }
        Ok(true)
    }

    /// Addresses of the gradients of keys and of values, one for each query head.
    fn by_heads(&self, run: &Run<'_>, of: &AttentionParams) -> [u64; 2] {
        let [heads, kv_heads, width] = [of.heads, of.kv_heads, of.head_dim].map(|count| count as usize);
        let room = Room::new(run.step.sizes.rows, heads, kv_heads, width, true);
        room.by_heads.map(|bytes| run.buffer(self.room) + bytes as u64)
    }
}
