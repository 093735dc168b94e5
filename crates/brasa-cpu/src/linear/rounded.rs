//! Many rows times weights, both rounded to bf16.
//!
//! A tile unit keeps the sums of 32 rows and 32 outputs in its registers while [`SLICE_STEPS`] tiles of inputs go by; where
//! K is longer, sums wait in the output. The rounded weights of two panels, 128 KiB, meet all rows of a pass before the next two
//! are rounded, and the rows' inputs, a megabyte, stay in the second cache meanwhile. A product of tiles, 16 cycles
//! long, takes a kilobyte from there. `vdpbf16ps` keeps the sums of 16 rows and 16 outputs, in one chain of additions for
//! each, pairs in the order of k: the order of every sum depends on K alone.

use std::ops::Range;

use super::float::{self, FloatLayout};
use super::int8;
use super::layout::{LANES, Layout};
use super::products::Products;
use super::rows::{parts, tile_bytes};
use crate::bf16::Bf16Multiplier;
use crate::isa::{Avx512, Avx512Bf16};
use crate::rounded::{ROWS, RoundedRows};
use crate::tiles::{BF16_SIDE, Bf16Unit, Bf16Weights, Sums};

/// Rows from which on F16 and BF16 weights are multiplied so: steps that decode a few sequences together compute each
/// as if it were alone.
pub(super) const HALF_ROWS: usize = 9;
/// The same for quantised weights: rounding them takes as long as four groups of 16 rows do, int8 tiles half as long again
/// for a group.
pub(super) const QUANTISED_ROWS: usize = 48;
/// Tiles of inputs that go by together: 1,024 inputs.
const SLICE_STEPS: usize = 32;
/// Rows that the same rounded weights meet.
const PASS_ROWS: usize = 512;
/// Panels of 16 outputs that go by together.
const PANELS: usize = BF16_SIDE;

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    rows: RoundedRows,
    panels: [Vec<Bf16Weights>; PANELS],
}

/// Packed weights that can be rounded.
#[derive(Clone, Copy)]
pub(super) enum Weights<'a> {
    Floats(&'a FloatLayout, &'a [u8]),
    Codes(&'a Layout, &'a [u8]),
}

impl<'a> Weights<'a> {
    /// Tiles of 32 inputs of the 16 outputs of `tile`.
    fn panel(
        self,
        proof: Avx512,
        bf16: Avx512Bf16,
        tile: usize,
        steps: &Range<usize>,
        memory: &'a mut Vec<Bf16Weights>,
    ) -> &'a [Bf16Weights] {
        match self {
            Self::Floats(layout, weights) => {
                float::bf16_tiles(bf16, layout, tile_bytes(weights, layout.tile_bytes(), tile), steps, memory)
            }
            Self::Codes(layout, weights) => {
                let packed = tile_bytes(weights, layout.tile_bytes(), tile);
                int8::bf16_tiles(proof, bf16, layout, packed, steps, memory)
            }
        }
    }
}

/// Writes the products of all rows with the tiles that are asked for.
pub(super) fn multiply(
    (proof, bf16): (Avx512, Avx512Bf16),
    weights: Weights<'_>,
    products: &Products<'_>,
    scratch: &mut Scratch,
) {
    let unit = Bf16Multiplier::new(proof, bf16);
    let x = products.rounded(&mut scratch.rows);
    for pass in parts(products.rows(), PASS_ROWS) {
        for steps in parts(x.steps(), SLICE_STEPS) {
            for part in parts(products.tiles.len(), PANELS) {
                let tiles = products.tiles.start + part.start..products.tiles.start + part.end;
                let mut panels: [&[_]; PANELS] = [&[]; PANELS];
                for ((panel, memory), tile) in panels.iter_mut().zip(&mut scratch.panels).zip(tiles.clone()) {
                    *panel = weights.panel(proof, bf16, tile, &steps, memory);
                }
                for rows in parts(pass.len(), BF16_SIDE * ROWS) {
                    let rows = pass.start + rows.start..pass.start + rows.end;
                    let groups = rows.start / ROWS..rows.end.div_ceil(ROWS);
                    let a: [_; BF16_SIDE] = std::array::from_fn(|side| {
                        x.tiles((groups.start + side).min(groups.end - 1), &steps)
                    });
                    let mut sums = [[Sums([[0.0; LANES]; ROWS]); BF16_SIDE]; PANELS];
                    if steps.start > 0 {
                        for (tile, sums) in tiles.clone().zip(&mut sums) {
                            for (row, sum) in rows.clone().zip(sums.iter_mut().flat_map(|sums| &mut sums.0)) {
                                *sum = products.load(row, tile);
                            }
                        }
                    }
                    let mut c = sums.each_mut().map(|sums| &mut sums[..groups.len()]);
                    unit.add_bf16(
                        &a[..groups.len()],
                        rows.len(),
                        &panels[..tiles.len()],
                        &mut c[..tiles.len()],
                    );
                    for (tile, sums) in tiles.clone().zip(&sums) {
                        for (row, sum) in rows.clone().zip(sums.iter().flat_map(|sums| &sums.0)) {
                            products.store(row, tile, sum);
                        }
                    }
                }
            }
        }
    }
}
