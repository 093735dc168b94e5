//! Products of activations whose rounding is made good: each row counts as two, its codes and the rest that they leave.
//!
//! `y = W·codes + W·rest`, in this order and whatever the number of rows: both are made as any other row is, by every
//! kernel, and added at last.
#![expect(unsafe_code, reason = "several threads write one output")]

use std::ops::Range;

use super::layout::LANES;
use super::operands::{Input, Output, RowMap, RowPair};
use super::products::Products;
use super::rows::parts;
use crate::Isa;
use crate::shared::SharedSlice;

/// Tiles at once: their results are added while they are near.
const TILES: usize = 8;

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    pairs: Vec<RowPair>,
    results: Vec<f32>,
}

/// Writes the outputs of `tiles` for the mapped rows, whose rests begin with row `first_rest`; `multiply` makes those of single rows.
///
/// # Safety
///
/// No one else touches these outputs meanwhile.
pub(super) unsafe fn multiply(
    isa: Isa,
    (input, first_rest): (&Input<'_>, usize),
    map: RowMap<'_>,
    output: &Output<'_>,
    n: usize,
    tiles: Range<usize>,
    scratch: &mut Scratch,
    mut multiply: impl FnMut(&Products<'_>),
) {
    let Scratch { pairs, results } = scratch;
    let rows = map.len();
    pairs.clear();
    pairs.extend((0..rows).map(|row| RowPair { x: map.x(row) as u32, y: row as u32 }));
    pairs
        .extend((0..rows).map(|row| RowPair { x: (first_rest + map.x(row)) as u32, y: (rows + row) as u32 }));
    let width = TILES * LANES;
    if results.len() < 2 * rows * width {
        results.resize(2 * rows * width, 0.0);
    }
    for part in parts(tiles.len(), TILES) {
        let tiles = tiles.start + part.start..tiles.start + part.end;
        let columns = tiles.start * LANES..n.min(tiles.end * LANES);
        let column = -columns.start.cast_signed();
        let both = Output { values: SharedSlice::new(results), stride: width, column };
        // SAFETY: this thread's own memory.
        multiply(&unsafe { Products::new(isa, input, RowMap::Pairs(pairs), &both, n, tiles) });
        for row in 0..rows {
            // SAFETY: by the contract, one row at a time.
            let y = unsafe { output.row(map.y(row), columns.clone()) };
            let (codes, rests) = (&results[row * width..], &results[(rows + row) * width..]);
            for ((y, codes), rests) in y.iter_mut().zip(codes).zip(rests) {
                *y = codes + rests;
            }
        }
    }
}
