//! Low-rank products as tails of the products beside them.

use crate::driver::{DriverError, Kernel};
use crate::ops::{Floats, TilesLaunch};
use crate::params::{Ptr, TailTilesParams};
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

/// A low-rank product that is added to a weight's.
#[derive(Debug)]
pub(crate) struct Tail {
    pub beside: LowRank,
    /// `tail_tiles`.
    pub kernel: Kernel,
    /// For each stretch of the weight, the buffers of the tail's tiles and of their factors.
    pub of_stretches: Vec<[usize; 2]>,
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
