//! Products in registers: some rows of activations times some packed strips, or times a panel.
//!
//! [`vectors`] says what an instruction set must offer; [`codes`] and [`floats`] are the kernels, written once over it;
//! [`avx2`], [`avx512`] and [`neon`] are the instruction sets. This file checks lengths and chooses the instruction set. A new
//! one is a file here, its proof in [`isa`](crate::isa) and its line in `with_dots`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) mod codes;
#[cfg(target_arch = "x86_64")]
mod eight_rows;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod floats;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod phase_rows;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod strip_pairs;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub(super) mod tiles;
#[cfg(target_arch = "x86_64")]
pub(super) mod to_bf16;
#[cfg(target_arch = "x86_64")]
pub(super) mod turn;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) mod vectors;

use std::ops::Range;

use super::blocks::Panel;
use super::float_layout::FloatLayout;
#[cfg(target_arch = "x86_64")]
use super::formats::Scales;
use super::layout::{BLOCK, Lanes, Layout};
use crate::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Avx512;
use crate::quantize::QuantizedRow;

/// Most rows that one call multiplies.
pub(super) const MOST_ROWS: usize = 8;
/// Most rows with which strips are multiplied one by one; more meet two at a time, which then lie in a cache.
#[cfg(target_arch = "x86_64")]
const STREAM_ROWS: usize = 15;
/// Rows that are multiplied with two panels together.
pub(super) const PAIR_ROWS: usize = 4;
/// Strips of floats that a call with [`MOST_ROWS`] rows multiplies together.
pub(super) const FLOAT_STRIPS: usize = 2;
/// Running sums of an output with float weights.
const PHASES: usize = 4;

/// Evaluates `$vectors` with `$dots` standing for the vectors of `$isa`, or `$scalar` if it has none.
macro_rules! with_dots {
    ($isa:expr, $dots:ident => $vectors:expr, scalar => $scalar:expr) => {
        match $isa {
            Isa::Scalar => $scalar,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2($dots) => match avx2::WithVnni::of($dots) {
                Some($dots) => $vectors,
                None => $vectors,
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512($dots) => $vectors,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon($dots) => $vectors,
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod($dots) => $vectors,
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm($dots) => $vectors,
        }
    };
}

/// The place of a call's rows among all rows that are multiplied with the same strips, one call after the other.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "pairs of strips are multiplied by AVX-512")
)]
#[derive(Clone, Copy)]
pub(super) struct Turn {
    /// Number of the call's first row.
    pub first: usize,
    /// Number of all rows.
    pub of: usize,
}

/// Writes the products of consecutive packed strips with `x.len()` rows, 1, 2, 4 or 8: for each strip those of all rows.
///
/// # Panics
///
/// If lengths do not fit.
pub(super) fn multiply_strips(
    isa: Isa,
    layout: &Layout,
    strips: &[u8],
    x: &[QuantizedRow<'_>],
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(unused_variables, reason = "pairs of strips are multiplied by AVX-512")
    )]
    turn: Turn,
    out: &mut [Lanes],
) {
    let each = strips.chunks_exact(layout.strip_bytes());
    assert!(each.remainder().is_empty(), "{} bytes of strips", strips.len());
    assert_eq!(out.len(), each.len() * x.len(), "results of strips and rows");
    check(layout, x);
    #[cfg(target_arch = "x86_64")]
    if let Isa::Avx512(proof) = isa
        && x.len().is_multiple_of(PAIR_ROWS)
        && pairs_strips(isa, layout, turn.of)
    {
        let bytes = strips.len() / (2 * layout.strip_bytes()) * 2 * layout.strip_bytes();
        let (pairs, last) = strips.split_at(bytes);
        let (of_pairs, of_last) = out.split_at_mut(bytes / layout.strip_bytes() * x.len());
        strip_pairs::multiply_strips(proof, layout, pairs, x, turn, of_pairs);
        return codes::multiply_strips(proof, layout, last, x, of_last);
    }
    with_dots!(isa, dots => codes::multiply_strips(dots, layout, strips, x, out), scalar => {
        for (strip, out) in each.zip(out.chunks_exact_mut(x.len())) {
            scalar::multiply_strip(layout, strip, x, out);
        }
    });
}

/// True if products of [`PAIR_ROWS`] rows, of `of` that are multiplied with the same strips, with two strips are made together.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "only x86-64 has such a kernel"))]
pub(super) fn pairs_strips(isa: Isa, layout: &Layout, of: usize) -> bool {
    match isa {
        // Scales of Q4_K take so long to unpack that it is not worth doing for every four rows.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(_) => of > STREAM_ROWS && layout.scales != Scales::Q4K,
        _ => false,
    }
}

/// Adds to `out` the products of the blocks of a panel with `x.len()` rows, 1, 2, 4 or 8. Overwrites `out` if the panel is the first
/// of its strip.
///
/// # Panics
///
/// If lengths do not fit, or the panel was filled for another instruction set or for tiles.
pub(super) fn multiply_panel(
    isa: Isa,
    layout: &Layout,
    panel: &Panel,
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    assert_eq!(x.len(), out.len(), "rows of activations and of results");
    check(layout, x);
    panel.check(layout);
    assert_eq!(panel.centred, centres_panels(isa, layout), "codes of a panel are centred");
    with_dots!(isa, dots => codes::multiply_panel(dots, layout, panel, x, out), scalar => {
        scalar::multiply_panel(layout, panel, x, out);
    });
}

/// True if products of [`PAIR_ROWS`] rows with two panels are made together.
pub(super) const fn pairs_panels(isa: Isa) -> bool {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(_) => true,
        _ => false,
    }
}

/// Adds to `out` the products of the blocks of two panels with [`PAIR_ROWS`] rows, by panel. Overwrites `out` if the panels are the first
/// of their strips.
///
/// # Panics
///
/// If lengths do not fit, or the instruction set makes no such products.
pub(super) fn multiply_panel_pair(
    isa: Isa,
    layout: &Layout,
    panels: &[Panel; 2],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    assert_eq!((x.len(), out.len()), (PAIR_ROWS, 2 * PAIR_ROWS), "rows of activations and of results");
    assert_eq!(panels[0].blocks(), panels[1].blocks(), "blocks of two panels");
    check(layout, x);
    for panel in panels {
        panel.check(layout);
        assert!(!panel.centred, "codes of a panel are centred");
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => strip_pairs::multiply_panels(proof, layout, panels, x, out),
        _ => unreachable!("an instruction set that multiplies panel by panel"),
    }
}

/// Unpacks `blocks` of a strip, of which the first begins a span, for [`multiply_panel`] and [`multiply_panel_pair`].
///
/// # Panics
///
/// If the strip has another length.
pub(super) fn fill_panel(isa: Isa, layout: &Layout, strip: &[u8], blocks: &Range<usize>, panel: &mut Panel) {
    assert_eq!(strip.len(), layout.strip_bytes(), "bytes of a strip");
    panel.reserve(layout, blocks, centres_panels(isa, layout));
    with_dots!(isa, dots => codes::fill_panel::<_, false>(dots, layout, strip, panel), scalar => panel.fill(layout, strip));
}

/// Unpacks `blocks` of a strip, of which the first begins a span, for tiles.
///
/// Codes are centred if the format has no minimum, so that sums need no correction.
///
/// # Panics
///
/// If the strip has another length.
#[cfg(target_arch = "x86_64")]
pub(super) fn fill_panel_for_tiles(
    proof: Avx512,
    layout: &Layout,
    strip: &[u8],
    blocks: &Range<usize>,
    panel: &mut Panel,
) {
    assert_eq!(strip.len(), layout.strip_bytes(), "bytes of a strip");
    panel.reserve(layout, blocks, !layout.shape.has_min());
    codes::fill_panel::<_, true>(proof, layout, strip, panel);
}

/// How many of `left` rows the next call for codes takes.
pub(super) const fn rows_at_once(left: usize) -> usize {
    match left {
        8.. => 8,
        4..8 => 4,
        2..4 => 2,
        _ => left,
    }
}

/// Writes the products of consecutive packed strips of floats with `x.len()` rows, as many as [`float_rows_at_once`] says: for
/// each strip those of all rows.
///
/// # Panics
///
/// If lengths do not fit.
pub(super) fn multiply_floats(
    isa: Isa,
    layout: &FloatLayout,
    strips: &[u8],
    x: &[&[f32]],
    out: &mut [Lanes],
) {
    let each = strips.chunks_exact(layout.strip_bytes());
    assert!(each.remainder().is_empty(), "{} bytes of strips", strips.len());
    assert_eq!(out.len(), each.len() * x.len(), "results of strips and rows");
    for row in x {
        assert_eq!(row.len(), layout.k, "activations of a row");
    }
    #[cfg(target_arch = "x86_64")]
    if let Isa::Avx512(proof) = isa
        && x.len() == MOST_ROWS
    {
        return eight_rows::multiply_strips(proof, layout, strips, x, out);
    }
    with_dots!(isa, dots => floats::multiply_strips(dots, layout, strips, x, out), scalar => {
        for (strip, out) in each.zip(out.chunks_exact_mut(x.len())) {
            scalar::multiply_floats(layout, strip, x, out);
        }
    });
}

/// How many of `left` rows the next call for floats takes, of `all` that are multiplied with the same strips: not six and then one or two,
/// which wait for memory.
pub(super) fn float_rows_at_once(isa: Isa, left: usize, all: usize) -> usize {
    match left {
        2.. if all <= MOST_ROWS && streams_pairs(isa) => 2,
        MOST_ROWS if takes_eight_floats(isa) => MOST_ROWS,
        4 | 5 | 7 | 8 => 4,
        6.. => 6,
        2 | 3 => 2,
        _ => left,
    }
}

/// True if eight rows of floats are one kernel call, for the reason that the kernel (`eight_rows`) gives.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "only x86-64 has such a kernel"))]
fn takes_eight_floats(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Isa::Avx512(_) = isa {
        return crate::isa::is_intel();
    }
    false
}

/// True if few rows are multiplied two by two: `phase_rows` passes a part of a strip four times, and so waits for memory where no row
/// before has fetched it.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "only x86-64 has such a kernel"))]
const fn streams_pairs(isa: Isa) -> bool {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(_) => true,
        _ => false,
    }
}

fn centres_panels(isa: Isa, layout: &Layout) -> bool {
    with_dots!(isa, dots => codes::centres_panels(dots, layout), scalar => false)
}

/// Checks what the kernels rely on.
fn check(layout: &Layout, x: &[QuantizedRow<'_>]) {
    for row in x {
        assert_eq!(row.blocks.len(), layout.blocks, "blocks of a row of activations");
        assert_eq!(row.codes.len(), layout.blocks * BLOCK, "codes of a row of activations");
    }
}
