//! Rows times F32, F16 and BF16 weights.

use super::super::float_layout::FloatLayout;
use super::super::kernels::{self, FLOAT_STRIPS, MOST_ROWS};
use super::super::layout::LANES;
use super::super::ranges::{groups, parts};
use super::{Products, strip_run};

/// Activations of a pass over all strips, which stay in the second cache beside the weights.
const PASS_ELEMENTS: usize = 128 << 10;

/// Writes the wanted products.
pub(in super::super) fn multiply(wanted: &Products<'_>, layout: &FloatLayout, weights: &[u8]) {
    // Groups of six rows are the fastest where rows are many.
    let pass_rows = (PASS_ELEMENTS / layout.k).next_multiple_of(6).max(6);
    let mut x: [&[f32]; MOST_ROWS] = [&[]; MOST_ROWS];
    let mut out = [[0.0; LANES]; FLOAT_STRIPS * MOST_ROWS];
    for pass in parts(0..wanted.rows(), pass_rows) {
        for strips in parts(wanted.strips.clone(), FLOAT_STRIPS) {
            let packed = strip_run(weights, layout.strip_bytes(), &strips);
            for rows in groups(pass.clone(), |left| kernels::float_rows_at_once(wanted.isa, left, pass.len()))
            {
                let (x, out) = (&mut x[..rows.len()], &mut out[..strips.len() * rows.len()]);
                for (x, row) in x.iter_mut().zip(rows.clone()) {
                    *x = wanted.float_row(row);
                }
                kernels::multiply_floats(wanted.isa, layout, packed, x, out);
                for (at, row) in rows.clone().enumerate() {
                    wanted.store_run(row, &strips, out[at..].iter().step_by(rows.len()));
                }
            }
        }
    }
}
