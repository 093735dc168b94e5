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
//! Few rows multiply the planes as they are unpacked. From [`panel_rows`] rows on, a part of a tile is first
//! unpacked to bytes, once, and all rows multiply that **panel**; sums wait in the output for the next part. Where
//! there is a tile unit, it multiplies panels with 16 rows at a time, and up to 16 rows with what is unpacked block by block.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod bf16;
#[cfg(target_arch = "x86_64")]
mod few;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod kinds;
#[cfg(target_arch = "aarch64")]
mod neon;
mod panel;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(target_arch = "x86_64")]
pub(super) use bf16::bf16_tiles;
#[cfg(target_arch = "x86_64")]
pub(super) use few::FewProducts;
pub(super) use panel::{Panel, for_each_block};
#[cfg(target_arch = "x86_64")]
pub(super) use tiles::{GROUPS, PANELS, Results, RowTiles, TileProducts};

use std::ops::Range;

use super::layout::Layout;
use super::scales::Lanes;
use crate::Isa;
use crate::quantize::QuantizedRow;

/// Rows from which on a tile is unpacked to a panel first.
///
/// Memory waits while a panel is multiplied, so what it saves must outweigh that. With AVX-512, where unpacking is
/// cheap, 8 rows of Q4_0 that multiply planes are twice as fast as 8 rows that multiply a panel.
pub(super) const fn panel_rows(isa: Isa) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(_) => 17,
        _ => 8,
    }
}

/// Rows from which on a tile unit multiplies them.
pub(super) const TILED_ROWS: usize = 5;

/// Blocks of a panel: 2,048 inputs, so that a panel and its scales, 48 KiB, stay in the second cache while all rows
/// pass by, together with the same inputs of those rows while all tiles do. Shorter panels, which the first cache
/// holds, were slower by what the more frequent calls cost.
pub(super) const PANEL_BLOCKS: usize = 64;
/// Rows of activations for which that holds.
pub(super) const PASS_ROWS: usize = 256;
/// Most rows that one call multiplies.
pub(super) const MAX_ROWS: usize = 8;

/// How many of `left` rows the next kernel call takes.
pub(super) const fn rows_at_once(left: usize) -> usize {
    match left {
        8.. => 8,
        4..8 => 4,
        2..4 => 2,
        _ => left,
    }
}

/// Products of consecutive packed tiles with `x.len()` rows, 1, 2, 4 or 8: for each tile those of all rows.
pub(super) fn multiply_tiles(
    isa: Isa,
    layout: &Layout,
    tiles: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let each = tiles.chunks_exact(layout.tile_bytes());
    assert!(each.remainder().is_empty(), "{} bytes of tiles", tiles.len());
    assert_eq!(out.len(), each.len() * x.len(), "results of tiles and rows");
    check(layout, x);
    let each = each.zip(out.chunks_exact_mut(x.len()));
    match isa {
        Isa::Scalar => each.for_each(|(tile, out)| scalar::multiply_tile(layout, tile, x, out)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(proof) => avx2::multiply_tiles(proof, layout, tiles, x, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => avx512::multiply_tiles(proof, layout, tiles, x, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(proof) => each.for_each(|(tile, out)| neon::multiply_tile(proof, layout, tile, x, out)),
        #[cfg(target_arch = "aarch64")]
        Isa::Dotprod(proof) => {
            each.for_each(|(tile, out)| neon::multiply_tile(proof, layout, tile, x, out));
        }
        #[cfg(target_arch = "aarch64")]
        Isa::I8mm(proof) => {
            each.for_each(|(tile, out)| neon::multiply_tile(proof.dotprod(), layout, tile, x, out));
        }
    }
}

/// Adds to `out` the products of the blocks of a panel with `x.len()` rows, 1, 2, 4 or 8; those of a tile's first panel are
/// written there.
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
    assert_eq!(panel.offset, 0, "codes of a panel for tiles");
    match isa {
        Isa::Scalar => scalar::multiply_panel(layout, panel, x, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(proof) => avx2::multiply_panel(proof, layout, panel, x, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => avx512::multiply_panel(proof, layout, panel, x, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(proof) => neon::multiply_panel(proof, layout, panel, x, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Dotprod(proof) => neon::multiply_panel(proof, layout, panel, x, out),
        #[cfg(target_arch = "aarch64")]
        Isa::I8mm(proof) => neon::multiply_panel(proof, layout, panel, x, out),
    }
}

/// Unpacks `blocks` of a tile, of which the first begins a span.
pub(super) fn fill_panel(isa: Isa, layout: &Layout, tile: &[u8], blocks: &Range<usize>, panel: &mut Panel) {
    assert_eq!(tile.len(), layout.tile_bytes(), "bytes of a tile");
    match isa {
        Isa::Scalar => {
            panel.reserve(layout, blocks, 0);
            panel.fill(layout, tile);
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(proof) => {
            panel.reserve(layout, blocks, 0);
            avx2::fill_panel(proof, layout, tile, panel);
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => {
            let offset = if proof.tiles().is_some() { tiles::panel_offset(layout) } else { 0 };
            panel.reserve(layout, blocks, offset);
            avx512::fill_panel(proof, layout, tile, panel);
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(proof) => {
            panel.reserve(layout, blocks, 0);
            neon::fill_panel(proof, layout, tile, panel);
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Dotprod(proof) => {
            panel.reserve(layout, blocks, 0);
            neon::fill_panel(proof.neon(), layout, tile, panel);
        }
        #[cfg(target_arch = "aarch64")]
        Isa::I8mm(proof) => {
            panel.reserve(layout, blocks, 0);
            neon::fill_panel(proof, layout, tile, panel);
        }
    }
}

/// What the kernels rely on.
fn check(layout: &Layout, x: &[QuantizedRow<'_>]) {
    for row in x {
        assert_eq!(row.blocks.len(), layout.blocks, "blocks of a row of activations");
        assert_eq!(row.codes.len(), layout.blocks * super::layout::BLOCK, "codes of a row of activations");
    }
}
