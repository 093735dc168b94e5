//! Few rows times codes, which are unpacked as they stream from memory.

use super::super::kernels::{self, MOST_ROWS, Turn};
use super::super::layout::{LANES, Layout};
use super::super::ranges::{groups, parts};
use super::{Products, strip_run};
use crate::quantize::QuantizedRow;

/// Results of a run of strips: a call costs little beside eight strips.
const RUN_RESULTS: usize = 8 * MOST_ROWS;

/// Writes the wanted products.
pub(in super::super) fn multiply(wanted: &Products<'_>, layout: &Layout, weights: &[u8]) {
    let mut x = [QuantizedRow::default(); MOST_ROWS];
    let mut out = [[0.0; LANES]; RUN_RESULTS];
    let of = wanted.rows();
    for strips in parts(wanted.strips.clone(), RUN_RESULTS / of.clamp(1, MOST_ROWS)) {
        let packed = strip_run(weights, layout.strip_bytes(), &strips);
        for rows in groups(0..of, kernels::rows_at_once) {
            let (x, out) = (&mut x[..rows.len()], &mut out[..strips.len() * rows.len()]);
            wanted.gather_int8(&rows, x);
            let turn = Turn { first: rows.start, of };
            kernels::multiply_strips(wanted.isa, layout, packed, x, turn, out);
            for (at, row) in rows.clone().enumerate() {
                wanted.store_run(row, &strips, out[at..].iter().step_by(rows.len()));
            }
        }
    }
}
