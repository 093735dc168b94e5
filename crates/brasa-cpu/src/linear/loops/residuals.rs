//! Products of activations with residuals: each row counts as two, its codes and its residual.
//!
//! `y = W·codes + W·residual`, in this order for any number of rows. Both are multiplied as any other row is, by every
//! kernel, and added at last.
#![expect(unsafe_code, reason = "several threads write one output")]

use super::super::layout::LANES;
use super::super::operands::{Output, RowMap, RowPair};
use super::super::ranges::parts;
use super::Products;
use crate::shared::SharedSlice;

/// Strips at once: their results are added while they are near.
const STRIPS: usize = 8;

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(in super::super) struct Scratch {
    pairs: Vec<RowPair>,
    results: Vec<f32>,
}

/// Writes the wanted products of rows whose residuals begin with row `first_residual`. `multiply` makes products of single rows.
pub(in super::super) fn multiply(
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
    let stride = STRIPS * LANES;
    if results.len() < 2 * rows * stride {
        results.resize(2 * rows * stride, 0.0);
    }
    for strips in parts(wanted.strips.clone(), STRIPS) {
        let column = -(strips.start * LANES).cast_signed();
        let both = Output { values: SharedSlice::new(results), stride, column };
        let map = RowMap::Pairs(pairs);
        // SAFETY: this thread's own memory.
        multiply(&unsafe { Products::new(wanted.isa, wanted.input, map, &both, wanted.n, strips.clone()) });
        for row in 0..rows {
            // SAFETY: gone before other memory is asked for.
            let y = unsafe { wanted.results(row, strips.clone()) };
            let (codes, residuals) = (&results[row * stride..], &results[(rows + row) * stride..]);
            for ((y, codes), residual) in y.iter_mut().zip(codes).zip(residuals) {
                *y = codes + residual;
            }
        }
    }
}
