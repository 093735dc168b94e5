//! Low-rank products of which every row uses some ranks: those of its own adapters, of all that a bank has.

use crate::driver::{DriverError, Kernel};
use crate::ops::{FEWEST_ROWS, HeadNorm, Launch, LinearOp, Panels};
use crate::params::{ChosenRanksParams, LowRankMatrix, LowRankRowsParams, Ptr};
use crate::run::{Run, Slot};

/// Most rows that read their own ranks of both matrices.
pub(crate) const MOST_FEW_ROWS: u32 = 32;
/// Most ranks of a bank whose products lie in shared memory for so many rows.
pub(crate) const WIDEST_BANK: usize = 1024;
const ROWS_TOGETHER: u32 = 8;
/// Pieces of 64 inputs of a part of K.
const PART_SUBS: usize = 64;
/// Threads that multiply a row with a tile of A; outputs of a tile of B, and warps of a block that have one each.
const RANK_THREADS: u32 = 512;
const TILE_OUTPUTS: u32 = 16;
const WARPS: std::ops::RangeInclusive<u32> = 4..=8;

/// `y = residual + (factors ∘ x·Aᵀ)·Bᵀ`.
#[derive(Debug)]
pub(crate) struct LowRankRowsOp {
    pub few: FewRows,
    /// The products of more rows, and the choice between them.
    pub first: LinearOp,
    /// `chosen_ranks`.
    pub choice: Kernel,
    pub second: LinearOp,
    pub factors: Slot,
    pub residual: Slot,
    pub narrow: Slot,
    pub chosen: Slot,
}

/// How few rows are multiplied.
#[derive(Debug)]
pub(crate) struct FewRows {
    /// `ranks_of_rows`, `add_ranks`.
    pub kernels: [Kernel; 2],
    pub a: Matrix,
    pub b: Matrix,
    /// The buffer of the products with A of each part of K.
    pub partial: usize,
}

/// A matrix in tiles of 16-bit floats, or dense rows of f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub data: u64,
    pub rows: usize,
    pub inputs: usize,
    pub factor: f32,
}

/// Parts of K, each multiplied by itself.
pub(crate) fn parts(inputs: usize) -> usize {
    inputs.div_ceil(64).div_ceil(PART_SUBS)
}

impl Matrix {
    fn params(&self) -> LowRankMatrix {
        LowRankMatrix {
            data: Ptr::new(self.data),
            rows: self.rows as u32,
            inputs: self.inputs as u32,
            subs: self.inputs.div_ceil(64) as u32,
            factor: self.factor,
        }
    }
}

impl Launch for LowRankRowsOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.first.x).rows();
        let ((factors, _), out) = (run.tensor(&self.factors).rows(), run.tensor(&self.second.out).floats());
        if rows > MOST_FEW_ROWS {
            self.first.multiply(run, x, rows)?;
            let [narrow, y] = [&self.narrow, &self.chosen].map(|slot| run.tensor(slot).floats());
            let params = ChosenRanksParams { factors, narrow, y, rows };
            run.each(&self.choice, u64::from(rows) * u64::from(factors.width), &params)?;
            return self.second.multiply(run, run.tensor(&self.chosen).rows().0, rows);
        }
        // Rows that are rounded for products are read as such, also by products behind.
        let is_rounded = rows >= FEWEST_ROWS;
        let norm = HeadNorm::params(self.first.in_front.as_ref().map(|in_front| &in_front.norm), run);
        let gemm = self.first.gemm.as_ref().filter(|_| is_rounded);
        if let Some(rounding) = gemm.and_then(|gemm| gemm.rounding.as_ref()) {
            rounding.launch(run, x, norm, rows, self.first.w.row_len)?;
        }
        let (panels, row_scale, panel_subs) = gemm.map_or((Ptr::NONE, Ptr::NONE, 0), |gemm| {
            let Panels { data, row_scale, subs } = gemm.panels;
            (Ptr::new(run.buffer(data)), Ptr::new(run.buffer(row_scale)), subs as u32)
        });
        let FewRows { kernels: [ranks, add], a, b, partial } = &self.few;
        let params = LowRankRowsParams {
            x,
            norm,
            panels,
            row_scale,
            a: a.params(),
            b: b.params(),
            factors,
            residual: run.tensor(&self.residual).rows().0,
            partial: Ptr::new(run.buffer(*partial)),
            y: out,
            rows,
            panel_subs,
        };
        let blocks = params.a.rows.div_ceil(TILE_OUTPUTS) * parts(a.inputs) as u32;
        run.launch(ranks, blocks, rows as usize, RANK_THREADS, 0, &params)?;
        let tiles = params.b.rows.div_ceil(TILE_OUTPUTS);
        let multiprocessors = run.gpu.context.device().multiprocessors as u32;
        let warps = tiles.div_ceil(multiprocessors.max(1)).clamp(*WARPS.start(), *WARPS.end());
        // Products of all ranks for each row, and a byte for each sixteen.
        let width = params.b.subs * 64;
        let shared_bytes = ROWS_TOGETHER * (width * 4 + width / 16);
        let groups = rows.div_ceil(ROWS_TOGETHER) as usize;
        run.launch(add, tiles.div_ceil(warps), groups, warps * 32, shared_bytes, &params)?;
        match &self.second.ahead {
            Some(ahead) if is_rounded => ahead.round(run, run.tensor(&self.second.out).rows().0, rows),
            _ => Ok(()),
        }
    }

    /// The work of a step in which all rows use all ranks.
    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (first, second) = (self.first.cost(run), self.second.cost(run));
        (first.0 + second.0, first.1 + second.1)
    }
}
