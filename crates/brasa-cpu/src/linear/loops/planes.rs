//! Few rows times codes, which are unpacked as they stream from memory.

use super::super::kernels::{self, MOST_ROWS, PAIR_ROWS, Turn};
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
    // Rows that are left over are filled up there: a kernel of fewer rows takes longer than one of four.
    let least = if kernels::pairs_strips(wanted.isa, layout, of) { PAIR_ROWS } else { 1 };
    let at_once = |left: usize| if left < least { left } else { kernels::rows_at_once(left) };
    for strips in parts(wanted.strips.clone(), RUN_RESULTS / of.clamp(1, MOST_ROWS)) {
        let packed = strip_run(weights, layout.strip_bytes(), &strips);
        for rows in groups(0..of, at_once) {
            let taken = rows.len().max(least);
            let (x, out) = (&mut x[..taken], &mut out[..strips.len() * taken]);
            wanted.gather_int8(&rows, &mut x[..rows.len()]);
            let last = x[rows.len() - 1];
            x[rows.len()..].fill(last);
            let turn = Turn { first: rows.start, of };
            kernels::multiply_strips(wanted.isa, layout, packed, x, turn, out);
            for (at, row) in rows.clone().enumerate() {
                wanted.store_run(row, &strips, out[at..].iter().step_by(taken));
            }
        }
    }
}
