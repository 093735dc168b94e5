//! F16 and BF16 weights as tiles of bf16: 16 outputs and 32 inputs, pairs of inputs in a lane, which is how BF16 is packed.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;

use super::super::layout::{Float, LANES};
use super::FloatLayout;
use crate::bf16::round_pairs;
use crate::isa::Avx512Bf16;
use crate::tiles::{BF16_INPUTS, Bf16Weights, ROWS, TileMemory};

/// The tiles of a tile of weights, as they are stored where that is possible, else in `memory`; inputs beyond K are
/// zero.
pub(in super::super) fn bf16_tiles<'a>(
    _: Avx512Bf16,
    layout: &FloatLayout,
    tile: &'a [u8],
    memory: &'a mut TileMemory<Bf16Weights>,
) -> &'a [Bf16Weights] {
    if layout.float == Float::BF16 && layout.k.is_multiple_of(BF16_INPUTS) {
        return bytemuck::cast_slice(tile);
    }
    let steps = layout.k.div_ceil(BF16_INPUTS);
    memory.reserve(steps);
    let tiles = &mut memory[..steps];
    tiles[steps - 1] = [[[0; 2]; LANES]; ROWS];
    match layout.float {
        Float::BF16 => bytemuck::cast_slice_mut(tiles)[..tile.len()].copy_from_slice(tile),
        // SAFETY: the proof.
        Float::F16 => unsafe { round_halves(layout.k, tile, tiles) },
        Float::F32 => unreachable!("F32 weights are multiplied as they are"),
    }
    tiles
}

/// F16 is packed input by input.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn round_halves(k: usize, stored: &[u8], tiles: &mut [Bf16Weights]) {
    let inputs = &stored.as_chunks::<{ 2 * LANES }>().0[..k];
    for (inputs, pair) in inputs.chunks(2).zip(tiles.as_flattened_mut()) {
        // SAFETY: an input is 16 halves; a pair of inputs is a vector.
        unsafe {
            let widen =
                |halves: &[u8; 2 * LANES]| _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast()));
            let second = if let [_, second] = inputs { widen(second) } else { _mm512_setzero_ps() };
            _mm512_storeu_si512(pair.as_mut_ptr().cast(), round_pairs(widen(&inputs[0]), second));
        }
    }
}
