//! Many rows times codes, of which a part of a strip is unpacked before.
//!
//! Sums wait in the output for the next part of the strip.

use super::super::blocks::Panel;
use super::super::kernels::{self, MOST_ROWS};
use super::super::layout::{LANES, Layout};
use super::super::ranges::{groups, parts};
use super::{Products, strip_run};
use crate::quantize::QuantizedRow;

/// Blocks of a panel: 2,048 inputs, so that a panel and its scales, 48 KiB, stay in the second cache while all rows
/// pass by, together with the same inputs of those rows while all strips do.
///
/// Shorter panels, which the first cache holds, were slower by the cost of more frequent calls.
pub(super) const PANEL_BLOCKS: usize = 64;
/// Rows of activations that fit the second cache together with a panel.
pub(super) const PASS_ROWS: usize = 256;

/// Writes the wanted products; `panel` is scratch memory.
pub(in super::super) fn multiply(wanted: &Products<'_>, layout: &Layout, weights: &[u8], panel: &mut Panel) {
    let mut x = [QuantizedRow::default(); PASS_ROWS];
    let mut out = [[0.0; LANES]; MOST_ROWS];
    for pass in parts(0..wanted.rows(), PASS_ROWS) {
        wanted.gather_int8(&pass, &mut x);
        let each = parts(0..layout.blocks, PANEL_BLOCKS)
            .flat_map(|blocks| wanted.strips.clone().map(move |strip| (blocks.clone(), strip)));
        for (blocks, strip) in each {
            let packed = strip_run(weights, layout.strip_bytes(), &(strip..strip + 1));
            kernels::fill_panel(wanted.isa, layout, packed, &blocks, panel);
            for rows in groups(0..pass.len(), kernels::rows_at_once) {
                let (x, out) = (&x[rows.clone()], &mut out[..rows.len()]);
                let rows = pass.start + rows.start..pass.start + rows.end;
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
