//! Linear layers of heads.
//!
//! If each head has tiles of its own, one launch multiplies a few rows. For many rows, two launches round the rows and
//! multiply them on tensor cores: the heads are the experts of a grouped product that needs no router. All other
//! weights are read as they are stored.

use crate::driver::{DriverError, Kernel};
use crate::ops::mixture::{ExpertTiles, PlanBuffers, SIZES, block_rows, fastest, multiply_blocks};
use crate::ops::{Launch, Panels};
use crate::params::{
    ExpertGemmParams, HeadLinearParams, HeadPanelsParams, HeadTilesParams, Ptr, Rows, StoredWeight,
};
use crate::run::{Run, Slot, THREADS};

/// Outputs of a block that multiplies weights as they are stored; each warp makes one.
const OUTPUTS_PER_BLOCK: u32 = 4;
/// Rows that a wide kernel multiplies at once.
const WIDE_ROWS: usize = 8;
/// Warps of a block that multiplies tiles.
const TILE_WARPS: u32 = THREADS / 32;
/// Rows of a panel.
const PANEL_ROWS: u32 = crate::ops::PANEL_ROWS as u32;
/// Most rows that are multiplied in f32 on a GPU with tensor cores: the number that a wide kernel takes at once. No
/// measurement has chosen the number yet; `examples/head_speed.rs` makes one.
pub(crate) const MOST_ROWS_IN_F32: u32 = 8;

/// A linear layer of each head: `out[r,h,n] = Σ_k x[r,h,k] · w[h,n,k]`.
#[derive(Debug)]
pub(crate) struct HeadLinearOp {
    pub x: Slot,
    pub heads: usize,
    /// The weight's number.
    pub number: usize,
    pub factors: HeadFactors,
    pub out: Slot,
}

/// The weight of a linear layer of heads, with the kernels that multiply it.
#[derive(Debug)]
pub(crate) enum HeadFactors {
    /// A weight as it is stored. For each format there are two kernels, for one row and for several.
    Stored { w: StoredWeight, kernels: Vec<(Kernel, Kernel)> },
    /// A weight in tiles. `kernels` are for one row and for several; `many` are for many rows, on tensor cores.
    Tiles { tiles: ExpertTiles, kernels: (Kernel, Kernel), many: Option<ManyRows> },
}

/// Kernels and memory to multiply many rows with the heads' matrices on tensor cores.
#[derive(Debug)]
pub(crate) struct ManyRows {
    /// The kernel `head_panels`, which rounds the rows.
    pub round: Kernel,
    /// The kernels `experts_<format>_<rows>`, one for each number of rows in a block.
    pub multiply: [Kernel; SIZES],
    pub panels: Panels,
    pub plan: PlanBuffers,
}

impl Launch for HeadLinearOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, vectors) = run.tensor(&self.x).rows();
        let (heads, y) = (self.heads as u32, run.tensor(&self.out).floats());
        let rows = vectors / heads;
        match &self.factors {
            HeadFactors::Stored { w, kernels } => {
                let params = HeadLinearParams { x, w: *w, y, rows, heads, outputs: w.rows / heads };
                let blocks = params.outputs.div_ceil(OUTPUTS_PER_BLOCK);
                kernels.iter().try_for_each(|kernels| {
                    let (kernel, groups) = narrow_or_wide(kernels, rows);
                    run.launch(kernel, blocks, groups * self.heads, OUTPUTS_PER_BLOCK * 32, 0, &params)
                })
            }
            HeadFactors::Tiles { tiles, many: Some(many), .. } if rows > MOST_ROWS_IN_F32 => {
                many.launch(run, tiles, x, (rows, heads), y)
            }
            HeadFactors::Tiles { tiles, kernels, .. } => {
                let subs = tiles.tiles.subs as u32;
                // As many warps share a tile as have work.
                let warps = subs.next_power_of_two().min(TILE_WARPS);
                let params = HeadTilesParams {
                    x,
                    weights: tiles.tiles.data,
                    y,
                    rows,
                    heads,
                    inputs: tiles.inputs as u32,
                    subs,
                    tiles: tiles.each(self.heads),
                    warps,
                    factor: tiles.tiles.factor,
                };
                let (kernel, groups) = narrow_or_wide(kernels, rows);
                let blocks = params.tiles.div_ceil(TILE_WARPS / warps);
                run.launch(kernel, blocks, groups * self.heads, THREADS, 0, &params)
            }
        }
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (_, vectors) = run.tensor(&self.x).rows();
        let elements = run.weights.elements(self.number) / self.heads as u64;
        (run.weights.stored_bytes(self.number), 2 * elements * u64::from(vectors))
    }
}

impl ManyRows {
    fn launch(
        &self,
        run: &Run<'_>,
        tiles: &ExpertTiles,
        x: Rows,
        (rows, heads): (u32, u32),
        y: Ptr<f32>,
    ) -> Result<(), DriverError> {
        let subs = self.panels.subs as u32;
        let blocks_of = |of: u32| heads * rows.div_ceil(of);
        let number = fastest(subs, |of| f64::from(blocks_of(of)));
        let [panels, row_scale] = [self.panels.data, self.panels.row_scale].map(|buffer| run.buffer(buffer));
        let (panels, row_scale) = (Ptr::new(panels), Ptr::new(row_scale));
        let plan = self.plan.addresses(run);
        let block_rows = block_rows(number);
        let rounded = HeadPanelsParams {
            x,
            panels,
            row_scale,
            plan,
            rows,
            heads,
            inputs: tiles.inputs as u32,
            subs,
            block_rows,
            aligned: block_rows.min(PANEL_ROWS),
        };
        let vectors_per_block = THREADS / 32;
        run.launch(&self.round, (rows * heads).div_ceil(vectors_per_block), 1, THREADS, 0, &rounded)?;
        let raise = tiles.tiles.raise();
        let product = ExpertGemmParams {
            weights: [tiles.tiles.data, Ptr::NONE],
            raise: [raise; 2],
            scale: [tiles.tiles.factor / raise; 2],
            panels,
            row_scale,
            plan,
            y,
            gated: Ptr::NONE,
            gated_scale: Ptr::NONE,
            tiles: tiles.each(heads as usize),
            subs,
            gated_subs: 0,
            function: 0,
        };
        multiply_blocks(run, &self.multiply[number], number, blocks_of(block_rows), &product)
    }
}

/// The kernel for `rows` rows, and the number of groups into which it divides the rows.
fn narrow_or_wide((narrow, wide): &(Kernel, Kernel), rows: u32) -> (&Kernel, usize) {
    if rows == 1 { (narrow, 1) } else { (wide, (rows as usize).div_ceil(WIDE_ROWS)) }
}
