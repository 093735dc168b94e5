//! Many rows times the other side of weights, both rounded to bf16: sums run over the weights' outputs.
//!
//! The turned weights of a chunk of [`PANELS`] panels and [`STEPS`] tiles lie in the second cache while all rows go by, 32 at a
//! time. Longer sums are made of pieces of [`STEPS`] tiles, which are added in order: the order of every sum depends on the
//! number of outputs alone.

use std::ops::Range;

use super::super::kernels::turn::{HalfTile, tile_of_codes, tile_of_floats, turn};
use super::super::layout::LANES;
use super::super::operands::Output;
use super::super::ranges::parts;
use super::bf16::{Proofs, Weights};
use super::strip_run;
use crate::bf16::Bf16Multiplier;
use crate::rounded::{ROWS, RoundedView};
use crate::tiles::{BF16_INPUTS, BF16_SIDE, Bf16Factors, Bf16MatrixUnit, Bf16Weights, Sums, TileMemory};

/// Panels of a chunk: 256 columns.
const PANELS: usize = 16;
/// Tiles of a panel that are together at a time: 1024 summed elements.
const STEPS: usize = 32;

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(in super::super) struct Scratch {
    panels: [TileMemory<Bf16Weights>; PANELS],
    sums: Vec<[Sums<f32>; BF16_SIDE]>,
}

/// Strips of weights, and the first of the outputs that they make, a multiple of 16.
#[derive(Clone, Copy)]
pub(in super::super) struct Strips<'a> {
    pub weights: Weights<'a>,
    pub first_output: usize,
    pub count: usize,
}

/// Writes the products of rows of `y` and some columns of the weights. Columns are whole tiles.
#[expect(unsafe_code, reason = "several threads write one output")]
pub(in super::super) fn multiply(
    (proof, bf16): Proofs,
    strips: &[Strips<'_>],
    (y, rows): (RoundedView<'_>, usize),
    columns: &Range<usize>,
    output: &Output<'_>,
    scratch: &mut Scratch,
) {
    let unit = Bf16Multiplier::new(proof, bf16);
    let Scratch { panels: memory, sums } = scratch;
    sums.resize(PANELS, [Sums([[0.0; LANES]; ROWS]); BF16_SIDE]);
    for columns in parts(columns.clone(), PANELS * LANES) {
        for steps in parts(0..y.steps(), STEPS) {
            for panel in &mut *memory {
                panel.reserve(STEPS);
                // Where there is no strip for the second half.
                panel[steps.len() - 1] = [[[0; 2]; LANES]; ROWS];
            }
            for strips in strips {
                strips.turn((proof, bf16), &columns, &steps, memory);
            }
            let panels: [&[Bf16Weights]; PANELS] = std::array::from_fn(|panel| &memory[panel][..steps.len()]);
            for rows in parts(0..rows, BF16_SIDE * ROWS) {
                let groups = rows.start / ROWS..rows.end.div_ceil(ROWS);
                let tiles: [_; BF16_SIDE] = std::array::from_fn(|side| {
                    &y.tiles((groups.start + side).min(groups.end - 1))[steps.clone()]
                });
                let count = columns.len() / LANES;
                for (panels, sums) in panels[..count].chunks(BF16_SIDE).zip(sums.chunks_mut(BF16_SIDE)) {
                    let mut sums = sums.iter_mut().map(|sums| &mut sums[..groups.len()]);
                    let mut c: [&mut [Sums<f32>]; BF16_SIDE] =
                        std::array::from_fn(|_| sums.next().unwrap_or_default());
                    let factors = Bf16Factors { a: &tiles[..groups.len()], rows: rows.len(), b: panels };
                    unit.sum_bf16::<false>(factors, &mut c[..panels.len()]);
                }
                for (at, row) in rows.enumerate() {
                    // SAFETY: by the caller's promise about `output`, and gone before others are asked for.
                    let out = unsafe { output.row(row, columns.clone()) };
                    for (out, sums) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(&*sums) {
                        let sums = &sums[at / ROWS].0[at % ROWS];
                        if steps.start == 0 {
                            *out = *sums;
                        } else {
                            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
                        }
                    }
                }
            }
        }
    }
}

impl Strips<'_> {
    /// Turns what these strips hold of some columns and tiles.
    fn turn(
        &self,
        (proof, bf16): Proofs,
        columns: &Range<usize>,
        steps: &Range<usize>,
        panels: &mut [TileMemory<Bf16Weights>; PANELS],
    ) {
        // Strips by their number among all strips of 16 outputs.
        let first = self.first_output / LANES;
        let wanted = (2 * steps.start).max(first)..(2 * steps.end).min(first + self.count);
        let mut memory = [[[0; 2]; LANES]; ROWS];
        for strip in wanted {
            let own = strip - first..strip - first + 1;
            let step = strip / 2 - steps.start;
            for (pair, block) in (columns.start / BF16_INPUTS..columns.end / BF16_INPUTS).enumerate() {
                let tile = match self.weights {
                    Weights::Floats(layout, packed) => {
                        let packed = strip_run(packed, layout.strip_bytes(), &own);
                        tile_of_floats(proof, bf16, layout, packed, block, &mut memory)
                    }
                    Weights::Codes(layout, packed) => {
                        let packed = strip_run(packed, layout.strip_bytes(), &own);
                        tile_of_codes(proof, bf16, layout, packed, block, &mut memory)
                    }
                };
                let (first, second) = panels[2 * pair..].split_at_mut(1);
                let halves = [&mut first[0][step], &mut second[0][step]].map(|tile| half(tile, strip % 2));
                turn(proof, tile, halves);
            }
        }
    }
}

fn half(tile: &mut Bf16Weights, half: usize) -> &mut HalfTile {
    &mut tile.as_chunks_mut::<{ ROWS / 2 }>().0[half]
}
