//! Products of activations whose rounding is made good: each row counts as two, its codes and the residual that they leave.
//!
//! `y = W·codes + W·residual`, in this order and whatever the number of rows: both are made as any other row is, by every
//! kernel, and added at last.
#![expect(unsafe_code, reason = "several threads write one output")]

use super::layout::LANES;
use super::operands::{Output, RowMap, RowPair};
use super::products::Products;
use super::rows::parts;
use crate::shared::SharedSlice;

/// Tiles at once: their results are added while they are near.
const TILES: usize = 8;

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    pairs: Vec<RowPair>,
    results: Vec<f32>,
}

/// Writes the wanted products of rows whose residuals begin with row `first_residual`; `multiply` makes those of single rows.
pub(super) fn multiply(
    wanted: &Products<'_>,
    first_residual: usize,
    scratch: &mut Scratch,
    mut multiply: impl FnMut(&Products<'_>),
) {
    let Scratch { pairs, results } = scratch;
    let rows = wanted.rows();
    let pair = |x: usize, y: usize| RowPair { x: x as u32, y: y as u32 };
    pairs.clear();
    pairs.extend((0..rows).map(|row| pair(wanted.map.x(row), row)));
    pairs.extend((0..rows).map(|row| pair(first_residual + wanted.map.x(row), rows + row)));
    let stride = TILES * LANES;
    if results.len() < 2 * rows * stride {
        results.resize(2 * rows * stride, 0.0);
    }
    for part in parts(wanted.tiles.len(), TILES) {
        let tiles = wanted.tiles.start + part.start..wanted.tiles.start + part.end;
        let column = -(tiles.start * LANES).cast_signed();
        let both = Output { values: SharedSlice::new(results), stride, column };
        let map = RowMap::Pairs(pairs);
        // SAFETY: this thread's own memory.
        multiply(&unsafe { Products::new(wanted.isa, wanted.input, map, &both, wanted.n, tiles.clone()) });
        for row in 0..rows {
            for (at, tile) in tiles.clone().enumerate() {
                let codes = &results[row * stride + at * LANES..];
                let residuals = &results[(rows + row) * stride + at * LANES..];
                // SAFETY: gone before the next is asked for.
                let y = unsafe { wanted.results(row, tile) };
                for ((y, codes), residuals) in y.iter_mut().zip(codes).zip(residuals) {
                    *y = codes + residuals;
                }
            }
        }
    }
}
