//! Low-rank products: as tails of other products, and on their own.

use std::ops::Range;

use crate::driver::{DriverError, Kernel};
use crate::ops::{Floats, Launch, TilesLaunch};
use crate::params::{Ptr, Rows, TailTilesParams};
use crate::run::{BufferId, Run, Slot, THREADS};
use crate::weights::Tiles;

/// Most inputs of a tail: a piece of a row's panels.
pub(crate) const MOST_TAIL: usize = 64;
/// Tiles of a block: a warp each.
const TILES_PER_BLOCK: usize = 8;

/// A low-rank weight and what it multiplies.
#[derive(Debug)]
pub(crate) struct LowRank {
    /// The weight's number.
    pub number: usize,
    pub floats: Floats,
    pub x: Slot,
}

/// A low-rank product, or one with the other side of a low-rank weight, times a number.
#[derive(Debug)]
pub(crate) struct LowRankOp {
    pub of: LowRank,
    pub is_transposed: bool,
    pub out: Slot,
}

/// A low-rank product that is added to a weight's.
#[derive(Debug)]
pub(crate) struct Tail {
    pub beside: LowRank,
    pub tiles: TailTiles,
    /// For each stretch of the weight, the buffers of the tail's tiles and of their factors.
    pub of_stretches: Vec<[BufferId; 2]>,
}

/// How the tiles of a tail are made.
#[derive(Debug)]
pub(crate) struct TailTiles {
    /// `tail_tiles`.
    pub kernel: Kernel,
    /// Factor of the tail's inputs in the panels, beside the row's power of two.
    pub down: f32,
}

impl Launch for LowRankOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let LowRank { floats, x, .. } = &self.of;
        let ((x, rows), out) = (run.tensor(x).rows(), run.tensor(&self.out).floats());
        if self.is_transposed {
            return floats.multiply_transposed(run, x, rows, Rows::NONE, out);
        }
        floats.multiply(run, x, rows, Rows::NONE, out)
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (number, (_, rows)) = (self.of.number, run.tensor(&self.of.x).rows());
        (run.weights.stored_bytes(number), 2 * run.weights.elements(number) * u64::from(rows))
    }
}

impl Tail {
    /// Queues the tiles of all stretches. They are made anew in each step, since the weight is learned.
    pub(super) fn prepare(&self, run: &Run<'_>, stretches: &[TilesLaunch]) -> Result<(), DriverError> {
        let Floats { data: matrix, size: (_, columns), .. } = self.beside.floats;
        for (TilesLaunch { stretch, tiles, .. }, &buffers) in stretches.iter().zip(&self.of_stretches) {
            let matrix = TailMatrix { data: matrix, row: columns, column: 1, columns };
            self.tiles.make(run, &matrix, tiles, &stretch.rows, buffers)?;
        }
        Ok(())
    }
}

/// A low-rank weight, or its other side: element `n, j` is `n · row + j · column` elements behind the first.
pub(super) struct TailMatrix {
    pub data: Ptr<f32>,
    pub row: u32,
    pub column: u32,
    pub columns: u32,
}

impl TailTiles {
    /// Queues the tiles of a tail beside `tiles`, of outputs `rows`, to the buffers of tiles and of factors.
    pub(super) fn make(
        &self,
        run: &Run<'_>,
        matrix: &TailMatrix,
        tiles: &Tiles,
        rows: &Range<usize>,
        [to, factors]: [BufferId; 2],
    ) -> Result<(), DriverError> {
        let params = TailTilesParams {
            matrix: matrix.data,
            to: Ptr::new(run.buffer(to)),
            factors: Ptr::new(run.buffer(factors)),
            row: matrix.row,
            column: matrix.column,
            columns: matrix.columns,
            tiles: tiles.count as u32,
            rows: rows.len() as u32,
            lower: rows.start as u32,
            upper: tiles.upper.as_ref().map_or(0, |upper| upper.start) as u32,
            is_paired: u32::from(tiles.upper.is_some()),
            raise: tiles.raise() / tiles.factor,
            factor: self.down,
        };
        run.launch(&self.kernel, tiles.count.div_ceil(TILES_PER_BLOCK) as u32, 1, THREADS, 0, &params)
    }
}
