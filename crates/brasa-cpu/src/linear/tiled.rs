//! Rows of int8 in groups of 16, on a tile unit.
//!
//! Many rows are gathered once for all tiles of outputs that a thread makes, then outputs go by, a few tiles at a time.
#![expect(unsafe_code, reason = "several threads write one output")]

use super::int8::{self, FewProducts, Panel, Results, RowTiles, TileProducts};
use super::layout::{LANES, Layout};
use super::products::Products;
use super::rows::parts;
use crate::Isa;
use crate::isa::Avx512;
use crate::tiles::{Sums, Tiles};

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    panels: [Panel; int8::PANELS],
    rows: RowTiles,
}

/// Tiles of weights that up to 16 rows meet at once: calls and results cost little beside them.
const RUN: usize = 8;

/// Writes the products of packed weights and up to 16 rows.
pub(super) fn multiply_few(
    proof: Avx512,
    unit: Tiles,
    layout: &Layout,
    weights: &[u8],
    wanted: &Products<'_>,
    scratch: &mut Scratch,
) {
    scratch.rows.gather(layout.shape, wanted.rows(), &(0..layout.blocks), |row| wanted.int8_row(row));
    let mut products = FewProducts::new(proof, unit, layout, &scratch.rows, wanted.rows());
    let mut results = [Sums([[0.0; LANES]; LANES]); RUN];
    for tiles in parts(wanted.tiles.len(), RUN) {
        let tiles = wanted.tiles.start + tiles.start..wanted.tiles.start + tiles.end;
        let packed = &weights[tiles.start * layout.tile_bytes()..tiles.end * layout.tile_bytes()];
        let results = &mut results[..tiles.len()];
        products.multiply(packed, results);
        for row in 0..wanted.rows() {
            wanted.store_run(row, &tiles, results.iter().map(|sums| &sums.0[row]));
        }
    }
}

/// Writes the products of packed weights and all rows.
pub(super) fn multiply_int8(
    proof: Avx512,
    unit: Tiles,
    layout: &Layout,
    weights: &[u8],
    wanted: &Products<'_>,
    scratch: &mut Scratch,
) {
    let x = |row: usize| wanted.int8_row(row);
    // SAFETY: one at a time.
    let y = |row: usize, tile: usize| unsafe { wanted.results(row, tile) };
    let tiles = wanted.tiles.clone();
    let mut products = TileProducts::new(proof, unit, layout);
    for pass in parts(wanted.rows(), int8::PASS_ROWS) {
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
