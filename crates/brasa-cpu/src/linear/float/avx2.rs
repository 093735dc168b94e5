//! AVX2: the 16 rows of a tile as two halves of 8, one after the other.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; vector loads need no alignment"
)]

use std::arch::x86_64::*;

use super::super::layout::{Float, LANES};
use super::super::scales::Lanes;
use super::kinds::{Kind, with_kind};
use super::{FloatLayout, PHASES};
use crate::isa::Avx2;
use crate::prefetch::PrefetchPolicy;

/// Rows of a vector.
const HALF: usize = LANES / 2;

pub(super) fn multiply_tile(_: Avx2, layout: &FloatLayout, tile: &[u8], x: &[&[f32]], out: &mut [Lanes]) {
    for (x, out) in x.chunks(2).zip(out.chunks_mut(2)) {
        for half in 0..2 {
            // SAFETY: the proof; `super::multiply_tile` checked all lengths.
            with_kind!(layout, K => unsafe {
                match x.len() {
                    2 => kernel::<K, 2>(layout.k, tile, half, x, out),
                    _ => kernel::<K, 1>(layout.k, tile, half, x, out),
                }
            });
        }
    }
}

/// # Safety
///
/// `tile` is a tile of `k` inputs of type K; `x` and `out` have R rows, those of `x` are `k` long.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn kernel<K: Kind, const R: usize>(
    k: usize,
    tile: &[u8],
    half: usize,
    x: &[&[f32]],
    out: &mut [Lanes],
) {
    let mut sums = [[_mm256_setzero_ps(); PHASES]; R];
    let tile = tile.as_ptr();
    let mut at = 0;
    let ahead = if R == 1 { PrefetchPolicy::for_rows(1) } else { PrefetchPolicy::Never };
    let step_bytes = PHASES * LANES * K::FLOAT.bytes();
    while at + PHASES <= k {
        ahead.prefetch(tile.wrapping_add(at / PHASES * step_bytes), step_bytes);
        for phase in 0..PHASES {
            // SAFETY: input `at + phase` exists.
            unsafe {
                let weights = one::<K>(tile, half, at + phase);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let x = *x.get_unchecked(row).get_unchecked(at + phase);
                    sums[phase] = _mm256_fmadd_ps(weights, _mm256_set1_ps(x), sums[phase]);
                }
            }
        }
        at += PHASES;
    }
    // Sums are named by constants, else they would live in memory.
    for phase in 0..PHASES - 1 {
        if at + phase < k {
            // SAFETY: input `at + phase` exists.
            unsafe {
                let weights = one::<K>(tile, half, at + phase);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let x = *x.get_unchecked(row).get_unchecked(at + phase);
                    sums[phase] = _mm256_fmadd_ps(weights, _mm256_set1_ps(x), sums[phase]);
                }
            }
        }
    }
    for ([s0, s1, s2, s3], out) in sums.into_iter().zip(out) {
        let sum = _mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3));
        // SAFETY: `out` is 16 floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(HALF * half), sum) };
    }
}

/// Half of the weights of input `at`.
///
/// # Safety
///
/// They are within the tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one<K: Kind>(tile: *const u8, half: usize, at: usize) -> __m256 {
    // SAFETY: by the contract.
    unsafe {
        match K::FLOAT {
            Float::F32 => _mm256_loadu_ps(tile.add(at * 64 + 32 * half).cast()),
            Float::F16 => _mm256_cvtph_ps(_mm_loadu_si128(tile.add(at * 32 + 16 * half).cast())),
            Float::BF16 => {
                let both = _mm256_loadu_si256(tile.add(at / 2 * 64 + 32 * half).cast());
                _mm256_castsi256_ps(if at.is_multiple_of(2) {
                    _mm256_slli_epi32::<16>(both)
                } else {
                    _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32))
                })
            }
        }
    }
}
