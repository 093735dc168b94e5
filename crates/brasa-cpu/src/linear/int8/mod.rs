//! Quantised weights times int8 activations.
//!
//! For each output, block after block of 32 inputs: the dot product of codes is an exact integer; it is then
//! scaled and added in f32. The order of these additions is that of the blocks, whatever the number of rows,
//! threads or lanes, and every instruction set does the same multiplications, so all give the same bits:
//!
//! - one scale: `acc = fma(f32(Σ(q − offset)·a), s·sa, acc)`;
//! - and a minimum: then `acc = fma(m, sa·Σa, acc)`;
//! - two scales: `t = fma(f32(dot₁), s₁, f32(dot₀)·s₀)`, `acc = fma(t, sa, acc)`, and with minima
//!   `acc = fma(m₁, sa·Σ₁a, fma(m₀, sa·Σ₀a, acc))`.
//!
//! Few rows multiply the planes as they are unpacked. From [`PANEL_ROWS`] rows on, a tile is first unpacked
//! to bytes, once, and all rows multiply that **panel**.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod panel;
mod scalar;

pub(super) use panel::{Panel, for_each_block, unit_bytes};

use super::layout::{Codes, Layout, Shape};
use super::scales::Lanes;
use crate::Isa;
use crate::quantize::QuantizedRow;

/// Rows from which on a tile is unpacked to a panel first.
pub(super) const PANEL_ROWS: usize = 8;
/// Most rows that one call multiplies.
pub(super) const MAX_ROWS: usize = 8;

/// Codes and shape as a type: a kernel is compiled for each pair that a format uses.
trait Kind {
    const CODES: Codes;
    const SHAPE: Shape;
}

macro_rules! kinds {
    ($($kind:ident: $codes:ident $shape:ident,)*) => {
        $(
            struct $kind;

            impl Kind for $kind {
                const CODES: Codes = Codes::$codes;
                const SHAPE: Shape = Shape::$shape;
            }
        )*
    };
}

kinds! {
    Bits2WholeMin: Bits2 WholeMin,
    Bits3WholeMin: Bits3 WholeMin,
    Bits4WholeMin: Bits4 WholeMin,
    Bits5WholeMin: Bits5 WholeMin,
    Bits6WholeMin: Bits6 WholeMin,
    Bits8WholeMin: Bits8 WholeMin,
    Bits4Whole: Bits4 Whole,
    Bits5Whole: Bits5 Whole,
    Bits8Whole: Bits8 Whole,
    Table4Whole: Table4 Whole,
    Bits3Halves: Bits3 Halves,
    Bits6Halves: Bits6 Halves,
    Bits2HalvesMin: Bits2 HalvesMin,
}

/// Evaluates the expression with `$kind` standing for the kind of `$layout`.
macro_rules! with_kind {
    ($layout:expr, $kind:ident => $value:expr) => {
        with_kind!(@ $layout, $kind, $value,
            Bits2WholeMin Bits2 WholeMin, Bits3WholeMin Bits3 WholeMin, Bits4WholeMin Bits4 WholeMin,
            Bits5WholeMin Bits5 WholeMin, Bits6WholeMin Bits6 WholeMin, Bits8WholeMin Bits8 WholeMin,
            Bits4Whole Bits4 Whole, Bits5Whole Bits5 Whole, Bits8Whole Bits8 Whole,
            Table4Whole Table4 Whole, Bits3Halves Bits3 Halves, Bits6Halves Bits6 Halves,
            Bits2HalvesMin Bits2 HalvesMin)
    };
    (@ $layout:expr, $kind:ident, $value:expr, $($name:ident $codes:ident $shape:ident),*) => {
        match ($layout.codes, $layout.shape) {
            $((Codes::$codes, Shape::$shape) => {
                type $kind = super::$name;
                $value
            })*
            (codes, shape) => unreachable!("no format stores {codes:?} with {shape:?}"),
        }
    };
}
use with_kind;

/// Evaluates the expression with the constant `$rows` equal to `$len`, one of 1, 2, 4, 8.
macro_rules! with_rows {
    ($len:expr, $rows:ident => $value:expr, $($count:literal)*) => {
        match $len {
            $($count => {
                const $rows: usize = $count;
                $value
            })*
            len => unreachable!("a kernel call of {len} rows"),
        }
    };
}
use with_rows;

/// How many of `left` rows the next kernel call takes.
pub(super) const fn rows_at_once(left: usize) -> usize {
    match left {
        8.. => 8,
        4..8 => 4,
        2..4 => 2,
        _ => left,
    }
}

/// Products of a packed tile with `x.len()` rows, 1, 2, 4 or 8.
pub(super) fn multiply_tile(
    isa: Isa,
    layout: &Layout,
    tile: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    check(layout, x, out);
    assert_eq!(tile.len(), layout.tile_bytes(), "bytes of a tile");
    match isa {
        Isa::Scalar => scalar::multiply_tile(layout, tile, x, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(proof) => avx2::multiply_tile(proof, layout, tile, x, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => avx512::multiply_tile(proof, layout, tile, x, out),
    }
}

/// Products of an unpacked tile with `x.len()` rows, 1, 2, 4 or 8.
pub(super) fn multiply_panel(
    isa: Isa,
    layout: &Layout,
    panel: &Panel,
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    check(layout, x, out);
    panel.check(layout);
    match isa {
        Isa::Scalar => scalar::multiply_panel(layout, panel, x, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(proof) => avx2::multiply_panel(proof, layout, panel, x, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => avx512::multiply_panel(proof, layout, panel, x, out),
    }
}

/// Unpacks a tile.
pub(super) fn fill_panel(isa: Isa, layout: &Layout, tile: &[u8], panel: &mut Panel) {
    assert_eq!(tile.len(), layout.tile_bytes(), "bytes of a tile");
    panel.reserve(layout);
    match isa {
        Isa::Scalar => panel.fill(layout, tile),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(proof) => avx2::fill_panel(proof, layout, tile, panel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => avx512::fill_panel(proof, layout, tile, panel),
    }
}

/// What the kernels rely on.
fn check(layout: &Layout, x: &[QuantizedRow<'_>], out: &[Lanes]) {
    assert_eq!(x.len(), out.len(), "rows of activations and of results");
    for row in x {
        assert_eq!(row.blocks.len(), layout.blocks, "blocks of a row of activations");
        assert_eq!(row.codes.len(), layout.blocks * super::layout::BLOCK, "codes of a row of activations");
    }
}
