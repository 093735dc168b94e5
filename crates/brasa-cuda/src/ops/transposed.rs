//! Products with the other side of a weight.
#![expect(unsafe_code, reason = "clears device memory")]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{DriverError, Kernel};
use crate::ops::gemm::{Beside, FEWEST_ROWS, Gemm, SIZES, Sums};
use crate::ops::tails::{TailMatrix, TailTiles};
use crate::ops::{Floats, HeadNorm, Launch, LowRank};
use crate::params::{self, LinearTransposedParams, Outputs, Ptr, Rows, StoredWeight, TransposeParams};
use crate::run::{BufferId, Order, Run, Slot, THREADS};
use crate::weights::{Stretch, Tiles};

/// Subs that a block turns around: a warp each.
const SUBS_PER_BLOCK: usize = 8;
/// Bytes of a sub of halves.
const SUB_BYTES: usize = 2048;

/// `out[r,k] = Σ_n y[r,n] · w[n,k]`.
#[derive(Debug)]
pub(crate) struct LinearTransposedOp {
    pub transposed: Transposed,
    pub y: Slot,
    /// The weight's number.
    pub number: usize,
    /// The low-rank product that is added: the tail of [`TransposedTiles`], or a product of its own for a single row.
    pub beside: Option<LowRank>,
    pub out: Slot,
}

/// The transpose of a weight, as a factor of products.
#[derive(Debug)]
pub(crate) struct Transposed {
    /// `linear_transposed`, which decodes each weight for each row.
    pub kernel: Kernel,
    pub w: StoredWeight,
    /// The weight as a matrix of f32, if it is such a matrix.
    pub floats: Option<Floats>,
    /// For several rows, where all of the weight is in tiles and sums need not be exact.
    pub many: Option<TransposedTiles>,
}

/// The transposed weight in tiles of halves. Kept from step to step, those of all weights take as much memory as a model in 16 bits does. Where there is
/// not so much, they are made anew in front of their products, in memory that weights share, which takes a few percent of the time of an update.
#[derive(Debug)]
pub(crate) struct TransposedTiles {
    /// The weight's number.
    pub number: usize,
    /// The weight's stretches, and `transpose_<format>` for each.
    pub stretches: Vec<(Kernel, Stretch)>,
    /// True if some inputs of the tiles have no weight.
    pub has_gaps: bool,
    /// The tiles, but for their address and `factor`, which undoes `raise`.
    pub tiles: Tiles,
    /// The power of two by which elements are multiplied.
    pub raise: f32,
    /// The low-rank product beside.
    pub tail: Option<TransposedTail>,
    /// The buffer of the tiles.
    pub data: BufferId,
    /// The count of the weight's changes, plus one, when the kept tiles were made; 0 before the first.
    pub made: AtomicU64,
    pub gemm: Gemm,
    pub kernels: [Kernel; SIZES],
}

/// The transpose of a low-rank weight, as the tail of tiles.
#[derive(Debug)]
pub(crate) struct TransposedTail {
    pub tiles: TailTiles,
    pub matrix: Ptr<f32>,
    /// Rows of the low-rank weight, which are columns of its transpose.
    pub columns: u32,
    /// The buffers of the tail's tiles and of their factors.
    pub buffers: [BufferId; 2],
}

impl Transposed {
    /// The tiles that multiply this number of rows.
    fn of_rows(&self, rows: u32) -> Option<&TransposedTiles> {
        self.many.as_ref().filter(|many| rows >= FEWEST_ROWS || many.gemm.of_panels)
    }

    /// Queues what products of so many rows need, once for all of them; says when these may begin.
    pub(super) fn prepare(&self, run: &Run<'_>, rows: u32) -> Result<Order, DriverError> {
        self.of_rows(rows).map_or(Ok(Order::Behind), |many| many.prepare(run, self.w.row_len))
    }

    /// Queues the products of `rows` rows, of those that were prepared for; results are dense.
    pub(super) fn multiply(
        &self,
        run: &Run<'_>,
        y: Rows,
        (rows, all_rows): (u32, u32),
        order: Order,
        x: Ptr<f32>,
    ) -> Result<(), DriverError> {
        if let Some(floats) = self.floats.as_ref().filter(|_| y.per == 1) {
            return floats.multiply_transposed(run, y, rows, Rows::NONE, x);
        }
        if let Some(many) = self.of_rows(all_rows) {
            return many.multiply(run, y, rows, self.w, order, x);
        }
        let params = LinearTransposedParams { y, w: self.w, x, rows };
        run.each(&self.kernel, u64::from(rows) * u64::from(self.w.row_len), &params)
    }
}

impl TransposedTiles {
    fn prepare(&self, run: &Run<'_>, inputs: u32) -> Result<Order, DriverError> {
        let order = if self.is_kept(run) {
            Order::Overlapping
        } else {
            self.turn(run, run.buffer(self.data), inputs)?;
            // Kernels ask for weights before the launches in front have ended.
            Order::Behind
        };
        if let Some(TransposedTail { tiles, matrix, columns, buffers }) = &self.tail {
            let matrix = TailMatrix { data: *matrix, row: 1, column: inputs, columns: *columns };
            tiles.make(run, &matrix, &self.tiles, &(0..inputs as usize), *buffers)?;
        }
        Ok(order)
    }

    /// True if the tiles are those of the step before, and the weight is what it was; notes that they are made now where they are kept.
    fn is_kept(&self, run: &Run<'_>) -> bool {
        if !run.kept.contains(&self.data) {
            return false;
        }
        let state = run.weights.stored(self.number).map_or(0, |stored| stored.changes() + 1);
        state != 0 && self.made.swap(state, Ordering::Relaxed) == state
    }

    /// Queues the making of the tiles, but for their tail.
    fn turn(&self, run: &Run<'_>, to: u64, inputs: u32) -> Result<(), DriverError> {
        if self.has_gaps {
            // SAFETY: the program's buffer of that many tiles, of halves.
            unsafe { run.gpu.stream.clear(to, self.tiles.count * self.tiles.subs * SUB_BYTES)? };
        }
        for (kernel, stretch) in &self.stretches {
            let Some(tiles) = &stretch.tiles else { continue };
            let params = TransposeParams {
                weights: tiles.data,
                to: Ptr::new(to),
                tiles: tiles.count as u32,
                subs: tiles.subs as u32,
                to_subs: self.tiles.subs as u32,
                inputs,
                rows: stretch.rows.len() as u32,
                lower: stretch.rows.start as u32,
                upper: tiles.upper.as_ref().map_or(0, |upper| upper.start as u32),
                is_paired: u32::from(tiles.upper.is_some()),
                raise: tiles.factor * self.raise,
            };
            let blocks = (tiles.count * tiles.subs).div_ceil(SUBS_PER_BLOCK);
            run.launch(kernel, blocks as u32, 1, THREADS, 0, &params)?;
        }
        Ok(())
    }

    fn multiply(
        &self,
        run: &Run<'_>,
        y: Rows,
        rows: u32,
        w: StoredWeight,
        order: Order,
        x: Ptr<f32>,
    ) -> Result<(), DriverError> {
        if let Some(rounding) = &self.gemm.rounding {
            rounding.launch(run, y, HeadNorm::params(None, run), rows, w.rows)?;
        }
        let out = Outputs {
            residual: Rows::NONE,
            bias: Ptr::NONE,
            y: x,
            y_width: w.row_len,
            count: w.row_len,
            lower: 0,
            upper: 8,
            form: params::TILES_DENSE,
            function: 0,
            panels: Ptr::NONE,
            row_scale: Ptr::NONE,
            subs: 0,
        };
        let tiles = Tiles { data: Ptr::new(run.buffer(self.data)), ..self.tiles.clone() };
        let beside = self.tail.as_ref().map_or(Beside::Nothing, |tail| Beside::Tail(tail.buffers));
        self.gemm.multiply_in_order(run, &self.kernels, (&tiles, beside), rows, out, Sums::Added, order)
    }
}

impl Launch for LinearTransposedOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let ((y, rows), x) = (run.tensor(&self.y).rows(), run.tensor(&self.out).floats());
        let order = self.transposed.prepare(run, rows)?;
        self.transposed.multiply(run, y, (rows, rows), order, x)?;
        match &self.beside {
            Some(LowRank { floats, x: u, .. }) if self.transposed.of_rows(rows).is_none() => {
                let (u, base) = (run.tensor(u).rows().0, run.tensor(&self.out).rows().0);
                floats.multiply_transposed(run, u, rows, base, x)
            }
            _ => Ok(()),
        }
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (_, rows) = run.tensor(&self.y).rows();
        (run.weights.stored_bytes(self.number), 2 * run.weights.elements(self.number) * u64::from(rows))
    }
}
