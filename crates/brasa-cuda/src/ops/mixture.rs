//! A mixture of experts from the router's logits to the weighed sum, on weights in tiles.
//!
//! A slot is an expert that a row has chosen. Few rows read each slot's weights by themselves, in two launches behind the router's. Many
//! rows are sorted by expert on the device, rounded, and multiplied on tensor cores in blocks that share an expert's weights.

use brasa_graph::op::GatedUnit;

use crate::driver::{DriverError, Kernel};
use crate::ops::elementwise::unary;
use crate::ops::gemm::{PANEL_ROWS, Panels, panel_threads};
use crate::ops::{Launch, RouterTopKOp};
use crate::params::{
    ExpertDownParams, ExpertGatesParams, ExpertGemmParams, ExpertPanelsParams, ExpertPlan, ExpertPlanParams,
    ExpertShares, ExpertSumParams, Ptr, Rows, UNIT_CLAMPED,
};
use crate::run::{BufferId, Run, Slot, THREADS};
use crate::weights::Tiles;

/// Most rows that are multiplied expert by expert, and most weights of all their slots: such rows took 0.4 ps a weight, sorted ones
/// about 60 µs and 0.65 µs a megabyte of the experts that are used (an H100, run 21).
pub(crate) const MOST_UNSORTED: usize = 15;
const MOST_UNSORTED_WEIGHTS: u64 = 256 << 20;
/// Threads of a block that adds the products of all slots of a row.
const DOWN_THREADS: u32 = 512;

/// A router, its experts and what follows them: `residual + Σ_j share_j · down_j(act(gate_j · x) · (up_j · x))`.
#[derive(Debug)]
pub(crate) struct MixtureOp {
    pub router: RouterTopKOp,
    /// A weight with a number for each expert, by which its share is multiplied.
    pub scales: Option<Slot>,
    /// A factor of all shares.
    pub factor: f32,
    pub x: Slot,
    pub gate: ExpertTiles,
    pub up: ExpertTiles,
    pub down: ExpertTiles,
    /// Experts that there are.
    pub count: usize,
    pub unit: GatedUnit,
    /// Biases of gate, up and down, one row for each expert. Rows of a mixture with biases are never sorted.
    pub biases: [Option<Slot>; 3],
    pub residual: Option<Slot>,
    pub few: FewSlots,
    /// Kernels for sorted rows; `None` if the GPU has no kernels for tensor cores, or if experts have biases or clamped
    /// units.
    pub sorted: Option<Sorted>,
    pub out: Slot,
}

/// The weights of all experts: as many tiles for each, one expert's behind another's.
#[derive(Clone, Debug)]
pub(crate) struct ExpertTiles {
    pub tiles: Tiles,
    /// Inputs of an expert.
    pub inputs: usize,
    /// The weight's number.
    pub number: usize,
}

/// Kernels and memory for rows whose experts are multiplied one after the other.
#[derive(Debug)]
pub(crate) struct FewSlots {
    /// The kernel `expert_gates_<format>`, and in `down` `expert_down_<format>`. Experts with biases or clamped units
    /// have kernels of their own.
    pub gates: Kernel,
    pub down: Kernel,
    /// The buffer of gated products.
    pub gated: BufferId,
}

/// Kernels and memory for rows that are sorted by expert.
#[derive(Debug)]
pub(crate) struct Sorted {
    /// `expert_plan`, `expert_panels` and `expert_sum`.
    pub plan: Kernel,
    pub panels: Kernel,
    pub sum: Kernel,
    /// `experts_gated_<format>_<rows>` of gates and what they gate, and `experts_<format>_<rows>` of what follows.
    pub gates: [Kernel; SIZES],
    pub down: [Kernel; SIZES],
    pub plan_buffers: PlanBuffers,
    /// Rounded rows of x, and of gated products.
    pub x: Panels,
    pub gated: Panels,
    /// The largest squared norms of rows of gates, and of what they gate.
    pub largest: [Ptr<f32>; 2],
    /// The buffer of the products of all slots.
    pub products: BufferId,
}

/// Buffers of a plan that sorts slots by expert and cuts them into blocks of rows.
#[derive(Debug)]
pub(crate) struct PlanBuffers {
    /// Buffer for the number of blocks.
    pub counts: BufferId,
    /// Buffer for the position of each slot; `None` if no kernel reads it.
    pub places: Option<BufferId>,
    /// Buffer for the slot at each position.
    pub slots: BufferId,
    pub blocks: BufferId,
}

/// Kernels of a format.
pub(crate) const SIZES: usize = 3;

/// A kernel for sorted rows: the size of a block's result, and its share of a multiprocessor.
#[derive(Debug)]
struct Variant {
    rows: u32,
    /// Tiles of a block.
    tiles: u32,
    /// Blocks that a multiprocessor holds.
    resident: u32,
    threads: u32,
    shared_bytes: u32,
    /// Time of 64 inputs of a block, and of its begin and end.
    stage_us: f64,
    block_us: f64,
}

/// Kernels `experts_<format>_16`, `_64` and `_128`; shared memory is what their deepest rings take.
const VARIANTS: [Variant; SIZES] = [
    Variant {
        rows: 16,
        tiles: 4,
        resident: 2,
        threads: 256,
        shared_bytes: 113_664,
        stage_us: 0.45,
        block_us: 2.0,
    },
    Variant {
        rows: 64,
        tiles: 4,
        resident: 2,
        threads: 256,
        shared_bytes: 113_664,
        stage_us: 0.6,
        block_us: 3.0,
    },
    Variant {
        rows: 128,
        tiles: 8,
        resident: 1,
        threads: 384,
        shared_bytes: 230_400,
        stage_us: 0.7,
        block_us: 3.0,
    },
];

/// Names of kernels called `prefix_<rows>`, and the shared memory that each needs.
pub(crate) fn kernels(prefix: &str) -> [(String, u32); SIZES] {
    VARIANTS.map(|variant| (format!("{prefix}_{}", variant.rows), variant.shared_bytes))
}

/// Most positions that these numbers of slots and experts need after sorting.
pub(crate) fn most_positions(slots: usize, experts: usize) -> usize {
    (slots + experts.min(slots) * (PANEL_ROWS - 1)).next_multiple_of(PANEL_ROWS)
}

/// Most blocks of rows for this number of slots.
pub(crate) fn most_blocks(slots: usize, experts: usize) -> usize {
    slots / VARIANTS[0].rows as usize + experts.min(slots)
}

/// Blocks of `rows` rows that this number of slots fills, if they choose experts evenly and at random.
fn expected_blocks(slots: u32, experts: u32, rows: u32) -> f64 {
    let (slots, experts) = (f64::from(slots), f64::from(experts));
    let used = experts * (1.0 - (1.0 - 1.0 / experts).powf(slots));
    // An expert's last block is half full, unless all of its rows fit well in one.
    let each = slots / used / f64::from(rows);
    used * if each < 0.75 { 1.0 } else { each + 0.5 }
}

/// The number of the kernel that multiplies this number of slots fastest.
fn size(slots: u32, experts: u32) -> usize {
    fastest(32, |rows| expected_blocks(slots, experts, rows))
}

/// The number of the fastest kernel for weights of `subs` pieces of 64 inputs. `blocks` gives the number of blocks for
/// a number of rows in a block.
pub(crate) fn fastest(subs: u32, blocks: impl Fn(u32) -> f64) -> usize {
    let time = |variant: &Variant| {
        let blocks = blocks(variant.rows) / f64::from(variant.tiles);
        blocks / f64::from(variant.resident) * (f64::from(subs) * variant.stage_us + variant.block_us)
    };
    (0..SIZES).min_by(|&a, &b| time(&VARIANTS[a]).total_cmp(&time(&VARIANTS[b]))).unwrap_or(0)
}

/// Rows in a block of kernel number `number`.
pub(crate) fn block_rows(number: usize) -> u32 {
    VARIANTS[number].rows
}

/// Queues a grouped product by kernel number `number`. The plan has at most `row_blocks` blocks of rows; the launch has
/// no more blocks than there can be work for.
pub(crate) fn multiply_blocks(
    run: &Run<'_>,
    kernel: &Kernel,
    number: usize,
    row_blocks: u32,
    params: &ExpertGemmParams,
) -> Result<(), DriverError> {
    let variant = &VARIANTS[number];
    let pieces = u64::from(row_blocks) * u64::from(params.tiles.div_ceil(variant.tiles));
    let places = run.gpu.context.device().multiprocessors as u64 * u64::from(variant.resident);
    let blocks = pieces.min(places) as u32;
    run.launch(kernel, blocks, 1, variant.threads, variant.shared_bytes, params)
}

impl ExpertTiles {
    /// Tiles of one expert.
    pub(crate) fn each(&self, count: usize) -> u32 {
        (self.tiles.count / count) as u32
    }
}

impl Launch for MixtureOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        self.router.launch(run)?;
        let (_, rows) = run.tensor(&self.x).rows();
        match &self.sorted {
            Some(sorted) if self.sorts(run, rows) => self.launch_sorted(run, sorted),
            _ => self.launch_few(run),
        }
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let slots = run.tensor(&self.router.experts).count();
        let count = self.count as u64;
        let each = |weight: &ExpertTiles| {
            let number = weight.number;
            let (bytes, elements) = (run.weights.stored_bytes(number), run.weights.elements(number));
            (bytes / count * slots.min(count), 2 * elements / count * slots)
        };
        [&self.gate, &self.up, &self.down]
            .map(each)
            .iter()
            .fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }
}

impl MixtureOp {
    /// True if rows are sorted by expert. A single row never is.
    fn sorts(&self, run: &Run<'_>, rows: u32) -> bool {
        let all = [&self.gate, &self.up, &self.down].map(|weight| run.weights.elements(weight.number));
        let of_row = all.iter().sum::<u64>() / self.count as u64 * self.router.router.k as u64;
        rows > 1 && (rows as usize > MOST_UNSORTED || of_row * u64::from(rows) > MOST_UNSORTED_WEIGHTS)
    }

    fn launch_few(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let Self { gate, up, down, few, .. } = self;
        let (x, rows) = run.tensor(&self.x).rows();
        let shares = self.shares(run);
        let slots = rows * shares.chosen;
        let gated = Ptr::new(run.buffer(few.gated));
        let [gate_bias, up_bias, down_bias] =
            [0, 1, 2].map(|i| self.biases[i].as_ref().map_or(Ptr::NONE, |bias| run.tensor(bias).floats()));
        let (alpha, limit) = match self.unit {
            GatedUnit::Clamped(unit) => (unit.alpha, unit.limit),
            _ => (0.0, 0.0),
        };
        let gates = ExpertGatesParams {
            x,
            experts: shares.experts,
            y: gated,
            weights: [gate.tiles.data, up.tiles.data],
            factors: [gate.tiles.factor, up.tiles.factor],
            slots,
            chosen: shares.chosen,
            inputs: gate.inputs as u32,
            subs: gate.tiles.subs as u32,
            tiles: gate.each(self.count),
            function: self.function(),
            experts_count: self.count as u32,
            alpha,
            limit,
            biases: [gate_bias, up_bias],
        };
        run.launch(&few.gates, gates.tiles, slots as usize, THREADS, 0, &gates)?;
        let downs = ExpertDownParams {
            x: gated,
            weights: down.tiles.data,
            shares,
            residual: self.residual(run),
            y: run.tensor(&self.out).floats(),
            factor: down.tiles.factor,
            rows,
            inputs: down.inputs as u32,
            subs: down.tiles.subs as u32,
            tiles: down.each(self.count),
            bias: down_bias,
        };
        run.launch(&few.down, downs.tiles, rows as usize, DOWN_THREADS, 0, &downs)
    }

    fn launch_sorted(&self, run: &Run<'_>, sorted: &Sorted) -> Result<(), DriverError> {
        let Self { gate, up, down, .. } = self;
        let (x, rows) = run.tensor(&self.x).rows();
        let shares = self.shares(run);
        let (slots, experts) = (rows * shares.chosen, self.count as u32);
        let number = size(slots, experts);
        let variant = &VARIANTS[number];
        let plan = sorted.plan_buffers.addresses(run);
        let planned = ExpertPlanParams {
            experts: shares.experts,
            plan,
            slots,
            experts_count: experts,
            block_rows: variant.rows,
            aligned: variant.rows.min(PANEL_ROWS as u32),
        };
        run.launch(&sorted.plan, experts, 1, THREADS, 0, &planned)?;
        let [(panels, row_scale), (gated, gated_scale)] = [&sorted.x, &sorted.gated]
            .map(|panels| (Ptr::new(run.buffer(panels.data)), Ptr::new(run.buffer(panels.row_scale))));
        let rounded = ExpertPanelsParams {
            x,
            places: plan.places,
            panels,
            row_scale,
            gated,
            gated_scale,
            largest: sorted.largest,
            chosen: shares.chosen,
            inputs: gate.inputs as u32,
            subs: sorted.x.subs as u32,
            gated_width: down.inputs as u32,
            gated_subs: sorted.gated.subs as u32,
        };
        run.launch(&sorted.panels, rows, 1, panel_threads(rows, rounded.inputs), 0, &rounded)?;
        let raise = [gate, up].map(|weight| weight.tiles.raise());
        let gates = ExpertGemmParams {
            weights: [gate.tiles.data, up.tiles.data],
            raise,
            scale: [gate.tiles.factor / raise[0], up.tiles.factor / raise[1]],
            panels,
            row_scale,
            plan,
            y: Ptr::NONE,
            gated,
            gated_scale,
            tiles: gate.each(self.count),
            subs: sorted.x.subs as u32,
            gated_subs: sorted.gated.subs as u32,
            function: self.function(),
        };
        self.multiply(run, &sorted.gates[number], number, slots, &gates)?;
        let (raise, products) = (down.tiles.raise(), Ptr::new(run.buffer(sorted.products)));
        let product = ExpertGemmParams {
            weights: [down.tiles.data, Ptr::NONE],
            raise: [raise; 2],
            scale: [down.tiles.factor / raise; 2],
            panels: gated,
            row_scale: gated_scale,
            y: products,
            tiles: down.each(self.count),
            subs: sorted.gated.subs as u32,
            ..gates
        };
        self.multiply(run, &sorted.down[number], number, slots, &product)?;
        let width = product.tiles * 16;
        let sum = ExpertSumParams {
            x: products,
            shares,
            residual: self.residual(run),
            y: run.tensor(&self.out).floats(),
            rows,
            width,
        };
        run.launch(&sorted.sum, width.div_ceil(THREADS), rows as usize, THREADS, 0, &sum)
    }

    /// Queues a product of sorted rows.
    fn multiply(
        &self,
        run: &Run<'_>,
        kernel: &Kernel,
        number: usize,
        slots: u32,
        params: &ExpertGemmParams,
    ) -> Result<(), DriverError> {
        let row_blocks = slots / block_rows(number) + slots.min(self.count as u32);
        multiply_blocks(run, kernel, number, row_blocks, params)
    }

    fn shares(&self, run: &Run<'_>) -> ExpertShares {
        let scales = self.scales.as_ref().map_or(Ptr::NONE, |scales| run.tensor(scales).floats());
        ExpertShares {
            experts: run.tensor(&self.router.experts).integers(),
            weights: run.tensor(&self.router.weights).floats(),
            scales,
            factor: self.factor,
            chosen: self.router.router.k as u32,
            experts_count: self.count as u32,
        }
    }

    fn residual(&self, run: &Run<'_>) -> Rows {
        self.residual.as_ref().map_or(Rows::NONE, |residual| run.tensor(residual).rows().0)
    }

    fn function(&self) -> u32 {
        self.unit.activation().map_or(UNIT_CLAMPED, |activation| unary(activation).0)
    }
}

impl PlanBuffers {
    pub(crate) fn addresses(&self, run: &Run<'_>) -> ExpertPlan {
        let [count, slots, blocks] =
            [self.counts, self.slots, self.blocks].map(|buffer| Ptr::new(run.buffer(buffer)));
        let places = self.places.map_or(Ptr::NONE, |places| Ptr::new(run.buffer(places)));
        ExpertPlan { count, places, slots, blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_grow_with_the_rows_of_an_expert() {
        let rows = |slots, experts| VARIANTS[size(slots, experts)].rows;
        // Eight of 128 experts: 16 and 64 sequences together, a chunk of a prompt, and a long one.
        assert_eq!([16, 64, 2048, 8192].map(|count| rows(count * 8, 128)), [16, 16, 128, 128]);
        // Four of 32.
        assert_eq!([16, 512, 2048].map(|count| rows(count * 4, 32)), [16, 128, 128]);
    }

    #[test]
    fn every_plan_has_room() {
        // Slots may all choose one expert, or each another.
        for (slots, experts) in [(1, 1), (7, 3), (64, 128), (4096, 128), (100_000, 1024)] {
            for used in [1, slots.min(experts)] {
                let (rows, rest) = (slots / used, slots % used);
                for Variant { rows: block, .. } in VARIANTS.map(|variant| variant) {
                    let block = block as usize;
                    let of =
                        |rows: usize| (rows.div_ceil(block), rows.next_multiple_of(block.min(PANEL_ROWS)));
                    let (blocks, positions) = of(rows);
                    let (more_blocks, more_positions) = of(rows + 1);
                    assert!(blocks * (used - rest) + more_blocks * rest <= most_blocks(slots, experts));
                    assert!(
                        positions * (used - rest) + more_positions * rest <= most_positions(slots, experts)
                    );
                }
            }
        }
    }
}
