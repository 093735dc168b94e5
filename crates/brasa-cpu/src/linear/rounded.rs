//! Many rows times weights, both rounded to bf16.
//!
//! The rounded weights of a **chunk** of a few panels, 16 outputs each, lie in the second cache while all rows go by, 32 at a
//! time. A tile unit keeps the sums of 32 rows and 32 outputs in its registers; a product, 16 cycles long, takes a
//! kilobyte of operands. Results are written when the rows have met the whole chunk, up to 512 bytes in a piece: written
//! panel by panel, rows being pages apart, they took as long as the products. `vdpbf16ps` keeps the sums of 16 rows and 16 outputs,
//! in one chain of additions for each, pairs in the order of k: the order of every sum depends on K alone.

use super::float::{self, FloatLayout};
use super::int8;
use super::layout::{LANES, Layout};
use super::products::Products;
use super::rows::{parts, tile_bytes};
use crate::bf16::Bf16Multiplier;
use crate::isa::{Avx512, Avx512Bf16};
use crate::rounded::{ROWS, RoundedRows};
use crate::tiles::{BF16_SIDE, Bf16Factors, Bf16Unit, Bf16Weights, Sums, TileMemory};

/// Rows from which on F16 and BF16 weights are multiplied so: steps that decode a few sequences together compute each
/// as if it were alone.
pub(super) const HALF_ROWS: usize = 9;
/// The same for quantised weights: rounding them takes as long as four groups of 16 rows do, int8 tiles half as long again
/// for a group.
pub(super) const QUANTISED_ROWS: usize = 48;
/// Panels of a chunk at most.
const PANELS: usize = 8;

/// Bytes of the rounded weights of a chunk, where it has more than two panels: half of the second cache.
const fn chunk_bytes(proof: Avx512) -> usize {
    if proof.tiles().is_some() { 1 << 20 } else { 512 << 10 }
}

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    rows: RoundedRows,
    panels: [TileMemory<Bf16Weights>; PANELS],
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
        memory: &'a mut TileMemory<Bf16Weights>,
    ) -> &'a [Bf16Weights] {
        match self {
            Self::Floats(layout, weights) => {
                float::bf16_tiles(bf16, layout, tile_bytes(weights, layout.tile_bytes(), tile), memory)
            }
            Self::Codes(layout, weights) => {
                let packed = tile_bytes(weights, layout.tile_bytes(), tile);
                int8::bf16_tiles(proof, bf16, layout, packed, memory)
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
    let panel_bytes = x.steps() * size_of::<Bf16Weights>();
    let size = (chunk_bytes(proof) / panel_bytes / BF16_SIDE * BF16_SIDE).clamp(BF16_SIDE, PANELS);
    let mut sums = [[Sums([[0.0; LANES]; ROWS]); BF16_SIDE]; PANELS];
    for chunk in parts(products.tiles.len(), size) {
        let tiles = products.tiles.start + chunk.start..products.tiles.start + chunk.end;
        let mut panels: [&[_]; PANELS] = [&[]; PANELS];
        for ((panel, memory), tile) in panels.iter_mut().zip(&mut scratch.panels).zip(tiles.clone()) {
            *panel = weights.panel(proof, bf16, tile, memory);
        }
        for rows in parts(products.rows(), BF16_SIDE * ROWS) {
            let groups = rows.start / ROWS..rows.end.div_ceil(ROWS);
            let a: [_; BF16_SIDE] =
                std::array::from_fn(|side| x.tiles((groups.start + side).min(groups.end - 1)));
            for (panels, sums) in panels[..tiles.len()].chunks(BF16_SIDE).zip(sums.chunks_mut(BF16_SIDE)) {
                let mut sums = sums.iter_mut().map(|sums| &mut sums[..groups.len()]);
                let mut c: [&mut [Sums<f32>]; BF16_SIDE] =
                    std::array::from_fn(|_| sums.next().unwrap_or_default());
                let factors = Bf16Factors { a: &a[..groups.len()], rows: rows.len(), b: panels };
                unit.sum_bf16::<false>(factors, &mut c[..panels.len()]);
            }
            for (at, row) in rows.enumerate() {
                products.store_run(row, &tiles, sums.iter().map(|sums| &sums[at / ROWS].0[at % ROWS]));
            }
        }
    }
}
