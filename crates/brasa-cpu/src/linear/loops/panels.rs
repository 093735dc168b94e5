//! Many rows times codes, of which a part of a strip is unpacked before.
//!
//! Sums wait in the output for the next part of the strip.

use super::super::blocks::Panel;
use super::super::kernels::{self, MOST_ROWS, PAIR_ROWS};
use super::super::layout::{LANES, Layout};
use super::super::ranges::{groups, parts};
use super::{Products, strip_run};
use crate::quantize::QuantizedRow;

/// Blocks of a panel: 2,048 inputs, so that two panels and their scales, 96 KiB, stay in the second cache while all rows
/// pass by, together with the same inputs of those rows while all strips do.
///
/// Shorter panels, which the first cache holds, were slower by the cost of more frequent calls.
pub(super) const PANEL_BLOCKS: usize = 64;
/// Rows of activations that fit the second cache together with a panel.
pub(super) const PASS_ROWS: usize = 256;

/// Writes the wanted products; `panels` is scratch memory.
pub(in super::super) fn multiply(
    wanted: &Products<'_>,
    layout: &Layout,
    weights: &[u8],
    panels: &mut [Panel; 2],
) {
    let together = if kernels::pairs_panels(wanted.isa) { panels.len() } else { 1 };
    let mut x = [QuantizedRow::default(); PASS_ROWS];
    for pass in parts(0..wanted.rows(), PASS_ROWS) {
        wanted.gather_int8(&pass, &mut x);
        let each = parts(0..layout.blocks, PANEL_BLOCKS).flat_map(|blocks| {
            parts(wanted.strips.clone(), together).map(move |strips| (blocks.clone(), strips))
        });
        for (blocks, strips) in each {
            for (strip, panel) in strips.clone().zip(&mut *panels) {
                let packed = strip_run(weights, layout.strip_bytes(), &(strip..strip + 1));
                kernels::fill_panel(wanted.isa, layout, packed, &blocks, panel);
            }
            let pair = strips.len() == panels.len();
            let mut rows = 0..pass.len();
            while pair && rows.len() >= PAIR_ROWS {
                let group = rows.start..rows.start + PAIR_ROWS;
                rows.start = group.end;
                multiply_pair(
                    wanted,
                    layout,
                    panels,
                    (&x[group.clone()], pass.start + group.start),
                    strips.start,
                );
            }
            for (strip, panel) in strips.zip(&*panels) {
                for group in groups(rows.clone(), kernels::rows_at_once) {
                    let mut out = [[0.0; LANES]; MOST_ROWS];
                    let (x, out) = (&x[group.clone()], &mut out[..group.len()]);
                    let rows = pass.start + group.start..pass.start + group.end;
                    if blocks.start > 0 {
                        for (row, out) in rows.clone().zip(&mut *out) {
                            *out = wanted.load(row, strip);
                        }
                    }
                    kernels::multiply_panel(wanted.isa, layout, panel, x, out);
                    for (row, out) in rows.zip(out) {
                        wanted.store(row, strip, out);
                    }
                }
            }
        }
    }
}

/// Adds the products of two panels with [`PAIR_ROWS`] rows, of which the first has the given number, to those of `strip` and of the next.
fn multiply_pair(
    wanted: &Products<'_>,
    layout: &Layout,
    panels: &[Panel; 2],
    (x, first_row): (&[QuantizedRow<'_>], usize),
    strip: usize,
) {
    let mut out = [[0.0; LANES]; 2 * PAIR_ROWS];
    let places = || (0..2 * PAIR_ROWS).map(|at| (first_row + at % PAIR_ROWS, strip + at / PAIR_ROWS));
    if panels[0].first > 0 {
        for ((row, strip), out) in places().zip(&mut out) {
            *out = wanted.load(row, strip);
        }
    }
    kernels::multiply_panel_pair(wanted.isa, layout, panels, x, &mut out);
    for ((row, strip), out) in places().zip(&out) {
        wanted.store(row, strip, out);
    }
}
