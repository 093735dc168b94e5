//! Quantised weights as tiles of bf16.
//!
//! A weight is `code · scale + minimum`, fused, then rounded to the nearest; of two inputs, in pairs. That is some 70 cycles for
//! a block of 32 inputs and 16 outputs, as long as four groups of 16 rows are multiplied with it.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;

use super::super::layout::{Codes, Layout, Scales};
use super::super::scales::BlockScales;
use super::avx512::{Widen, unpack};
use super::kinds::{Kind, with_kind};
use super::panel::for_each_block;
use crate::bf16::round_pairs;
use crate::isa::{Avx512, Avx512Bf16};
use crate::prefetch::PrefetchPolicy;
use crate::tiles::{Bf16Weights, ROWS, TileMemory};

/// The tiles of a tile of weights.
pub(in super::super) fn bf16_tiles<'a>(
    _: Avx512,
    _: Avx512Bf16,
    layout: &Layout,
    tile: &[u8],
    memory: &'a mut TileMemory<Bf16Weights>,
) -> &'a [Bf16Weights] {
    assert_eq!(tile.len(), layout.tile_bytes(), "bytes of a tile");
    memory.reserve(layout.blocks);
    let tiles = &mut memory[..layout.blocks];
    // SAFETY: the proofs; there is room for all blocks.
    with_kind!(layout, K => unsafe { kernel::<K>(layout, tile, tiles) });
    tiles
}

/// # Safety
///
/// `tile` is a tile of `layout`, which is of kind K; `out` has room for its blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16")]
unsafe fn kernel<K: Kind>(layout: &Layout, tile: &[u8], out: &mut [Bf16Weights]) {
    let layout = &K::layout(layout);
    let mut unpacked = BlockScales::ZERO;
    let parts = K::SHAPE.scales_per_block();
    for_each_block(layout, tile, 0..layout.blocks, PrefetchPolicy::for_rows(ROWS), |block, packed| {
        packed.scales::<Widen>(layout.scales, &mut unpacked);
        // SAFETY: `packed` is a block of kind K; scales and minima are 16 floats, `out` of a block is 16 vectors.
        unsafe {
            let out = out.get_unchecked_mut(block).as_mut_ptr();
            for (group, codes) in unpack::<K>(packed.planes.as_ptr()).into_iter().enumerate() {
                let part = group * parts / 8;
                let scale = _mm512_loadu_ps(unpacked.scale[part].as_ptr());
                let min = if K::SHAPE.has_min() {
                    _mm512_loadu_ps(unpacked.min[part].as_ptr())
                } else {
                    // A power of two times the scale, hence exact: the sum is rounded once, as the product would be.
                    let offset = (1_u32 << K::CODES.offset_shift()) as f32;
                    _mm512_mul_ps(scale, _mm512_set1_ps(-offset))
                };
                let weight = |code: __m512i| _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scale, min);
                let byte = _mm512_set1_epi32(0xff);
                let weights = [
                    weight(_mm512_and_si512(codes, byte)),
                    weight(_mm512_and_si512(_mm512_srli_epi32::<8>(codes), byte)),
                    weight(_mm512_and_si512(_mm512_srli_epi32::<16>(codes), byte)),
                    weight(_mm512_srli_epi32::<24>(codes)),
                ];
                let out = out.add(2 * group);
                _mm512_storeu_si512(out.cast(), round_pairs(weights[0], weights[1]));
                _mm512_storeu_si512(out.add(1).cast(), round_pairs(weights[2], weights[3]));
            }
        }
    });
}
