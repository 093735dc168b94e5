//! Many rows in groups of 16: products on a tile unit, and of bf16 without one.
//!
//! Rows are gathered once for all tiles of outputs that a thread makes, then outputs go by, a few tiles at a time.

use std::ops::Range;

use super::float::{BF16_PANELS, Bf16Panel, Bf16Products, Bf16RowTiles, FloatLayout};
use super::int8::{self, Panel, Results, RowTiles, TileProducts};
use super::layout::{LANES, Layout};
use super::rows::parts;
use crate::Isa;
use crate::isa::{Avx512, Avx512Bf16};
use crate::quantize::QuantizedRow;
use crate::tiles::{Sums, Tiles};

/// Rows from which on floats are rounded to bf16, where that is allowed: steps that decode a few sequences together
/// compute each as if it were alone.
pub(super) const BF16_ROWS: usize = 9;
/// Activations of a pass: a megabyte as bf16, half of the second cache of processors with tiles. Half as many were a little
/// slower on Zen 4 with F16, whose weights are rounded once a pass.
const BF16_PASS: usize = 512 << 10;
/// Rows of a pass at least.
const BF16_PASS_ROWS: usize = 64;

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    panels: [Panel; int8::PANELS],
    rows: RowTiles,
    bf16_panels: [Bf16Panel; BF16_PANELS],
    bf16_rows: Bf16RowTiles,
    bf16_results: [Vec<Sums<f32>>; BF16_PANELS],
}

/// Writes the products of `tiles` and all rows: `x(row)` are activations, `y(row, tile)` is where results go.
pub(super) fn multiply_int8<'a, 'y>(
    proof: Avx512,
    unit: Tiles,
    layout: &Layout,
    weights: &[u8],
    rows: usize,
    x: impl Fn(usize) -> QuantizedRow<'a>,
    tiles: Range<usize>,
    y: impl Fn(usize, usize) -> &'y mut [f32],
    scratch: &mut Scratch,
) {
    let mut products = TileProducts::new(proof, unit, layout);
    for pass in parts(rows, int8::PASS_ROWS) {
        for blocks in parts(layout.blocks, int8::PANEL_BLOCKS) {
            scratch.rows.gather(layout.shape, pass.len(), &blocks, |row| x(pass.start + row));
            for tiles in
                parts(tiles.len(), int8::PANELS).map(|part| tiles.start + part.start..tiles.start + part.end)
            {
                for (panel, tile) in scratch.panels.iter_mut().zip(tiles.clone()) {
                    let packed = &weights[tile * layout.tile_bytes()..][..layout.tile_bytes()];
                    int8::fill_panel(Isa::Avx512(proof), layout, packed, &blocks, panel);
                }
                for rows in parts(pass.len(), int8::GROUPS * LANES) {
                    let groups = rows.start / LANES..rows.end.div_ceil(LANES);
                    let rows = pass.start + rows.start..pass.start + rows.end;
                    let mut results: Results = [[Sums([[0.0; LANES]; LANES]); int8::GROUPS]; int8::PANELS];
                    if blocks.start > 0 {
                        for (tile, results) in tiles.clone().zip(&mut results) {
                            for (row, result) in
                                rows.clone().zip(results.iter_mut().flat_map(|sums| &mut sums.0))
                            {
                                let y = y(row, tile);
                                result[..y.len()].copy_from_slice(y);
                            }
                        }
                    }
                    products.multiply(&scratch.panels[..tiles.len()], &scratch.rows, &groups, &mut results);
                    for (tile, results) in tiles.clone().zip(&results) {
                        for (row, result) in rows.clone().zip(results.iter().flat_map(|sums| &sums.0)) {
                            let y = y(row, tile);
                            y.copy_from_slice(&result[..y.len()]);
                        }
                    }
                }
            }
        }
    }
}

/// The same for floats, rounded to bf16.
pub(super) fn multiply_bf16<'a, 'y>(
    (bf16, proof): (Avx512Bf16, Avx512),
    layout: &FloatLayout,
    weights: &[u8],
    rows: usize,
    x: impl Fn(usize) -> &'a [f32],
    tiles: Range<usize>,
    y: impl Fn(usize, usize) -> &'y mut [f32],
    scratch: &mut Scratch,
) {
    let products = Bf16Products::new(proof, bf16);
    let pass_rows = (BF16_PASS / layout.k / BF16_PASS_ROWS * BF16_PASS_ROWS).max(BF16_PASS_ROWS);
    for pass in parts(rows, pass_rows) {
        scratch.bf16_rows.gather(bf16, layout.k, pass.len(), |row| x(pass.start + row));
        for part in parts(tiles.len(), BF16_PANELS) {
            let tiles = tiles.start + part.start..tiles.start + part.end;
            let mut panels: [&[_]; BF16_PANELS] = [&[]; BF16_PANELS];
            for ((to, panel), tile) in panels.iter_mut().zip(&mut scratch.bf16_panels).zip(tiles.clone()) {
                *to = panel.of(bf16, layout, &weights[tile * layout.tile_bytes()..][..layout.tile_bytes()]);
            }
            let results = &mut scratch.bf16_results;
            products.multiply(&panels[..tiles.len()], &scratch.bf16_rows, pass.len(), results);
            for (tile, results) in tiles.zip(results) {
                for (row, result) in pass.clone().zip(results.iter().flat_map(|sums| &sums.0)) {
                    let y = y(row, tile);
                    y.copy_from_slice(&result[..y.len()]);
                }
            }
        }
    }
}
