//! Products of bf16, on tiles or in vectors of pairs.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; loads need no alignment"
)]

use std::arch::x86_64::*;

use crate::isa::{Avx512, Avx512Bf16};
use crate::simd::read;
use crate::tile_row::{BF16_INPUTS, Bf16Rows, ROWS};
use crate::tiles::{AmxThread, Bf16Factors, Bf16MatrixUnit, Bf16Weights, EmulatedBf16, Sums, Tiles};

/// The unit that multiplies bf16 on this thread.
pub(crate) enum Bf16Multiplier {
    Amx(AmxThread),
    Emulated(EmulatedBf16),
    Vectors(Avx512Bf16),
}

impl Bf16Multiplier {
    /// The strongest unit that the proofs allow, set up for this thread.
    pub(crate) fn new(proof: Avx512, bf16: Avx512Bf16) -> Self {
        match proof.tiles() {
            Some(Tiles::Amx(amx)) => Self::Amx(amx.bf16()),
            Some(Tiles::Emulated) => Self::Emulated(EmulatedBf16),
            None => Self::Vectors(bf16),
        }
    }
}

impl Bf16MatrixUnit for Bf16Multiplier {
    #[inline]
    fn sum_bf16<const ADD: bool>(&self, factors: Bf16Factors<'_>, c: &mut [&mut [Sums<f32>]]) {
        match self {
            Self::Amx(unit) => unit.sum_bf16::<ADD>(factors, c),
            Self::Emulated(unit) => unit.sum_bf16::<ADD>(factors, c),
            Self::Vectors(unit) => unit.sum_bf16::<ADD>(factors, c),
        }
    }
}

/// Makes sums of 16 rows and 16 outputs. Each sum is one chain of additions, pairs in the order of k.
impl Bf16MatrixUnit for Avx512Bf16 {
    fn sum_bf16<const ADD: bool>(&self, factors: Bf16Factors<'_>, c: &mut [&mut [Sums<f32>]]) {
        factors.check(c);
        let Bf16Factors { a, rows, b } = factors;
        for (b, c) in b.iter().zip(c) {
            for (group, (a, c)) in a.iter().zip(&mut **c).enumerate() {
                // SAFETY: the proof; there are as many tiles of rows as of weights.
                unsafe {
                    match rows - group * ROWS {
                        ..=4 => kernel::<4, ADD>(a, b, c),
                        5..=8 => kernel::<8, ADD>(a, b, c),
                        9..=12 => kernel::<12, ADD>(a, b, c),
                        _ => kernel::<16, ADD>(a, b, c),
                    }
                }
            }
        }
    }
}

/// Makes the sums of the first R rows; with `ADD`, adds to them instead.
///
/// # Safety
///
/// `a` and `b` are equally long.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn kernel<const R: usize, const ADD: bool>(a: &[Bf16Rows], b: &[Bf16Weights], c: &mut Sums<f32>) {
    let mut acc = [_mm512_setzero_ps(); R];
    if ADD {
        // SAFETY: rows of 16 floats.
        acc = std::array::from_fn(|row| unsafe { _mm512_load_ps(c.0[row].as_ptr()) });
    }
    for (rows, weights) in a.iter().zip(b) {
        let (rows, weights) = (rows.as_ptr().cast::<i32>(), weights.as_ptr());
        for pair in 0..ROWS {
            // SAFETY: a tile of weights is 16 vectors, a row of a tile 16 pairs.
            unsafe {
                let weights = bf16(read(weights.add(pair).cast()));
                for (row, acc) in acc.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32(read(rows.add(row * ROWS + pair)));
                    *acc = _mm512_dpbf16_ps(*acc, weights, bf16(x));
                }
            }
        }
    }
    for (acc, c) in acc.iter().zip(&mut c.0) {
        // SAFETY: 16 floats.
        unsafe { _mm512_store_ps(c.as_mut_ptr(), *acc) };
    }
}

/// The bits of `vector` as bf16.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn bf16(vector: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits of which any are valid.
    unsafe { std::mem::transmute(vector) }
}

/// Rounds to the nearest bf16, ties to even; NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) fn round(first: __m512, second: __m512) -> __m512i {
    // SAFETY: both are 512 bits of which any are valid.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(second, first)) }
}

/// Rounds 32 numbers in their order.
#[inline]
pub(crate) fn round_inputs(_: Avx512Bf16, x: &[f32; BF16_INPUTS], to: &mut [u16; BF16_INPUTS]) {
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn rounded(x: &[f32; BF16_INPUTS], to: &mut [u16; BF16_INPUTS]) {
        // SAFETY: 32 floats are read, as many bf16 written.
        unsafe {
            let halves = [0, BF16_INPUTS / 2].map(|half| _mm512_loadu_ps(x.as_ptr().add(half)));
            _mm512_storeu_si512(to.as_mut_ptr().cast(), round(halves[0], halves[1]));
        }
    }
    // SAFETY: the proof.
    unsafe { rounded(x, to) };
}

/// Rounds the weights of 16 outputs for two inputs, and interleaves them in pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) fn round_pairs(first: __m512, second: __m512) -> __m512i {
    const IN_PAIRS: [u16; BF16_INPUTS] = {
        let mut order = [0; BF16_INPUTS];
        let mut lane = 0;
        while lane < BF16_INPUTS / 2 {
            (order[2 * lane], order[2 * lane + 1]) = (lane as u16, (lane + BF16_INPUTS / 2) as u16);
            lane += 1;
        }
        order
    };
    // SAFETY: 64 bytes are read.
    let order = unsafe { _mm512_loadu_si512(IN_PAIRS.as_ptr().cast()) };
    _mm512_permutexvar_epi16(order, round(first, second))
}
