//! Many rows times weights, both rounded to bf16.
//!
//! The rounded weights of a **chunk** of a few panels, 16 outputs each, lie in the second cache while all rows go by, 32 at a
//! time. A matrix unit keeps the sums of 32 rows and 32 outputs in its registers; a product, 16 cycles long, takes a
//! kilobyte of operands. Results are written when the rows have met the whole chunk, up to a kilobyte in a piece: written
//! panel by panel, rows being pages apart, they took as long as the products. A gate and its factor make up half a chunk each,
//! and only their product is written. `vdpbf16ps` keeps the sums of 16 rows and 16 outputs,
//! in one chain of additions for each, pairs in the order of k: the order of every sum depends on K alone.

use super::super::float_layout::FloatLayout;
use super::super::kernels::to_bf16;
use super::super::layout::{LANES, Lanes, Layout};
use super::super::operands::Output;
use super::super::ranges::parts;
use super::{Products, strip_run};
use crate::bf16::Bf16Multiplier;
use crate::isa::{Avx512, Avx512Bf16};
use crate::rounded::{ROWS, RoundedRows, RoundedView};
use crate::tiles::{BF16_SIDE, Bf16Factors, Bf16MatrixUnit, Bf16Weights, Sums, TileMemory};

/// Panels of a chunk at most.
const PANELS: usize = 16;

/// Panels at a time of `panels` of `steps` tiles each: their rounded weights stay in half of the second cache, beside the rows
/// that go by, and chunks are about equally large.
fn panels_at_once(proof: Avx512, steps: usize, panels: usize) -> usize {
    let (bytes, most) = if proof.tiles().is_some() { (1 << 20, PANELS) } else { (512 << 10, PANELS / 2) };
    let fit = (bytes / (steps * size_of::<Bf16Weights>())).clamp(BF16_SIDE, most);
    panels.div_ceil(panels.div_ceil(fit).max(1)).next_multiple_of(BF16_SIDE).clamp(BF16_SIDE, most)
}

/// Proofs of the instructions for bf16 products.
pub(in super::super) type Proofs = (Avx512, Avx512Bf16);

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(in super::super) struct Scratch {
    rows: RoundedRows,
    pub chunk: Chunk,
}

/// Memory for a chunk: its weights, and the products of some rows with them by panel and group of rows.
#[derive(Default)]
pub(in super::super) struct Chunk {
    panels: [TileMemory<Bf16Weights>; PANELS],
    sums: Vec<[Sums<f32>; BF16_SIDE]>,
}

/// Packed weights that can be rounded.
#[derive(Clone, Copy)]
pub(in super::super) enum Weights<'a> {
    Floats(&'a FloatLayout, &'a [u8]),
    Codes(&'a Layout, &'a [u8]),
}

impl<'a> Weights<'a> {
    /// The tiles of 32 inputs of a strip's 16 outputs.
    fn panel(
        self,
        (proof, bf16): Proofs,
        strip: usize,
        memory: &'a mut TileMemory<Bf16Weights>,
    ) -> &'a [Bf16Weights] {
        let strip = strip..strip + 1;
        match self {
            Self::Floats(layout, weights) => {
                let packed = strip_run(weights, layout.strip_bytes(), &strip);
                to_bf16::of_floats(proof, bf16, layout, packed, memory)
            }
            Self::Codes(layout, weights) => {
                let packed = strip_run(weights, layout.strip_bytes(), &strip);
                to_bf16::of_codes(proof, bf16, layout, packed, memory)
            }
        }
    }
}

/// Writes the wanted products.
pub(in super::super) fn multiply(
    proofs: Proofs,
    weights: Weights<'_>,
    wanted: &Products<'_>,
    scratch: &mut Scratch,
) {
    let x = wanted.rounded(&mut scratch.rows);
    let rounding = Rounding::new(proofs, x, wanted.rows());
    for strips in parts(wanted.strips.clone(), panels_at_once(proofs.0, x.steps(), wanted.strips.len())) {
        let chosen = strips.clone().map(|strip| (weights, strip));
        rounding.multiply(chosen, &mut scratch.chunk, |row, sums| {
            wanted.store_run(row, &strips, (0..strips.len()).map(|panel| sums.of_panel(panel)));
        });
    }
}

/// Two weights whose products with a row belong together.
pub(in super::super) struct Gated<'a> {
    pub gate: Weights<'a>,
    pub up: Weights<'a>,
    /// The first strip of gate and of up.
    pub first_strips: [usize; 2],
    /// Outputs of each.
    pub outputs: usize,
}

/// Gives `finish` the products of each row with consecutive outputs of the gate and of `up`.
///
/// `output` holds the products of the gate until `finish` replaces them.
#[expect(unsafe_code, reason = "several threads write one output")]
pub(in super::super) fn multiply_gated(
    proofs: Proofs,
    weights: &Gated<'_>,
    (x, rows): (RoundedView<'_>, usize),
    output: &Output<'_>,
    memory: &mut Chunk,
    finish: impl Fn(&mut [f32], &[f32]),
) {
    let rounding = Rounding::new(proofs, x, rows);
    let pairs = weights.outputs.div_ceil(LANES);
    for pairs in parts(0..pairs, panels_at_once(proofs.0, x.steps(), 2 * pairs) / 2) {
        let columns = pairs.start * LANES..weights.outputs.min(pairs.end * LANES);
        let of = |weights, first: usize| pairs.clone().map(move |strip| (weights, first + strip));
        let [gate, up] = weights.first_strips;
        let chosen = of(weights.gate, gate).chain(of(weights.up, up));
        rounding.multiply(chosen, memory, |row, sums| {
            let mut ups = [0.0; PANELS / 2 * LANES];
            // SAFETY: by the caller's promise about `output`, and gone before others are asked for.
            let gates = unsafe { output.row(row, columns.clone()) };
            for (at, (gates, ups)) in gates.chunks_mut(LANES).zip(ups.chunks_mut(LANES)).enumerate() {
                gates.copy_from_slice(&sums.of_panel(at)[..gates.len()]);
                ups.copy_from_slice(sums.of_panel(pairs.len() + at));
            }
            finish(gates, &ups[..columns.len()]);
        });
    }
}

/// Rows that chunk after chunk of weights is multiplied with.
struct Rounding<'a> {
    proofs: Proofs,
    unit: Bf16Multiplier,
    x: RoundedView<'a>,
    rows: usize,
}

/// The products of a row and a chunk.
#[derive(Clone, Copy)]
struct RowSums<'a> {
    all: &'a [[Sums<f32>; BF16_SIDE]],
    row: usize,
}

impl<'a> RowSums<'a> {
    fn of_panel(self, panel: usize) -> &'a Lanes {
        &self.all[panel][self.row / ROWS].0[self.row % ROWS]
    }
}

impl<'a> Rounding<'a> {
    fn new(proofs: Proofs, x: RoundedView<'a>, rows: usize) -> Self {
        Self { proofs, unit: Bf16Multiplier::new(proofs.0, proofs.1), x, rows }
    }

    /// Gives the products of every row, in order, with at most [`PANELS`] strips of weights.
    fn multiply<'w>(
        &self,
        chosen: impl Iterator<Item = (Weights<'w>, usize)>,
        memory: &'w mut Chunk,
        mut each: impl FnMut(usize, RowSums<'_>),
    ) {
        let mut panels: [&[_]; PANELS] = [&[]; PANELS];
        let mut count = 0;
        for ((panel, memory), (weights, strip)) in panels.iter_mut().zip(&mut memory.panels).zip(chosen) {
            *panel = weights.panel(self.proofs, strip, memory);
            count += 1;
        }
        let sums = &mut memory.sums;
        sums.resize(PANELS, [Sums([[0.0; LANES]; ROWS]); BF16_SIDE]);
        for rows in parts(0..self.rows, BF16_SIDE * ROWS) {
            let groups = rows.start / ROWS..rows.end.div_ceil(ROWS);
            let a: [_; BF16_SIDE] =
                std::array::from_fn(|side| self.x.tiles((groups.start + side).min(groups.end - 1)));
            for (panels, sums) in panels[..count].chunks(BF16_SIDE).zip(sums.chunks_mut(BF16_SIDE)) {
                let mut sums = sums.iter_mut().map(|sums| &mut sums[..groups.len()]);
                let mut c: [&mut [Sums<f32>]; BF16_SIDE] =
                    std::array::from_fn(|_| sums.next().unwrap_or_default());
                let factors = Bf16Factors { a: &a[..groups.len()], rows: rows.len(), b: panels };
                self.unit.sum_bf16::<false>(factors, &mut c[..panels.len()]);
            }
            for (at, row) in rows.enumerate() {
                each(row, RowSums { all: sums, row: at });
            }
        }
    }
}
