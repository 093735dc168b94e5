//! Reading and writing of pages in the canonical layout, for their way from and to the device.
//!
//! Values keep their order. Keys lie as `[E][16]` in blocks of 16 positions, so they are transposed, and so are scales.

use brasa_graph::page::{HeadBlock, PageLayout};
use brasa_graph::step::PAGE_POSITIONS;

use super::layout::TileLayout;
use crate::simd::LANES;

/// Copies a page from its tiles to the canonical layout.
pub(super) fn read(layout: PageLayout, tiles: &[u8], canonical: &mut [u8]) {
    each_piece(layout, |tile, place, bytes, element_bytes| {
        copy(&tiles[tile..tile + bytes], &mut canonical[place..place + bytes], element_bytes);
    });
}

/// Copies a page from the canonical layout to its tiles. Their padding stays as it is.
pub(super) fn write(layout: PageLayout, tiles: &mut [u8], canonical: &[u8]) {
    each_piece(layout, |tile, place, bytes, element_bytes| {
        copy(&canonical[place..place + bytes], &mut tiles[tile..tile + bytes], element_bytes);
    });
}

/// Copies elements between this machine's byte order and little-endian.
#[inline(always)]
fn copy(from: &[u8], to: &mut [u8], element_bytes: usize) {
    to.copy_from_slice(from);
    if cfg!(target_endian = "big") {
        to.chunks_exact_mut(element_bytes).for_each(<[u8]>::reverse);
    }
}

/// Calls `piece` for each run of elements that is contiguous in both orders, with its place in the tiles, its place in the
/// canonical layout, its bytes, and the bytes of an element.
fn each_piece(layout: PageLayout, piece: impl FnMut(usize, usize, usize, usize)) {
    // Lengths are constants, since most pieces are single elements.
    match layout.dtype.element_bytes() {
        1 => each_piece_of::<1>(layout, piece),
        2 => each_piece_of::<2>(layout, piece),
        _ => each_piece_of::<4>(layout, piece),
    }
}

fn each_piece_of<const N: usize>(layout: PageLayout, mut piece: impl FnMut(usize, usize, usize, usize)) {
    let PageLayout { dtype, caches, kv_heads, key_dim, value } = layout;
    let tiles = TileLayout { dtype, key_dim, value };
    let (of_keys, of_values) = (layout.keys(), layout.values());
    let scale_of = |block: HeadBlock, slot: usize, scale: usize| {
        PAGE_POSITIONS * block.slot_bytes() + slot * block.scales_bytes() + scale * 2
    };
    for head in 0..caches * kv_heads {
        let key_tile = head * tiles.head_bytes();
        let value_tile = key_tile + tiles.key_tile_bytes();
        let keys = layout.keys_offset(head / kv_heads, head % kv_heads);
        let values = layout.values_offset(head / kv_heads, head % kv_heads);
        for slot in 0..PAGE_POSITIONS {
            let (block, lane) = (key_tile + slot / LANES * tiles.key_block_bytes(), slot % LANES);
            for element in 0..key_dim {
                let place = keys + (slot * key_dim + element) * N;
                piece(block + (element * LANES + lane) * N, place, N, N);
            }
            let row = value_tile + slot * tiles.value_width() * N;
            piece(row, values + slot * of_values.slot_bytes(), of_values.slot_bytes(), N);
            for scale in 0..tiles.key_scales() {
                let key_scales = block + LANES * of_keys.slot_bytes();
                piece(key_scales + (scale * LANES + lane) * 2, keys + scale_of(of_keys, slot, scale), 2, 2);
            }
            for scale in 0..tiles.value_scales() {
                let place = value_tile + tiles.value_scales_bytes() + (scale * PAGE_POSITIONS + slot) * 2;
                piece(place, values + scale_of(of_values, slot, scale), 2, 2);
            }
        }
    }
}
