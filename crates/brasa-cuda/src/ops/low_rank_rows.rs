//! Low-rank products of which every row uses some ranks: those of its own adapters, of all that a bank has.

use std::sync::Arc;

use super::low_rank_spans::Span;
use crate::driver::{DeviceMemory, DriverError, Kernel};
use crate::ops::gemm::{Beside, panel_threads};
use crate::ops::{FEWEST_ROWS, HeadNorm, Launch, LinearOp, Panels};
use crate::params::{
    Addend, ChosenRanksParams, GemmTail, LowRankMatrix, LowRankRowsParams, LowRankSpans, Ptr,
    RankPanelsParams, Rows,
};
use crate::run::{BufferId, Run, Slot};

/// Most rows that read their own ranks of both matrices.
pub(crate) const MOST_FEW_ROWS: u32 = 32;
/// Most rows whose low-rank products are an addend of the product beside them.
pub(crate) use crate::ops::gemm::SMALLEST_ROWS as MOST_ADDED_ROWS;
const ROWS_TOGETHER: u32 = 8;
/// Pieces of 64 inputs of a part of K.
const PART_SUBS: usize = 32;
/// Threads that multiply rows with a tile of A; outputs of a tile of B, and warps of a block that have one each.
const RANK_THREADS: u32 = 512;
const TILE_OUTPUTS: u32 = 16;
const WARPS: std::ops::RangeInclusive<u32> = 4..=8;
/// Most ranks of a bank all of whose A is asked for ahead: with 4,096 inputs 4 MiB, which come in a microsecond.
const SMALL_BANK: u32 = 512;

/// `y = residual + (factors ∘ x·Aᵀ)·Bᵀ`.
#[derive(Debug)]
pub(crate) struct LowRankRowsOp {
    pub few: Arc<FewRows>,
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

/// How few rows are multiplied, and how the ranks of many become the tail of the product beside.
#[derive(Debug)]
pub(crate) struct FewRows {
    /// `ranks_of_rows`, `add_ranks`.
    pub kernels: [Kernel; 2],
    pub a: Matrix,
    pub b: Matrix,
    /// How B lies: one of `LOW_RANK_…`.
    pub form: u32,
    /// Runs of tiles of B and their inputs that are not zero, up to the last such tile.
    pub spans: Vec<Span>,
    /// The buffers of the products with A of each part of K, and of the rows that use some of sixteen ranks.
    pub partial: BufferId,
    pub users: BufferId,
    /// Two zeros, by which the launch of ranks signals to the product beside it that the rows are complete.
    pub x_ready: DeviceMemory,
    pub tail: RanksTail,
}

/// How the ranks of many rows become the tail of the product beside.
#[derive(Debug)]
pub(crate) struct RanksTail {
    /// `rank_panels`.
    pub kernel: Kernel,
    /// The buffers of panels of `subs` pieces, and of what powers of two of rows are to those of their ranks.
    pub panels: BufferId,
    pub ratios: BufferId,
    pub subs: usize,
    /// The power of two by which elements of B are multiplied before they are rounded to f16.
    pub raise: f32,
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

/// Blocks of the launch of so many ranks: one for each part of K of sixteen of them.
fn blocks_of_ranks(ranks: u32, parts: u32) -> u32 {
    ranks.div_ceil(TILE_OUTPUTS) * parts
}

impl Addend {
    /// Blocks of the launch that makes its ranks.
    pub(super) fn blocks_of_ranks(&self) -> u32 {
        blocks_of_ranks(self.b.inputs, self.parts)
    }
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

impl FewRows {
    /// Blocks of the launch of ranks.
    pub(crate) fn blocks_of_ranks(&self) -> u32 {
        blocks_of_ranks(self.a.rows as u32, parts(self.a.inputs) as u32)
    }

    /// Like [`addend`](Self::addend), for the launch of ranks and the product right behind it, which begins before that one has ended.
    pub(super) fn addend_of_next(&self, run: &Run<'_>, rows: u32) -> Addend {
        Addend { x_ready: Ptr::new(self.x_ready.address()), ..self.addend(run, rows) }
    }

    /// The low-rank product of many rows, whose ranks a launch in front puts in panels.
    pub(super) fn beside_many(&self, run: &Run<'_>, rows: u32) -> Beside {
        let RanksTail { panels, ratios, subs, raise, .. } = self.tail;
        let tail = GemmTail {
            panels: Ptr::new(run.buffer(panels)),
            ratios: Ptr::new(run.buffer(ratios)),
            subs: subs as u32,
            raise,
            factor: self.b.factor / raise,
            ..GemmTail::NONE
        };
        Beside::Ranks(self.addend(run, rows), tail)
    }

    /// The low-rank product of `rows` rows as kernels take it; a launch in front makes its ranks.
    pub(super) fn addend(&self, run: &Run<'_>, rows: u32) -> Addend {
        let span = |number: usize| self.spans.get(number).or(self.spans.last());
        let of_spans = |of: fn(&Span) -> u32| std::array::from_fn(|number| span(number).map_or(0, of));
        Addend {
            ranks: Ptr::new(run.buffer(self.partial)),
            users: Ptr::new(run.buffer(self.users)),
            x_ready: Ptr::NONE,
            b: self.b.params(),
            spans: LowRankSpans {
                tiles_end: of_spans(|span| span.tiles_end),
                first: of_spans(|span| span.first),
                end: of_spans(|span| span.end),
            },
            rows,
            parts: parts(self.a.inputs) as u32,
            form: self.form,
            scale: self.b.factor,
        }
    }
}

impl LowRankRowsOp {
    /// The facts of few rows `x`, which are rounded where they are several.
    pub(super) fn few_params(&self, run: &Run<'_>, (x, rows): (Rows, u32)) -> LowRankRowsParams {
        let norm = HeadNorm::params(self.first.in_front.as_ref().map(|in_front| &in_front.norm), run);
        let gemm = self.first.gemm.as_ref().filter(|_| rows >= FEWEST_ROWS);
        let (panels, row_scale, panel_subs) = gemm.map_or((Ptr::NONE, Ptr::NONE, 0), |gemm| {
            let Panels { data, row_scale, subs } = gemm.panels;
            (Ptr::new(run.buffer(data)), Ptr::new(run.buffer(row_scale)), subs as u32)
        });
        let (addend, a) = (self.few.addend(run, rows), self.few.a.params());
        LowRankRowsParams {
            x,
            norm,
            panels,
            row_scale,
            a,
            factors: run.tensor(&self.factors).rows().0,
            residual: run.tensor(&self.residual).rows().0,
            addend,
            y: run.tensor(&self.second.out).floats(),
            panel_subs,
            is_small: u32::from(a.rows <= SMALL_BANK),
        }
    }

    /// Queues the ranks of few rows.
    pub(super) fn make_ranks(&self, run: &Run<'_>, params: &LowRankRowsParams) -> Result<(), DriverError> {
        run.launch(&self.few.kernels[0], params.addend.blocks_of_ranks(), 1, RANK_THREADS, 0, params)
    }

    /// Queues the ranks of many rows, as the tail of a product of rows that are divided by the powers of two in buffer `row_scale`.
    pub(super) fn make_tail(
        &self,
        run: &Run<'_>,
        (x, rows): (Rows, u32),
        row_scale: BufferId,
    ) -> Result<(), DriverError> {
        self.first.multiply(run, x, rows)?;
        let RanksTail { kernel, panels, ratios, subs, .. } = &self.few.tail;
        let (factors, _) = run.tensor(&self.factors).rows();
        let params = RankPanelsParams {
            factors,
            narrow: run.tensor(&self.narrow).floats(),
            row_scale: Ptr::new(run.buffer(row_scale)),
            panels: Ptr::new(run.buffer(*panels)),
            ratios: Ptr::new(run.buffer(*ratios)),
            subs: *subs as u32,
        };
        run.launch(kernel, rows, 1, panel_threads(rows, factors.width), 0, &params)
    }

    /// Queues `y` of ranks.
    fn add_ranks(&self, run: &Run<'_>, params: &LowRankRowsParams) -> Result<(), DriverError> {
        let tiles = params.addend.b.rows.div_ceil(TILE_OUTPUTS);
        let multiprocessors = run.gpu.context.device().multiprocessors as u32;
        let warps = tiles.div_ceil(multiprocessors.max(1)).clamp(*WARPS.start(), *WARPS.end());
        let groups = params.addend.rows.div_ceil(ROWS_TOGETHER) as usize;
        run.launch(&self.few.kernels[1], tiles.div_ceil(warps), groups, warps * 32, 0, params)
    }
}

impl Launch for LowRankRowsOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.first.x).rows();
        if rows > MOST_FEW_ROWS {
            self.first.multiply(run, x, rows)?;
            let (factors, _) = run.tensor(&self.factors).rows();
            let [narrow, y] = [&self.narrow, &self.chosen].map(|slot| run.tensor(slot).floats());
            let params = ChosenRanksParams { factors, narrow, y, rows };
            run.each(&self.choice, u64::from(rows) * u64::from(factors.width), &params)?;
            return self.second.multiply(run, run.tensor(&self.chosen).rows().0, rows);
        }
        // Rows that are rounded for products are read as such, also by products behind.
        let is_rounded = rows >= FEWEST_ROWS;
        if is_rounded {
            self.first.round(run, x, rows)?;
        }
        let params = self.few_params(run, (x, rows));
        self.make_ranks(run, &params)?;
        self.add_ranks(run, &params)?;
        if is_rounded { self.second.round_result(run, rows) } else { Ok(()) }
    }

    /// The work of a step in which all rows use all ranks.
    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (first, second) = (self.first.cost(run), self.second.cost(run));
        (first.0 + second.0, first.1 + second.1)
    }
}
