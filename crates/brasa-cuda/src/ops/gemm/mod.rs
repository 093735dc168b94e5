//! Products of many rows on tensor cores.

mod plan;
mod rounding;

pub(crate) use plan::{
    Company, LARGEST_ROWS, MOST_ROWS_WITHOUT_TAIL, SIZES, SMALLEST_ROWS, kernels, partial_floats,
};
use plan::{Product, VARIANTS, plan};
pub(crate) use rounding::{Ahead, GatesBehind, Panels, Rounding, WIDEST_JOINED, joins, panel_threads};

use crate::driver::{DriverError, Grid, Kernel};
use crate::params::{Addend, GemmParams, GemmSumParams, GemmTail, Outputs, Ptr};
use crate::run::{BufferId, Order, Run, THREADS};
use crate::weights::Tiles;

/// Fewest rows that are multiplied on tensor cores. The products of a token of an 8B model in F16 take 4.3 ms for one row in f32, 16.8 ms
/// for eight, and 5.7 ms for 16 rows on tensor cores (H200).
pub(crate) const FEWEST_ROWS: u32 = 2;
/// Outputs of a tile.
pub(crate) const TILE_OUTPUTS: u32 = 16;
/// Rows of a panel, and bytes of one of 64 inputs.
pub(crate) const PANEL_ROWS: usize = 64;
const PANEL_BYTES: usize = 8192;

/// Buffers and kernels that products of many rows use, besides the kernels of each stretch.
#[derive(Debug)]
pub(crate) struct Gemm {
    pub panels: Panels,
    /// The rounding of the operand; `None` if an operation in front has rounded it.
    pub rounding: Option<Rounding>,
    /// True if the operand may be in panels alone. A single row is then multiplied like many rows.
    pub of_panels: bool,
    /// `gemm_sums`.
    pub sums: Kernel,
    /// The buffer of sums of parts of K.
    pub partial: BufferId,
}

/// A low-rank product that the launch of a weight's product computes too, and adds to it; or none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beside {
    Nothing,
    /// A low-rank product of learned weights: the buffers of its tiles and of their factors, which the launch in front makes.
    Tail([BufferId; 2]),
    /// The low-rank product of a bank of adapters, which is added to the sums; of at most [`SMALLEST_ROWS`] rows.
    Addend(Addend),
    /// The low-rank product of a bank of adapters, for more than [`MOST_ROWS_WITHOUT_TAIL`] rows: B, and the panels of ranks. The
    /// tail's factor is `B`'s own.
    Ranks(Addend, GemmTail),
}

/// The launch that adds the sums of parts of K.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sums<'a> {
    /// A launch of its own.
    Added,
    /// The launch that rounds the result for the product behind.
    Joined(&'a Ahead),
    /// The operation behind.
    Left,
}

/// Into how many parts a product cuts K.
pub(crate) fn parts(run: &Run<'_>, tiles: usize, subs: usize, rows: u32, company: Company) -> u32 {
    plan(Product::new(run, tiles, subs, rows, company)).splits
}

impl Beside {
    fn company(self) -> Company {
        match self {
            Self::Nothing => Company::Alone,
            Self::Tail(_) | Self::Ranks(..) => Company::Tail,
            Self::Addend(addend) => Company::Addend(addend.blocks_of_ranks()),
        }
    }
}

impl Gemm {
    /// Queues the product with a stretch, and the low-rank product beside it.
    #[expect(clippy::too_many_arguments, reason = "the facts of one launch")]
    pub(crate) fn multiply(
        &self,
        run: &Run<'_>,
        kernels: &[Kernel; SIZES],
        tiles: &Tiles,
        rows: u32,
        out: Outputs,
        sums: Sums<'_>,
        beside: Beside,
    ) -> Result<(), DriverError> {
        self.multiply_in_order(run, kernels, (tiles, beside), rows, out, sums, Order::Overlapping)
    }

    /// Like [`multiply`](Self::multiply); the kernels ask for weights before the launches in front have ended, so with tiles that these make it begins
    /// behind them.
    #[expect(clippy::too_many_arguments, reason = "the facts of one launch")]
    pub(super) fn multiply_in_order(
        &self,
        run: &Run<'_>,
        kernels: &[Kernel; SIZES],
        (tiles, beside): (&Tiles, Beside),
        rows: u32,
        out: Outputs,
        sums: Sums<'_>,
        order: Order,
    ) -> Result<(), DriverError> {
        let plan = plan(Product::new(run, tiles.count, tiles.subs, rows, beside.company()));
        let (variant, splits) = (&VARIANTS[plan.number], plan.splits);
        // Elements that are f16 already are multiplied as they are.
        let raise = tiles.raise();
        let scale = tiles.factor / raise;
        let Panels { data, row_scale, subs: panel_subs } = self.panels;
        let [panels, row_scale, partial] = [data, row_scale, self.partial].map(|buffer| run.buffer(buffer));
        let panel_subs = panel_subs as u32;
        let (tail, addend) = match beside {
            Beside::Nothing => (GemmTail::NONE, Addend::NONE),
            Beside::Tail(buffers) => {
                let [of_tail, factors] = buffers.map(|buffer| run.buffer(buffer));
                let last_piece = Ptr::new(panels + (tiles.subs * PANEL_BYTES) as u64);
                let (tiles, factors) = (Ptr::new(of_tail), Ptr::new(factors));
                let tail =
                    GemmTail { panels: last_piece, tiles, factors, subs: panel_subs, ..GemmTail::NONE };
                (tail, Addend::NONE)
            }
            Beside::Addend(of) => (GemmTail::NONE, Addend { scale: of.scale / scale, ..of }),
            Beside::Ranks(of, tail) => (GemmTail { factor: scale / tail.factor, ..tail }, of),
        };
        let params = GemmParams {
            tail,
            addend,
            panel_subs,
            weights: tiles.data,
            panels: Ptr::new(panels),
            row_scale: Ptr::new(row_scale),
            partial: Ptr::new(partial),
            rows,
            tiles: tiles.count as u32,
            subs: tiles.subs as u32,
            splits,
            raise,
            scale,
            out,
        };
        let blocks = plan.clusters * variant.cluster;
        let grid =
            Grid { blocks: [blocks, 1, 1], threads: variant.threads, shared_bytes: variant.shared_bytes };
        run.launch_in_order(&kernels[plan.number], grid, order, &params)?;
        let of_parts =
            GemmSumParams { partial: Ptr::new(partial), rows, tiles: tiles.count as u32, splits, out };
        match sums {
            _ if splits == 1 => Ok(()),
            Sums::Added => {
                let blocks = (tiles.count as u32 * TILE_OUTPUTS / 2).div_ceil(THREADS);
                run.launch(&self.sums, blocks, rows as usize, THREADS, 0, &of_parts)
            }
            Sums::Joined(ahead) => ahead.join(run, of_parts),
            Sums::Left => Ok(()),
        }
    }
}
