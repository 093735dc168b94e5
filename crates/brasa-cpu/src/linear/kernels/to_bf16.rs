//! Packed weights as tiles of bf16: 16 outputs and 32 inputs, pairs of inputs in a lane, which is how BF16 is packed.
//!
//! A quantised weight is `code · scale + minimum`, fused, then rounded to the nearest. That is some 70 cycles for
//! a block of 32 inputs and 16 outputs, as long as four groups of 16 rows are multiplied with it.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;

use super::super::blocks::{PackedBlock, Spans};
use super::super::float_layout::FloatLayout;
use super::super::formats::{Float, Kind, with_kind};
use super::super::layout::{LANES, Layout};
use super::super::scales::BlockScales;
use super::codes::unpack;
use super::vectors::Vectors;
use crate::bf16::round_pairs;
use crate::isa::{Avx512, Avx512Bf16};
use crate::prefetch::PrefetchPolicy;
use crate::tiles::{BF16_INPUTS, Bf16Weights, ROWS, TileMemory};

/// The tiles of a strip of quantised weights.
pub(in super::super) fn of_codes<'a>(
    proof: Avx512,
    _: Avx512Bf16,
    layout: &Layout,
    strip: &[u8],
    memory: &'a mut TileMemory<Bf16Weights>,
) -> &'a [Bf16Weights] {
    assert_eq!(strip.len(), layout.strip_bytes(), "bytes of a strip");
    memory.reserve(layout.blocks);
    let tiles = &mut memory[..layout.blocks];
    // SAFETY: the proofs; there is room for all blocks.
    with_kind!(layout, K => unsafe { round_codes::<K>(proof, layout, strip, tiles) });
    tiles
}

/// The tiles of a strip of floats: as they are stored if that is possible, else in `memory`. Inputs beyond K are zero.
pub(in super::super) fn of_floats<'a>(
    proof: Avx512,
    _: Avx512Bf16,
    layout: &FloatLayout,
    strip: &'a [u8],
    memory: &'a mut TileMemory<Bf16Weights>,
) -> &'a [Bf16Weights] {
    if layout.float == Float::BF16 && layout.k.is_multiple_of(BF16_INPUTS) {
        return bytemuck::cast_slice(strip);
    }
    let steps = layout.k.div_ceil(BF16_INPUTS);
    memory.reserve(steps);
    let tiles = &mut memory[..steps];
    tiles[steps - 1] = [[[0; 2]; LANES]; ROWS];
    match layout.float {
        Float::BF16 => bytemuck::cast_slice_mut(tiles)[..strip.len()].copy_from_slice(strip),
        // SAFETY: the proofs.
        Float::F16 => unsafe { round_halves(proof, layout.k, strip, tiles) },
        Float::F32 => unreachable!("F32 weights are multiplied as they are"),
    }
    tiles
}

/// # Safety
///
/// `strip` is a strip of `layout`, which is of kind K; `out` has room for its blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16")]
unsafe fn round_codes<K: Kind>(proof: Avx512, layout: &Layout, strip: &[u8], out: &mut [Bf16Weights]) {
    let layout = &layout.known::<K>();
    let mut unpacked = BlockScales::ZERO;
    for span in Spans::new(layout, strip, 0..layout.blocks, PrefetchPolicy::for_rows(ROWS)) {
        for (block, packed) in span {
            packed.scales::<K>(proof, layout.scales, &mut unpacked);
            // SAFETY: `packed` is a block of kind K with its scales; `out` has room for it.
            unsafe { round_block::<K>(proof, &packed, &unpacked, out.get_unchecked_mut(block)) };
        }
    }
}

/// # Safety
///
/// `packed` is a block of kind K, `unpacked` its scales and minima.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16")]
pub(super) unsafe fn round_block<K: Kind>(
    proof: Avx512,
    packed: &PackedBlock<'_>,
    unpacked: &BlockScales,
    out: &mut Bf16Weights,
) {
    let parts = K::SHAPE.scales_per_block();
    // SAFETY: by the contract; scales and minima are 16 floats, `out` is 16 vectors.
    unsafe {
        let out = out.as_mut_ptr();
        for (group, codes) in unpack::<_, K>(proof, packed.planes.as_ptr(), false).into_iter().enumerate() {
            let part = group * parts / 8;
            let scale = proof.load(unpacked.scale[part].as_ptr());
            let min = if K::SHAPE.has_min() {
                proof.load(unpacked.min[part].as_ptr())
            } else {
                // A power of two times the scale, hence exact: the sum is rounded once, as the product would be.
                _mm512_mul_ps(scale, _mm512_set1_ps(-f32::from(K::CODES.offset())))
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
}

/// Rounds F16, which is packed input by input.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn round_halves(proof: Avx512, k: usize, stored: &[u8], tiles: &mut [Bf16Weights]) {
    let inputs = &stored.as_chunks::<{ 2 * LANES }>().0[..k];
    for (inputs, pair) in inputs.chunks(2).zip(tiles.as_flattened_mut()) {
        // SAFETY: an input is 16 halves; a pair of inputs is a vector.
        unsafe {
            let first = proof.load_f16(inputs[0].as_ptr());
            let second =
                if let [_, second] = inputs { proof.load_f16(second.as_ptr()) } else { _mm512_setzero_ps() };
            _mm512_storeu_si512(pair.as_mut_ptr().cast(), round_pairs(first, second));
        }
    }
}
