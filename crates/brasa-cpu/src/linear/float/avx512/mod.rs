//! AVX-512: one vector is one input's weights of 16 rows.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; vector loads need no alignment"
)]

mod eight;

use std::arch::x86_64::*;

use super::super::layout::{Float, LANES};
use super::super::scales::Lanes;
use super::kinds::{Kind, with_kind};
use super::{FloatLayout, PHASES};
use crate::isa::Avx512;
use crate::prefetch::PrefetchPolicy;

pub(super) fn multiply_tiles(
    proof: Avx512,
    layout: &FloatLayout,
    tiles: &[u8],
    x: &[&[f32]],
    out: &mut [Lanes],
) {
    let together = if x.len() == eight::ROWS { eight::TILES } else { 1 };
    for (tiles, out) in tiles.chunks(together * layout.tile_bytes()).zip(out.chunks_mut(together * x.len())) {
        multiply_together(proof, layout, tiles, x, out);
    }
}

/// Two tiles of eight rows, or one tile.
fn multiply_together(_: Avx512, layout: &FloatLayout, tiles: &[u8], x: &[&[f32]], out: &mut [Lanes]) {
    // SAFETY: the proof; `super::multiply_tiles` checked all lengths.
    with_kind!(layout, K => unsafe {
        match (x.len(), out.len()) {
            (eight::ROWS, eight::ROWS) => eight::kernel::<K, 1>(layout, tiles, x, out),
            (eight::ROWS, _) => eight::kernel::<K, { eight::TILES }>(layout, tiles, x, out),
            (6, _) => kernel::<K, 6>(layout.k, tiles, x, out),
            (4, _) => kernel::<K, 4>(layout.k, tiles, x, out),
            (2, _) => kernel::<K, 2>(layout.k, tiles, x, out),
            (1, _) => kernel::<K, 1>(layout.k, tiles, x, out),
            (rows, _) => unreachable!("a kernel call of {rows} rows"),
        }
    });
}

/// # Safety
///
/// `tile` is a tile of `k` inputs of type K; `x` and `out` have R rows, those of `x` are `k` long.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn kernel<K: Kind, const R: usize>(k: usize, tile: &[u8], x: &[&[f32]], out: &mut [Lanes]) {
    let mut sums = [[_mm512_setzero_ps(); PHASES]; R];
    let tile = tile.as_ptr();
    let mut at = 0;
    let ahead = PrefetchPolicy::for_rows(R);
    let input_bytes = LANES * K::FLOAT.bytes();
    // One row waits for memory: longer steps keep the processor's prefetcher further ahead.
    while R == 1 && at + 2 * PHASES <= k {
        ahead.prefetch(tile.wrapping_add(at * input_bytes), 2 * PHASES * input_bytes);
        // SAFETY: inputs `at..at + 8` exist.
        unsafe {
            let x = x.get_unchecked(0).as_ptr().add(at);
            for (half, weights) in [four::<K>(tile, at), four::<K>(tile, at + PHASES)].iter().enumerate() {
                for (phase, sum) in sums[0].iter_mut().enumerate() {
                    let x = _mm512_set1_ps(*x.add(half * PHASES + phase));
                    *sum = _mm512_fmadd_ps(weights[phase], x, *sum);
                }
            }
        }
        at += 2 * PHASES;
    }
    while at + PHASES <= k {
        ahead.prefetch(tile.wrapping_add(at * input_bytes), PHASES * input_bytes);
        // SAFETY: inputs `at..at + 4` exist.
        unsafe {
            let weights = four::<K>(tile, at);
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = x.get_unchecked(row).as_ptr().add(at);
                for (phase, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_fmadd_ps(weights[phase], _mm512_set1_ps(*x.add(phase)), *sum);
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
                let weights = one::<K>(tile, at + phase);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let x = *x.get_unchecked(row).get_unchecked(at + phase);
                    sums[phase] = _mm512_fmadd_ps(weights, _mm512_set1_ps(x), sums[phase]);
                }
            }
        }
    }
    for ([s0, s1, s2, s3], out) in sums.into_iter().zip(out) {
        let sum = _mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3));
        // SAFETY: `out` is 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
    }
}

/// The weights of inputs `at..at + 4`, `at` being even.
///
/// # Safety
///
/// They are within the tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn four<K: Kind>(tile: *const u8, at: usize) -> [__m512; PHASES] {
    // SAFETY: by the contract.
    unsafe {
        match K::FLOAT {
            Float::BF16 => {
                let [first, second] = [0, 64].map(|offset| pair(tile.add(at * 32 + offset)));
                [first[0], first[1], second[0], second[1]]
            }
            _ => [one::<K>(tile, at), one::<K>(tile, at + 1), one::<K>(tile, at + 2), one::<K>(tile, at + 3)],
        }
    }
}

/// The weights of input `at`.
///
/// # Safety
///
/// They are within the tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn one<K: Kind>(tile: *const u8, at: usize) -> __m512 {
    // SAFETY: by the contract.
    unsafe {
        match K::FLOAT {
            Float::F32 => _mm512_loadu_ps(tile.add(at * 64).cast()),
            Float::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(tile.add(at * 32).cast())),
            Float::BF16 => pair(tile.add(at / 2 * 64))[at % 2],
        }
    }
}

/// Two inputs of bf16.
///
/// # Safety
///
/// 64 bytes are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pair(stored: *const u8) -> [__m512; 2] {
    // SAFETY: by the contract.
    let both = unsafe { _mm512_loadu_si512(stored.cast()) };
    let high = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
    [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(high)]
}
