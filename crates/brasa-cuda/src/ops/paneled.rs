//! Values in panels: their rounding, and the low-rank products and gradients that read them.

use crate::driver::{DriverError, Kernel};
use crate::ops::gemm::{PANEL_ROWS, Panels, Rounding};
use crate::ops::{HeadNorm, Launch};
use crate::params::{LOW_RANK_SHARED, LowRankParams, MatmulParams, MatmulTilesParams, Ptr};
use crate::run::{BufferId, Run, Slot, THREADS};

/// Factor of a low-rank product that is the tail of its rows, beside their power of two. With this factor the tail may be up to
/// 32,768 times the largest element of a row, which a product with elements up to 1 cannot exceed, and it keeps the eleven bits of
/// a half down to 2^-14 of that element.
pub(crate) const TAIL_DOWN: f32 = 1.0 / 16384.0;
/// Columns of a thin matrix that a block multiplies; rows of a block's product, and columns of a block's gradient.
const COLUMNS: u32 = 16;
const BLOCK: u32 = 128;
/// Threads of a block.
const BLOCK_THREADS: u32 = 128;
/// Blocks that sums are cut for, for each multiprocessor: as many as one holds.
const BLOCKS: u32 = 2;
/// Most parts of a sum, and fewest pieces of 64 of one.
const MOST_PARTS: u32 = 32;
const FEWEST_PIECES: u32 = 4;
/// Inputs of a piece.
const PIECE: u32 = 64;

/// Rows, normed where there is a norm, to panels.
#[derive(Debug)]
pub(crate) struct RoundOp {
    pub rounding: Rounding,
    pub x: Slot,
    pub norm: Option<HeadNorm>,
}

/// `out = factor · x · w` of rows in panels and a matrix of few columns, which becomes the tail of the rows too.
#[derive(Debug)]
pub(crate) struct ThinProductOp {
    /// `low_rank_product`, `low_rank_sums`.
    pub kernels: [Kernel; 2],
    pub panels: Panels,
    pub x: Slot,
    /// Number of the weight, a matrix of f32 with this many rows and columns.
    pub number: usize,
    pub w: Ptr<f32>,
    pub size: (u32, u32),
    pub is_transposed: bool,
    pub factor: f32,
    /// The buffer of sums of parts.
    pub partial: BufferId,
    pub out: Slot,
}

/// `out[n, j] = Σ_r x[r, n] · thin[r, j]`, or the transpose of that, of rows in panels and of few dense columns.
#[derive(Debug)]
pub(crate) struct ThinGradientOp {
    /// `low_rank_gradient`, `matmul_sums`.
    pub kernels: [Kernel; 2],
    pub panels: Panels,
    pub x: Slot,
    pub thin: Slot,
    /// True if the columns of `x` are the rows of the result.
    pub rows_of_x: bool,
    /// The buffer of sums of parts.
    pub partial: BufferId,
    /// Most parts of a sum.
    pub parts: u32,
    pub out: Slot,
}

/// Floats of the parts of a product of up to this number of rows.
pub(crate) fn product_floats(rows: usize, columns: usize) -> usize {
    rows.saturating_mul(columns).saturating_mul(MOST_PARTS as usize)
}

/// Most parts of the gradient of a matrix of that width.
pub(crate) fn gradient_parts(width: usize, columns: usize, multiprocessors: usize) -> u32 {
    wanted_parts([width.div_ceil(BLOCK as usize) as u32, (columns as u32).div_ceil(COLUMNS)], multiprocessors)
}

/// Parts that fill the device, where each has so many blocks.
fn wanted_parts([x, y]: [u32; 2], multiprocessors: usize) -> u32 {
    (BLOCKS * multiprocessors as u32 / x.saturating_mul(y).max(1)).clamp(1, MOST_PARTS)
}

/// Pieces of each part, and how many parts there are, of up to `wanted`.
fn cut(pieces: u32, wanted: u32) -> (u32, u32) {
    let part = pieces.div_ceil(wanted).max(FEWEST_PIECES);
    (part, pieces.div_ceil(part).max(1))
}

impl Launch for RoundOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.x).rows();
        self.rounding.launch(run, x, HeadNorm::params(self.norm.as_ref(), run), rows, x.width)
    }
}

impl Launch for ThinProductOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (out, (_, rows)) = (run.tensor(&self.out), run.tensor(&self.x).rows());
        let (of_rows, of_columns) = self.size;
        let (width, columns, w_k, w_column) = if self.is_transposed {
            (of_rows, of_columns, of_columns, 1)
        } else {
            (of_columns, of_rows, 1, of_columns)
        };
        let blocks = [columns.div_ceil(COLUMNS), rows.div_ceil(BLOCK)];
        let multiprocessors = run.gpu.context.device().multiprocessors;
        let (part, parts) = cut(width.div_ceil(PIECE), wanted_parts(blocks, multiprocessors));
        let Panels { data, row_scale, subs } = self.panels;
        let params = LowRankParams {
            panels: Ptr::new(run.buffer(data)),
            row_scale: Ptr::new(run.buffer(row_scale)),
            w: self.w,
            y: out.floats(),
            partial: Ptr::new(run.buffer(self.partial)),
            rows,
            width,
            subs: subs as u32,
            columns,
            w_k,
            w_column,
            y_row: columns,
            y_column: 1,
            part,
            parts,
            factor: self.factor,
            tail_factor: TAIL_DOWN,
        };
        let [product, sums] = &self.kernels;
        run.launch_blocks(product, [blocks[0], blocks[1], parts], BLOCK_THREADS, LOW_RANK_SHARED, &params)?;
        run.each(sums, out.count(), &params)
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (_, rows) = run.tensor(&self.x).rows();
        (run.weights.stored_bytes(self.number), 2 * run.weights.elements(self.number) * u64::from(rows))
    }
}

impl Launch for ThinGradientOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.x).rows();
        let (thin, out) = (run.tensor(&self.thin), run.tensor(&self.out));
        let (width, columns) = (x.width, thin.dim_from_end(0));
        let blocks = [width.div_ceil(BLOCK), columns.div_ceil(COLUMNS)];
        let (part, parts) = cut(rows.div_ceil(PANEL_ROWS as u32), self.parts);
        let Panels { data, row_scale, subs } = self.panels;
        let partial = Ptr::new(run.buffer(self.partial));
        let (y_row, y_column) = if self.rows_of_x { (columns, 1) } else { (1, width) };
        let params = LowRankParams {
            panels: Ptr::new(run.buffer(data)),
            row_scale: Ptr::new(run.buffer(row_scale)),
            w: thin.floats(),
            y: out.floats(),
            partial,
            rows,
            width,
            subs: subs as u32,
            columns,
            w_k: columns,
            w_column: 1,
            y_row,
            y_column,
            part,
            parts,
            factor: 1.0,
            tail_factor: 0.0,
        };
        let [gradient, sums] = &self.kernels;
        run.launch_blocks(gradient, [blocks[0], blocks[1], parts], BLOCK_THREADS, LOW_RANK_SHARED, &params)?;
        if parts == 1 {
            return Ok(());
        }
        let product = MatmulParams {
            a: Ptr::NONE,
            b: Ptr::NONE,
            c: out.floats(),
            base: Ptr::NONE,
            m: width,
            n: columns,
            k: rows,
            a_row: 0,
            a_column: 0,
            b_row: 0,
            b_column: 0,
            base_row: 0,
            factor: 1.0,
        };
        run.launch(
            sums,
            out.count().div_ceil(u64::from(THREADS)) as u32,
            1,
            THREADS,
            0,
            &MatmulTilesParams { product, partial, part, parts },
        )
    }
}
