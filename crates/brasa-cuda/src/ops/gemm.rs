//! Products of many rows on tensor cores.

use crate::driver::{DriverError, Grid, Kernel};
use crate::ops::HeadNorm;
use crate::params::{
    Addend, Gates, GemmParams, GemmSumParams, GemmSumsPanelsParams, GemmTail, Norm, Outputs, PanelsParams,
    Ptr, Rows,
};
use crate::run::{Order, Run, Slot, THREADS};
use crate::weights::Tiles;

/// Fewest rows that are multiplied on tensor cores. The products of a token of an 8B model in F16 take 4.3 ms for one row in f32, 16.8 ms
/// for eight, and 5.7 ms for 16 rows on tensor cores (H200).
pub(crate) const FEWEST_ROWS: u32 = 2;
/// Most floats of sums of parts of K.
const MOST_PARTIAL: usize = 8 << 20;
/// Outputs of a tile.
pub(crate) const TILE_OUTPUTS: u32 = 16;
/// Rows of a panel, and bytes of one of 64 inputs.
pub(crate) const PANEL_ROWS: usize = 64;
const PANEL_BYTES: usize = 8192;

/// Kernels of a format.
pub(crate) const SIZES: usize = 5;
/// Rows of the smallest kernel that knows tails, and of the largest that does not.
const FEWEST_TAIL_ROWS: u32 = 128;
pub(crate) const MOST_ROWS_WITHOUT_TAIL: u32 = SIXTY_FOUR_ROWS.rows;
/// Rows of the largest kernel.
pub(crate) const LARGEST_ROWS: usize = 256;
/// Rows of the smallest kernels, which do not take several blocks of rows. One of them has an addend.
pub(crate) const SMALLEST_ROWS: u32 = 16;

/// A kernel: the size of a block's result, and its share of a multiprocessor.
#[derive(Debug)]
struct Variant {
    /// The end of its name.
    name: &'static str,
    rows: u32,
    /// True if it has an addend.
    adds: bool,
    /// Tiles of all blocks of a cluster.
    tiles: u32,
    cluster: u32,
    /// Blocks that a multiprocessor holds.
    resident: u32,
    threads: u32,
    shared_bytes: u32,
    /// Time of 64 inputs of a block, and of its begin and end: an H200, 8B shapes, F16, run 5 of `docs/performance/cuda.md`. Kernels
    /// have become faster since; what they are to each other decides.
    stage_us: f64,
    block_us: f64,
}

const SIXTEEN_ROWS: Variant = Variant {
    name: "16",
    adds: false,
    rows: SMALLEST_ROWS,
    tiles: 4,
    cluster: 1,
    resident: 2,
    threads: 256,
    shared_bytes: 113_664,
    stage_us: 0.45,
    block_us: 2.0,
};
const SIXTEEN_ADDING: Variant = Variant { name: "16_adding", adds: true, threads: 384, ..SIXTEEN_ROWS };
const SIXTY_FOUR_ROWS: Variant =
    Variant { name: "64", rows: 64, stage_us: 0.76, block_us: 3.0, ..SIXTEEN_ROWS };

/// Kernels `gemm_<format>_16`, `_64`, `_128`, `_256` and `_16_adding`; shared memory is what their deepest rings take.
const VARIANTS: [Variant; SIZES] = [
    SIXTEEN_ROWS,
    SIXTY_FOUR_ROWS,
    Variant {
        name: "128",
        adds: false,
        rows: 128,
        tiles: 16,
        cluster: 2,
        resident: 1,
        threads: 384,
        shared_bytes: 230_400,
        stage_us: 0.8,
        block_us: 3.0,
    },
    Variant {
        name: "256",
        adds: false,
        rows: 256,
        tiles: 16,
        cluster: 2,
        resident: 1,
        threads: 384,
        shared_bytes: 229_376,
        stage_us: 1.0,
        block_us: 4.0,
    },
    SIXTEEN_ADDING,
];
/// Into how many parts K may be cut.
const SPLITS: [u32; 6] = [1, 2, 3, 4, 6, 8];
/// Time of a launch that adds sums, of one float of them, and of one of a row, which a block adds by itself (all plans timed, run 25).
const SUMS_US: f64 = 1.5;
const SUM_US: f64 = 2e-6;
const SUM_OF_ROW_US: f64 = 3e-4;
/// The share of its time that a block takes where it has a multiprocessor for itself that could hold several.
const ALONE: f64 = 0.8;

/// Buffers that rows are rounded to: halves in panels, and the power of two of each row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels {
    pub data: usize,
    pub row_scale: usize,
    /// Pieces of 64 inputs.
    pub subs: usize,
}

/// The rounding of rows by a launch of its own.
#[derive(Clone, Debug)]
pub(crate) struct Rounding {
    /// `gemm_panels`.
    pub kernel: Kernel,
    pub panels: Panels,
    /// Gates that follow the product of these rows, if their results are rounded too.
    pub gates: Option<GatesBehind>,
    /// More of each row, which becomes the last piece of its panels.
    pub tail: Option<Slot>,
}

/// A weight that gates products, which are rounded for the product behind.
#[derive(Clone, Debug)]
pub(crate) struct GatesBehind {
    /// The largest squared norm of its rows.
    pub row_norm: Ptr<f32>,
    /// The buffer of the powers of two of rows of products.
    pub row_scale: usize,
    /// The bank's product beside it: the largest squared norms of rows of A and of B, and the rows' factors.
    pub bank: Option<([Ptr<f32>; 2], Slot)>,
}

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
    pub partial: usize,
}

/// Rounding of a result for the product behind, which an operation does at its end.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub rounding: Rounding,
    /// The norm between the result and the product.
    pub norm: Option<HeadNorm>,
    /// `gemm_sums_panels`, which adds sums of parts, norms and rounds.
    pub joined: Kernel,
}

/// A low-rank product that the launch of a weight's product computes too, and adds to it; or none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beside {
    Nothing,
    /// A low-rank product of learned weights: the buffers of its tiles and of their factors, which the launch in front makes.
    Tail([usize; 2]),
    /// The low-rank product of a bank of adapters, which is added to the sums; of at most [`SMALLEST_ROWS`] rows.
    Addend(Addend),
    /// The low-rank product of a bank of adapters, for more than [`MOST_ROWS_WITHOUT_TAIL`] rows: B, and the panels of ranks. The
    /// tail's factor is `B`'s own.
    Ranks(Addend, GemmTail),
}

/// The kinds of [`Beside`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    Alone,
    Tail,
    /// A low-rank product whose ranks this many blocks make while the main product begins. Each of them takes the place of one
    /// block of the main product.
    Addend(u32),
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

/// Names of the kernels of a format, and the shared memory that each needs.
pub(crate) fn kernels(suffix: &str) -> [(String, u32); SIZES] {
    VARIANTS.map(|variant| (format!("gemm_{suffix}_{}", variant.name), variant.shared_bytes))
}

/// Floats of the sums of parts that products of at most that many rows and outputs leave.
pub(crate) fn partial_floats(rows: usize, outputs: usize) -> usize {
    MOST_PARTIAL.min(rows.saturating_mul(outputs).saturating_mul(8))
}

/// Threads that round a row: eight inputs each, and for prompts, which have a block of threads for each of many rows, no more than 256.
pub(crate) fn panel_threads(rows: u32, inputs: u32) -> u32 {
    let most = if rows as usize <= PANEL_ROWS { 1024 } else { THREADS };
    inputs.div_ceil(8).next_multiple_of(32).clamp(32, most)
}

impl Rounding {
    /// Queues the conversion of `x`, normed where there is a norm, to panels.
    pub(crate) fn launch(
        &self,
        run: &Run<'_>,
        x: Rows,
        norm: Norm,
        rows: u32,
        inputs: u32,
    ) -> Result<(), DriverError> {
        let Panels { data, row_scale, subs } = self.panels;
        let params = PanelsParams {
            tail: self.tail.as_ref().map_or(Rows::NONE, |tail| run.tensor(tail).rows().0),
            x,
            norm,
            gates: self.gates(run),
            panels: Ptr::new(run.buffer(data)),
            row_scale: Ptr::new(run.buffer(row_scale)),
            rows,
            inputs,
            subs: subs as u32,
        };
        run.launch(&self.kernel, rows, 1, panel_threads(rows, inputs), 0, &params)
    }
}

impl Rounding {
    fn gates(&self, run: &Run<'_>) -> Gates {
        let Some(GatesBehind { row_norm, row_scale, bank }) = &self.gates else { return Gates::NONE };
        let of_bank =
            |([of_a, of_b], factors): &([Ptr<f32>; 2], Slot)| (*of_a, *of_b, run.tensor(factors).rows().0);
        let (of_a, of_b, factors) = bank.as_ref().map_or((Ptr::NONE, Ptr::NONE, Rows::NONE), of_bank);
        Gates { largest: *row_norm, row_scale: Ptr::new(run.buffer(*row_scale)), of_a, of_b, factors }
    }
}

impl Ahead {
    /// Queues the rounding of `x` by a launch of its own.
    pub(crate) fn round(&self, run: &Run<'_>, x: Rows, rows: u32) -> Result<(), DriverError> {
        self.rounding.launch(run, x, HeadNorm::params(self.norm.as_ref(), run), rows, x.width)
    }

    /// Queues the launch that adds sums of parts and rounds the results.
    fn join(&self, run: &Run<'_>, sums: GemmSumParams) -> Result<(), DriverError> {
        let Panels { data, row_scale, subs } = self.rounding.panels;
        let params = GemmSumsPanelsParams {
            sums,
            norm: HeadNorm::params(self.norm.as_ref(), run),
            gates: self.rounding.gates(run),
            panels: Ptr::new(run.buffer(data)),
            row_scale: Ptr::new(run.buffer(row_scale)),
            subs: subs as u32,
        };
        let threads = panel_threads(sums.rows, sums.out.count);
        run.launch(&self.joined, sums.rows, 1, threads, 0, &params)
    }
}

/// Most outputs of a row whose sums of parts are added, normed and rounded by one block.
pub(crate) const WIDEST_JOINED: usize = 16 * 1024;
/// Outputs of a thread of that launch.
const JOINED_OUTPUTS: u32 = 16;

/// True if one launch adds parts of that many rows, and rounds them.
pub(crate) fn joins(rows: u32, outputs: u32) -> bool {
    outputs <= JOINED_OUTPUTS * panel_threads(rows, outputs)
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

impl Variant {
    /// Pieces of the product, each made by a cluster.
    fn blocks(&self, rows: u32, tiles: u32) -> u32 {
        rows.div_ceil(self.rows) * tiles.div_ceil(self.tiles)
    }

    /// Clusters that work at a time.
    fn slots(&self, multiprocessors: u32) -> u32 {
        (multiprocessors * self.resident / self.cluster).max(1)
    }

    /// The plan that cuts K into `splits` parts; `None` if they would be too short, or their sums too many.
    fn in_parts(&self, number: usize, product: Product, splits: u32) -> Option<Plan> {
        let Product { rows, tiles, subs, multiprocessors, company } = product;
        let sums = u64::from(rows) * u64::from(tiles * TILE_OUTPUTS) * u64::from(splits);
        // K-quants are cut between super-blocks, of four subs.
        if splits > 1 && (sums > MOST_PARTIAL as u64 || subs < 4 * splits) {
            return None;
        }
        let blocks = self.blocks(rows, tiles) * splits;
        let slots = match company {
            // Parts of K are cut so that all blocks find room at once. (Whole products in fewer blocks were slower: gate and up of a 1B model, run 37.)
            Company::Addend(taken) if splits > 1 => self.slots(multiprocessors).saturating_sub(taken).max(1),
            _ => self.slots(multiprocessors),
        };
        let alone = if self.resident > 1 { ALONE } else { 1.0 };
        let stage_us = self.stage_us * (f64::from(blocks) / f64::from(slots)).clamp(alone, 1.0);
        let block_us = f64::from(subs.div_ceil(splits)) * stage_us + self.block_us;
        let of_row = f64::from(tiles * TILE_OUTPUTS * splits);
        let sums_us = if splits > 1 { SUMS_US + sums as f64 * SUM_US + of_row * SUM_OF_ROW_US } else { 0.0 };
        let time_us = f64::from(blocks.div_ceil(slots)) * block_us + sums_us;
        Some(Plan { number, splits, clusters: blocks.min(slots), time_us })
    }
}

/// The facts of a product that choose its kernel.
#[derive(Clone, Copy, Debug)]
struct Product {
    rows: u32,
    /// Tiles of outputs, and pieces of 64 inputs.
    tiles: u32,
    subs: u32,
    multiprocessors: u32,
    company: Company,
}

impl Product {
    fn new(run: &Run<'_>, tiles: usize, subs: usize, rows: u32, company: Company) -> Self {
        let multiprocessors = run.gpu.context.device().multiprocessors as u32;
        Self { rows, tiles: tiles as u32, subs: subs as u32, multiprocessors, company }
    }
}

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plan {
    /// The kernel's number.
    number: usize,
    /// Parts that it cuts K into, which a launch adds where there are several.
    splits: u32,
    /// Clusters of the launch.
    clusters: u32,
    time_us: f64,
}

/// The fastest plan by what was measured.
fn plan(product: Product) -> Plan {
    let mut best = Plan { number: 0, splits: 1, clusters: 1, time_us: f64::INFINITY };
    for (number, variant) in VARIANTS.iter().enumerate() {
        let is_too_small = variant.rows == SMALLEST_ROWS && product.rows > SMALLEST_ROWS;
        let knows = match product.company {
            Company::Alone => !variant.adds,
            Company::Tail => variant.rows >= FEWEST_TAIL_ROWS,
            Company::Addend(_) => variant.adds,
        };
        if is_too_small || !knows {
            continue;
        }
        let shared = |splits| variant.in_parts(number, product, splits);
        let found = SPLITS.into_iter().filter_map(shared).min_by(|a, b| a.time_us.total_cmp(&b.time_us));
        best = found.filter(|found| found.time_us < best.time_us).unwrap_or(best);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_products_take_large_blocks_and_small_ones_share_k() {
        let planned = |rows, tiles, subs| {
            plan(Product { rows, tiles, subs, multiprocessors: 132, company: Company::Alone })
        };
        // Gate and up of an 8B model, 4,096 rows; o of a 1B model, 32 rows.
        let large = planned(4096, 1792, 64);
        assert_eq!((large.number, large.splits), (3, 1));
        let small = planned(32, 128, 32);
        assert!(small.number == 1 && small.splits > 1, "{small:?}");
        // What was fastest, or nearly: o, qkv and down of a 1B model, o of an 8B one.
        let splits = |rows| {
            [(128, 32), (192, 32), (128, 128), (256, 64)]
                .map(|(tiles, subs)| planned(rows, tiles, subs).splits)
        };
        assert_eq!((splits(16), splits(64)), ([4, 4, 6, 3], [4, 4, 6, 3]));
        // On four multiprocessors, as they are emulated, decoders of the tests of few rows cut K: down, o, and queries to values.
        for (tiles, subs) in [(16, 32), (16, 16), (8, 16)] {
            let few = plan(Product { rows: 5, tiles, subs, multiprocessors: 4, company: Company::Alone });
            assert!(few.splits > 1, "{few:?}");
        }
        // One kernel knows addends. Its blocks have room beside those of ranks where K is cut: down of an 8B model, gate and up of a 1B one.
        let adding = |tiles, subs, blocks| {
            let company = Company::Addend(blocks);
            let plan = plan(Product { rows: 16, tiles, subs, multiprocessors: 132, company });
            assert!(VARIANTS[plan.number].adds, "{plan:?}");
            (plan.splits, plan.clusters)
        };
        assert_eq!((adding(256, 224, 0), adding(256, 224, 56)), ((4, 256), (3, 192)));
        assert_eq!(adding(1024, 32, 16), (1, 256));
        // Sums have their room.
        assert_eq!(planned(1 << 20, 128, 1024).splits, 1);
    }
}
