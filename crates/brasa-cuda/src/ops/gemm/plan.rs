//! The choice of the kernel for a product of many rows, and into how many parts it cuts K, by measured times.

use super::TILE_OUTPUTS;
use crate::run::Run;

/// Most floats of sums of parts of K.
const MOST_PARTIAL: usize = 8 << 20;

/// Kernels of a format.
pub(crate) const SIZES: usize = 5;
/// Rows of the smallest kernel with tails, and of the largest without.
const FEWEST_TAIL_ROWS: u32 = 128;
pub(crate) const MOST_ROWS_WITHOUT_TAIL: u32 = SIXTY_FOUR_ROWS.rows;
/// Rows of the largest kernel.
pub(crate) const LARGEST_ROWS: usize = 256;
/// Rows of the smallest kernels, which do not take several blocks of rows. One of them has an addend.
pub(crate) const SMALLEST_ROWS: u32 = 16;

/// A kernel: the size of a block's result, and its share of a multiprocessor.
#[derive(Debug)]
pub(super) struct Variant {
    /// The end of its name.
    pub(super) name: &'static str,
    pub(super) rows: u32,
    /// True if it has an addend.
    pub(super) adds: bool,
    /// Tiles of all blocks of a cluster.
    pub(super) tiles: u32,
    pub(super) cluster: u32,
    /// Blocks that a multiprocessor holds.
    resident: u32,
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
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
pub(super) const VARIANTS: [Variant; SIZES] = [
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

/// The kinds of [`Beside`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    Alone,
    Tail,
    /// A low-rank product whose ranks this many blocks make while the main product begins. Each of them takes the place of one
    /// block of the main product.
    Addend(u32),
}

/// Names of the kernels of a format, and the shared memory that each needs.
pub(crate) fn kernels(suffix: &str) -> [(String, u32); SIZES] {
    VARIANTS.map(|variant| (format!("gemm_{suffix}_{}", variant.name), variant.shared_bytes))
}

/// Floats of the sums of parts that products of at most that many rows and outputs leave.
pub(crate) fn partial_floats(rows: usize, outputs: usize) -> usize {
    MOST_PARTIAL.min(rows.saturating_mul(outputs).saturating_mul(8))
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
pub(super) struct Product {
    rows: u32,
    /// Tiles of outputs, and pieces of 64 inputs.
    tiles: u32,
    subs: u32,
    multiprocessors: u32,
    company: Company,
}

impl Product {
    /// The product of `tiles` tiles of outputs and `subs` pieces of 64 inputs, on the device of `run`.
    pub(super) fn new(run: &Run<'_>, tiles: usize, subs: usize, rows: u32, company: Company) -> Self {
        let multiprocessors = run.gpu.context.device().multiprocessors as u32;
        Self { rows, tiles: tiles as u32, subs: subs as u32, multiprocessors, company }
    }
}

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plan {
    /// The kernel's number.
    pub(super) number: usize,
    /// Parts that it cuts K into, which a launch adds where there are several.
    pub(super) splits: u32,
    /// Clusters of the launch.
    pub(super) clusters: u32,
    time_us: f64,
}

/// The fastest plan by what was measured.
pub(super) fn plan(product: Product) -> Plan {
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
