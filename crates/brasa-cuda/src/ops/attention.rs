//! Rotations, cache writes, attention.

use brasa_graph::device::KvType;
use brasa_graph::op::{Attention, Mask, Rope, RopeLayout};
use brasa_graph::step::PAGE_POSITIONS;

use crate::driver::{DriverError, Kernel};
use crate::ops::gemm::{FEWEST_ROWS, Rounding};
use crate::ops::parts::{Parts, RowsSeeing};
use crate::ops::{AttentionRows, Launch, Named};
use crate::params::{
    self, AttentionParams, CachePages, CacheWriteParams, FlashParams, Norm, PagesParams, Ptr, RopeParams,
    Rows,
};
use crate::run::{BufferId, Run, Slot, THREADS};
use crate::step_state::SegmentSizes;

/// Rotary position embedding.
#[derive(Debug)]
pub(crate) struct RopeOp {
    pub kernel: Kernel,
    pub rope: Rope,
    pub x: Slot,
    pub positions: Slot,
    pub frequencies: Slot,
    pub out: Slot,
}

/// Heads that a thread turns by the same angle.
const HEADS_TOGETHER: u32 = 4;

/// Writes keys and values into a cache or a memory.
#[derive(Debug)]
pub(crate) struct CacheWriteOp {
    /// For the program's type of keys and values.
    pub kernel: Kernel,
    pub k: Slot,
    /// Values; `None` if values are the first elements of keys.
    pub v: Option<Slot>,
    pub group: usize,
    pub place: usize,
}

/// The source of attention's keys and values.
#[derive(Debug)]
pub(crate) enum Source {
    /// Pages of a cache.
    Cache { group: usize, place: usize },
    /// Pages of a memory.
    Memory { group: usize, place: usize },
    /// Rows of the step.
    Step { k: Slot, v: Slot, mask: Mask },
}

/// Attention of each row and head.
#[derive(Debug)]
pub(crate) struct AttentionOp {
    /// For the program's type of keys and values, or for the step.
    pub kernel: Kernel,
    /// For the step, where heads fit.
    pub tiles: Option<StepTiles>,
    /// For the step, if there is one for such heads and sums need not be exact.
    pub on_tensor_cores: Option<AttentionRows>,
    /// For caches and memories whose heads are not too wide.
    pub pages: Option<Pages>,
    /// For long segments and caches of f16 and q8, where there are kernels for such heads and sums need not be exact.
    pub flash: Option<Flash>,
    pub attention: Attention,
    pub source: Source,
    pub kv_heads: usize,
    pub q: Slot,
    /// Sinks, one number for each query head; `None` for attention without sinks.
    pub sinks: Option<Slot>,
    /// Rounding of the result for the product behind.
    pub ahead: Option<Rounding>,
    pub out: Slot,
}

/// A kernel of attention to the rows of the step, or of its gradient, that takes tiles of rows.
#[derive(Debug)]
pub(crate) struct StepTiles {
    pub kernel: Kernel,
    pub shared_bytes: u32,
}

/// Rows of a tile, and the widest heads that fit.
const STEP_TILE_ROWS: usize = 64;
const WIDEST_TILED: usize = 128;

/// The shared memory of `operands` tiles of heads of `width` and of `weights` tiles of scores; `None` for heads that do not fit tiles.
pub(crate) fn step_tiles_bytes(width: usize, operands: usize, weights: usize) -> Option<u32> {
    let floats = STEP_TILE_ROWS * ((width + 4) * operands + 68 * weights);
    (width.is_multiple_of(4) && width <= WIDEST_TILED).then_some(floats as u32 * 4)
}

/// Tiles of the step's segments; `None` if an operand is not aligned for them.
pub(super) fn step_tiles(run: &Run<'_>, params: &AttentionParams) -> Option<u32> {
    let AttentionParams { q, k, v, q_stride, k_stride, v_stride, .. } = *params;
    let aligned = [q.0, k.0, v.0].iter().all(|address| address.is_multiple_of(16))
        && [q_stride, k_stride, v_stride].iter().all(|stride| stride.is_multiple_of(4));
    let tiles = run.step.segments.iter().map(|segment| segment.rows.div_ceil(STEP_TILE_ROWS)).sum::<usize>();
    aligned.then_some(tiles as u32)
}

/// A kernel of attention on tensor cores.
#[derive(Debug)]
pub(crate) struct Flash {
    pub kernel: Kernel,
    pub shared_bytes: u32,
}

/// Widths of heads that flash attention is compiled for.
const FLASH_WIDTHS: [usize; 6] = [32, 64, 96, 128, 192, 256];
/// Rows and threads of a warp group of attention on tensor cores, and positions that it takes at a time.
pub(super) const GROUP_ROWS: u32 = 64;
pub(super) const GROUP_THREADS: u32 = 128;
pub(super) const SPAN: u32 = 64;
/// Places for tiles of positions and of their values, for heads of up to `WIDEST_IN_REGISTERS`.
pub(super) const STAGES: u32 = 3;
const WIDEST_IN_REGISTERS: usize = 128;
/// Alignment of tiles in shared memory, in bytes.
const TILE_ALIGNMENT: u32 = 1024;
/// Fewest rows of a segment that flash attention takes: a block makes 64 whether they are there or not.
pub(crate) const FEWEST_FLASH_ROWS: usize = 16;

/// The kernel of flash attention for heads of `width` in pages of `kv_type`, and the shared memory that it needs; `None` for widths and
/// types that have none.
pub(crate) fn flash_kernel(width: usize, kv_type: KvType) -> Option<Named> {
    let of = match kv_type {
        KvType::F16 => "f16",
        KvType::Q8 => "q8",
        KvType::F32 | KvType::BF16 => return None,
    };
    let queries =
        if width <= WIDEST_IN_REGISTERS { 0 } else { flash_groups(width) * GROUP_ROWS * width as u32 * 2 };
    let shared_bytes = shared_tiles(width) + queries;
    FLASH_WIDTHS.contains(&width).then(|| (format!("flash_{of}_{width}"), shared_bytes))
}

/// Bytes of shared memory for tiles of heads of `width`: each is of positions, behind which are their values.
pub(super) fn shared_tiles(width: usize) -> u32 {
    let stages = if width <= WIDEST_IN_REGISTERS { STAGES } else { 2 };
    stages * 2 * SPAN * width as u32 * 2 + TILE_ALIGNMENT
}

/// Warp groups of a block of flash attention.
fn flash_groups(width: usize) -> u32 {
    if width <= WIDEST_IN_REGISTERS { 1 } else { 2 }
}

/// Kernels that attend page by page, and merge.
#[derive(Debug)]
pub(crate) struct Pages {
    /// For the program's type of keys and values.
    pub kernel: Kernel,
    /// True if the kernel is that for wide heads.
    pub is_wide: bool,
    /// For pages of f16, if there is one for such heads and sums need not be exact.
    pub parts: Option<Parts>,
    pub merge: Kernel,
    /// The buffer of the sums of pages or parts, and how many floats it holds.
    pub partial: (BufferId, usize),
}

/// Most elements of a head that the plain kernels attend to page by page. Kernels for wide heads take keys of up to
/// [`WIDEST_PAGED_KEY`] and values of up to [`WIDEST_PAGED_VALUE`] elements.
pub(crate) const WIDEST_PAGED: usize = 256;
pub(crate) const WIDEST_PAGED_KEY: usize = 576;
pub(crate) const WIDEST_PAGED_VALUE: usize = 512;
/// Most floats of pages' sums.
pub(crate) const MOST_PAGE_SUMS: usize = 8 << 20;
/// Threads of a block that merges.
const MERGE_THREADS: u32 = 128;

/// Bytes of shared memory of a block that attends to all positions of a row: a vector as wide as a key, one as wide as
/// a value, weights of a page's positions, and 32 numbers of warps.
fn shared_bytes(params: &AttentionParams) -> u32 {
    (params.head_dim + params.value_dim + PAGE_POSITIONS as u32 + 32) * 4
}

impl Launch for RopeOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (tensor, out) = (run.tensor(&self.x), run.tensor(&self.out));
        let (x, rows) = tensor.outer_rows();
        let (heads, rotary_dim) = (tensor.dim_from_end(1), self.rope.rotary_dim as u32);
        let params = RopeParams {
            x: x.data,
            positions: run.tensor(&self.positions).integers(),
            frequencies: run.tensor(&self.frequencies).floats(),
            y: out.floats(),
            rows,
            x_stride: x.stride,
            y_stride: out.outer_rows().0.stride,
            heads,
            head_dim: tensor.dim_from_end(0),
            rotary_dim,
            interleaved: u32::from(self.rope.layout == RopeLayout::Interleaved),
            magnitude: self.rope.magnitude,
        };
        let of_row = heads.div_ceil(HEADS_TOGETHER) * (rotary_dim / 2).max(1);
        let threads = of_row.next_multiple_of(32).min(THREADS);
        run.launch(&self.kernel, of_row.div_ceil(threads), rows as usize, threads, 0, &params)
    }
}

impl Launch for CacheWriteOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (k, rows) = run.tensor(&self.k).outer_rows();
        let v = self.v.as_ref().map(|v| run.tensor(v).outer_rows().0);
        let params = CacheWriteParams {
            k: k.data,
            v: v.map_or(Ptr::NONE, |v| v.data),
            step: run.step.rows(),
            cache: run.step.cache(run.pool, self.group, self.place),
            k_stride: k.stride,
            v_stride: v.map_or(0, |v| v.stride),
        };
        // Enough for an element each; q8 takes 32 at once.
        let elements = u64::from(rows) * u64::from(k.width.max(v.map_or(0, |v| v.width)));
        let kinds = 1 + usize::from(v.is_some());
        run.launch(&self.kernel, elements.div_ceil(u64::from(THREADS)) as u32, kinds, THREADS, 0, &params)
    }
}

/// The parameters of attention with the queries `q` and the result `y`, and the number of rows. Pages, keys and values
/// are still to be set.
pub(super) fn parameters(
    run: &Run<'_>,
    attention: &Attention,
    kv_heads: usize,
    q: &Slot,
    y: &Slot,
) -> (AttentionParams, u32) {
    let tensor = run.tensor(q);
    let (q, rows) = tensor.outer_rows();
    let none = CachePages {
        pages: Ptr::NONE,
        starts: Ptr::NONE,
        offset_bytes: 0,
        kv_heads: 0,
        head_dim: 0,
        head_bytes: 0,
        values_bytes: 0,
        value_bytes: 0,
        value_row: 0,
    };
    let params = AttentionParams {
        q: q.data,
        k: Ptr::NONE,
        v: Ptr::NONE,
        sinks: Ptr::NONE,
        y: run.tensor(y).floats(),
        step: run.step.rows(),
        cache: none,
        q_stride: q.stride,
        k_stride: 0,
        v_stride: 0,
        heads: tensor.dim_from_end(1),
        kv_heads: kv_heads as u32,
        head_dim: tensor.dim_from_end(0),
        value_dim: tensor.dim_from_end(0),
        source: params::SOURCE_CACHE,
        scale: attention.scale,
        has_softcap: u32::from(attention.softcap.is_some()),
        softcap: attention.softcap.unwrap_or(0.0),
        has_window: u32::from(attention.window.is_some()),
        window: attention.window.map_or(0, |window| u32::try_from(window).unwrap_or(u32::MAX)),
    };
    (params, rows)
}

/// Lets attention read keys and values of the step's rows.
pub(super) fn read_step(params: &mut AttentionParams, run: &Run<'_>, k: &Slot, v: &Slot, mask: Mask) {
    params.value_dim = run.tensor(v).dim_from_end(0);
    let ((k, _), (v, _)) = (run.tensor(k).outer_rows(), run.tensor(v).outer_rows());
    (params.k, params.v, params.k_stride, params.v_stride) = (k.data, v.data, k.stride, v.stride);
    params.source = match mask {
        Mask::Causal => params::SOURCE_STEP_CAUSAL,
        Mask::Bidirectional => params::SOURCE_STEP_BOTH_WAYS,
        Mask::Alibi => params::SOURCE_STEP_ALIBI,
    };
}

impl Launch for AttentionOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (mut params, rows) = parameters(run, &self.attention, self.kv_heads, &self.q, &self.out);
        params.value_dim = run.tensor(&self.out).dim_from_end(0);
        if let Some(sinks) = &self.sinks {
            params.sinks = run.tensor(sinks).floats();
        }
        let AttentionParams { heads, value_dim, .. } = params;
        match &self.source {
            Source::Cache { group, place } | Source::Memory { group, place } => {
                params.cache = run.step.cache(run.pool, *group, *place);
                if matches!(self.source, Source::Memory { .. }) {
                    params.source = params::SOURCE_MEMORY;
                }
            }
            Source::Step { k, v, mask } => {
                read_step(&mut params, run, k, v, *mask);
                if let Some(halves) = &self.on_tensor_cores
                    && halves.launch(run, &params)?
                {
                    return Ok(());
                }
                if let (Some(tiled), Some(tiles)) = (&self.tiles, step_tiles(run, &params)) {
                    let StepTiles { kernel, shared_bytes } = tiled;
                    return run.launch(kernel, tiles, heads as usize, THREADS, *shared_bytes, &params);
                }
                let shared_bytes = shared_bytes(&params);
                return run.launch(&self.kernel, rows, heads as usize, THREADS, shared_bytes, &params);
            }
        }
        let kernel = &self.kernel;
        let flash = self.flash.as_ref().filter(|_| matches!(self.source, Source::Cache { .. }));
        let is_flash = flash.map_or(Ok(false), |flash| flash.launch_pages(run, &params))?;
        let ahead = self.ahead.as_ref().filter(|_| rows >= FEWEST_ROWS);
        let has_rounded = if let Some(pages) = &self.pages {
            pages.launch(run, &params, is_flash, kernel, ahead)?
        } else {
            run.launch(kernel, rows, heads as usize, THREADS, shared_bytes(&params), &params)?;
            false
        };
        match ahead {
            Some(rounding) if !has_rounded => {
                let width = heads * value_dim;
                let y = Rows { data: params.y, per: 1, stride: width, width };
                rounding.launch(run, y, Norm::NONE, rows, width)
            }
            _ => Ok(()),
        }
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let row_elements: u64 =
            [&self.q, &self.out].iter().map(|slot| u64::from(run.tensor(slot).outer_rows().0.width)).sum();
        let window = self.attention.window.unwrap_or(usize::MAX);
        let (mut bytes, mut flops) = (0, 0);
        for &SegmentSizes { first_index, rows, memory_rows, .. } in &run.step.segments {
            let (read, pairs, group) = match self.source {
                Source::Cache { group, .. } => {
                    let end = first_index + rows;
                    let read = end - (first_index + 1).saturating_sub(window).min(end);
                    let seen = |row: usize| (first_index + row + 1).min(window);
                    (read, (0..rows).map(seen).sum(), Some(group))
                }
                Source::Memory { group, .. } => (memory_rows, memory_rows * rows, Some(group)),
                Source::Step { .. } => (0, rows * rows, None),
            };
            bytes += group.map_or(0, |group| read as u64 * run.pool.position_bytes(group));
            flops += 2 * pairs as u64 * row_elements;
        }
        (bytes, flops)
    }
}

impl Flash {
    /// Queues attention of the long segments to pages; false where there is none.
    fn launch_pages(&self, run: &Run<'_>, params: &AttentionParams) -> Result<bool, DriverError> {
        let long = run.step.segments.iter().filter(|segment| segment.is_long(FEWEST_FLASH_ROWS));
        let Some(most) = long.map(|segment| segment.rows as u32).max() else { return Ok(false) };
        let of_flash = FlashParams {
            q: params.q,
            sinks: params.sinks,
            y: params.y,
            step: params.step,
            cache: params.cache,
            q_stride: params.q_stride,
            heads: params.heads,
            fewest_rows: FEWEST_FLASH_ROWS as u32,
            window: params.window,
            scale: params.scale,
            softcap: params.softcap,
        };
        let groups = flash_groups(params.head_dim as usize);
        let blocks = [params.heads, most.div_ceil(groups * GROUP_ROWS), run.step.segments.len() as u32];
        run.launch_blocks(&self.kernel, blocks, groups * GROUP_THREADS, self.shared_bytes, &of_flash)?;
        Ok(true)
    }
}

impl Pages {
    /// Queues attention of the rows that flash attention leaves. A row that sees more pages than there is room for falls to
    /// `whole`. Returns true where all rows were rounded for the product behind.
    fn launch(
        &self,
        run: &Run<'_>,
        params: &AttentionParams,
        is_flash: bool,
        whole: &Kernel,
        rounding: Option<&Rounding>,
    ) -> Result<bool, DriverError> {
        let AttentionParams { heads, kv_heads, head_dim, value_dim, .. } = *params;
        let left = rows_left(run, params, is_flash);
        if let Some(parts) = &self.parts {
            // Rounding needs no scale where values are halves.
            let rounding = rounding.filter(|_| !is_flash);
            for (first_row, rows) in left {
                parts.launch(run, *params, first_row, &rows, self.partial, rounding)?;
            }
            return Ok(rounding.is_some());
        }
        let heads_added = if self.is_wide { 1 } else { 4 };
        let shared = (4 * (head_dim + PAGE_POSITIONS as u32) + heads_added * 8 * value_dim) * 4;
        let sharing = heads / kv_heads;
        for (first_row, rows) in left {
            let positions = rows.iter().map(|some| some.positions).max().unwrap_or(0);
            let pages = positions.div_ceil(PAGE_POSITIONS).max(1) as u32;
            let of_task = sharing as usize * pages as usize * (value_dim as usize + 2);
            let once = (self.partial.1 / of_task.max(1)) as u32;
            if once == 0 {
                let rows = run.step.sizes.rows as u32;
                run.launch(whole, rows, heads as usize, THREADS, shared_bytes(params), params)?;
                return Ok(false);
            }
            let first = first_row * kv_heads;
            let end = first + rows.iter().map(|some| some.rows).sum::<u32>() * kv_heads;
            for first_task in (first..end).step_by(once as usize) {
                let count = once.min(end - first_task);
                let partial = Ptr::new(run.buffer(self.partial.0));
                let params = PagesParams { attention: *params, partial, first_task, pages };
                run.launch(&self.kernel, count, pages as usize, THREADS, shared, &params)?;
                run.launch(&self.merge, count * sharing, 1, MERGE_THREADS, 0, &params)?;
            }
        }
        Ok(false)
    }
}

/// Neighbouring rows that are left: the first's number, and how many positions those of each segment see.
fn rows_left(run: &Run<'_>, params: &AttentionParams, is_flash: bool) -> Vec<(u32, Vec<RowsSeeing>)> {
    let mut ranges: Vec<(u32, Vec<RowsSeeing>)> = Vec::new();
    let (mut next_row, mut end) = (0, 0);
    for segment in &run.step.segments {
        let (first_row, rows) = (next_row, segment.rows as u32);
        next_row += rows;
        if rows == 0 || (is_flash && segment.is_long(FEWEST_FLASH_ROWS)) {
            continue;
        }
        let positions = match params.source {
            params::SOURCE_MEMORY => segment.memory_rows,
            _ => segment.first_index + segment.rows,
        };
        let seeing = RowsSeeing { rows, positions };
        match ranges.last_mut() {
            Some((_, last)) if end == first_row => last.push(seeing),
            _ => ranges.push((first_row, vec![seeing])),
        }
        end = next_row;
    }
    ranges
}
