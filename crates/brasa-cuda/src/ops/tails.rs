//! Low-rank products: as tails of the products beside them, and those in front of these.

use crate::driver::{DriverError, Kernel};
use crate::ops::{Floats, Launch, TilesLaunch};
use crate::params::{Ptr, Rows, TailTilesParams};
use crate::run::{Run, Slot, THREADS};

/// Most inputs of a tail: a piece of a row's panels.
pub(crate) const MOST_TAIL: usize = 64;
/// Bytes of a tile of a tail.
const TILE_BYTES: u64 = 2048;
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
    /// `tail_tiles`.
    pub kernel: Kernel,
    /// For each stretch of the weight, the buffers of the tail's tiles and of their factors.
    pub of_stretches: Vec<[usize; 2]>,
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
        let (_, columns) = self.beside.floats.size;
        for (TilesLaunch { stretch, tiles, .. }, [data, factors]) in stretches.iter().zip(&self.of_stretches)
        {
            let params = TailTilesParams {
                matrix: self.beside.floats.data,
                to: Ptr::new(run.buffer(*data)),
                factors: Ptr::new(run.buffer(*factors)),
                to_stride: TILE_BYTES,
                row: columns,
                column: 1,
                columns,
                tiles: tiles.count as u32,
                rows: stretch.rows.len() as u32,
                lower: stretch.rows.start as u32,
                upper: tiles.upper.as_ref().map_or(0, |upper| upper.start) as u32,
                is_paired: u32::from(tiles.upper.is_some()),
                raise: tiles.raise(),
            };
            run.launch(&self.kernel, tiles.count.div_ceil(TILES_PER_BLOCK) as u32, 1, THREADS, 0, &params)?;
        }
        Ok(())
    }
}
