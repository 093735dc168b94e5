//! Products of many rows with codes, which are unpacked before, a part of a strip at a time.
//!
//! Sums wait in the output for the next part of the strip.

use std::ops::Range;

use super::super::blocks::Panel;
use super::super::kernels::{self, MOST_ROWS, PAIR_ROWS};
use super::super::layout::{LANES, Lanes, Layout};
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
            let goes_on = blocks.start > 0;
            let mut rows = 0..pass.len();
            if strips.len() == panels.len() {
                let alone = rows.len() % PAIR_ROWS;
                for group in parts(0..rows.len() - alone, PAIR_ROWS) {
                    let x = &x[group.clone()];
                    add(wanted, pass.start, &group, &strips, goes_on, |out| {
                        kernels::multiply_panel_pair(wanted.isa, layout, panels, x, out);
                    });
                }
                rows.start = rows.end - alone;
            }
            for (strip, panel) in strips.zip(&*panels) {
                for group in groups(rows.clone(), kernels::rows_at_once) {
                    let x = &x[group.clone()];
                    add(wanted, pass.start, &group, &(strip..strip + 1), goes_on, |out| {
                        kernels::multiply_panel(wanted.isa, layout, panel, x, out);
                    });
                }
            }
        }
    }
}

/// Lets `multiply` add to the sums of rows, counted from `first_row`, and strips: strip by strip, those of all rows. Sums that do not go on
/// begin as the kernel has them.
fn add(
    wanted: &Products<'_>,
    first_row: usize,
    rows: &Range<usize>,
    strips: &Range<usize>,
    goes_on: bool,
    multiply: impl FnOnce(&mut [Lanes]),
) {
    let mut out = [[0.0; LANES]; MOST_ROWS];
    let out = &mut out[..rows.len() * strips.len()];
    let places = || strips.clone().flat_map(|strip| rows.clone().map(move |row| (first_row + row, strip)));
    if goes_on {
        for ((row, strip), out) in places().zip(&mut *out) {
            *out = wanted.load(row, strip);
        }
    }
    multiply(out);
    for ((row, strip), out) in places().zip(&*out) {
        wanted.store(row, strip, out);
    }
}
