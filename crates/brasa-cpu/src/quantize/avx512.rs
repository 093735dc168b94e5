//! Quantises one block with AVX-512. Compilers vectorise the portable source badly: they take codes out of their vectors one by
//! one.
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; vectors need no alignment"
)]

use std::arch::x86_64::*;

use super::{BLOCK, BlockMeta, ROUND, TINY};
use crate::simd::read;

/// Quantises a block, with the bits of the portable source.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn quantize_block(x: &[f32; BLOCK], codes: &mut [i8; BLOCK]) -> BlockMeta {
    // SAFETY: a block is two vectors.
    let halves = unsafe { [read::<__m512>(x.as_ptr().cast()), read(x.as_ptr().add(16).cast())] };
    let [first, last] =
        halves.map(|half| _mm512_and_si512(_mm512_castps_si512(half), _mm512_set1_epi32(i32::MAX)));
    // As integers, magnitudes order like floats and NaN is above them all: it reaches the scale.
    let largest = _mm512_max_epu32(first, last);
    let largest = f32::from_bits(_mm512_reduce_max_epu32(largest));
    if largest <= TINY {
        codes.fill(0);
        return BlockMeta::default();
    }
    let scale = largest / 127.0;
    let inverse = _mm512_set1_ps(127.0 / largest);
    let round = _mm512_set1_ps(ROUND);
    let [first, last] = halves.map(|half| {
        let rounded = _mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(half, inverse), round));
        // The low byte is the code: that of ROUND is zero.
        _mm512_cvtepi32_epi8(rounded)
    });
    let both = _mm256_set_m128i(last, first);
    // SAFETY: 32 codes are written.
    unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), both) };
    let fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), both);
    let pairs = _mm256_hadd_epi32(fours, fours);
    let sums = _mm256_hadd_epi32(pairs, pairs);
    let [first, last] = [_mm256_extract_epi32::<0>(sums), _mm256_extract_epi32::<4>(sums)];
    let sum = first + last;
    BlockMeta { scale, scaled_sum: scale * sum as f32, sum, half_sums: [first as i16, last as i16] }
}
