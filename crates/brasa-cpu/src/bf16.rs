//! Products of bf16, by whatever the instruction set multiplies them with: tiles, or vectors of pairs.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; loads need no alignment"
)]

use std::arch::x86_64::*;

use crate::isa::{Avx512, Avx512Bf16};
use crate::simd::LANES;
use crate::tiles::{
    AmxThread, BF16_INPUTS, Bf16Rows, Bf16Unit, Bf16Weights, EmulatedBf16, ROWS, Sums, Tiles, check_bf16,
};

/// What multiplies bf16 on this thread.
pub(crate) enum Bf16Multiplier {
    Amx(AmxThread),
    Emulated(EmulatedBf16),
    Vectors(Avx512Bf16),
}

impl Bf16Multiplier {
    /// Sets the thread up.
    pub(crate) fn new(proof: Avx512, bf16: Avx512Bf16) -> Self {
        match proof.tiles() {
            Some(Tiles::Amx(amx)) => Self::Amx(amx.bf16()),
            Some(Tiles::Emulated) => Self::Emulated(EmulatedBf16),
            None => Self::Vectors(bf16),
        }
    }
}

impl Bf16Unit for Bf16Multiplier {
    #[inline]
    fn add_bf16(&self, a: &[&[Bf16Rows]], rows: usize, b: &[&[Bf16Weights]], c: &mut [&mut [Sums<f32>]]) {
        match self {
            Self::Amx(unit) => unit.add_bf16(a, rows, b, c),
            Self::Emulated(unit) => unit.add_bf16(a, rows, b, c),
            Self::Vectors(unit) => unit.add_bf16(a, rows, b, c),
        }
    }

    #[inline]
    fn multiply_bf16(
        &self,
        a: &[&[Bf16Rows]],
        rows: usize,
        b: &[&[Bf16Weights]],
        c: &mut [&mut [Sums<f32>]],
    ) {
        match self {
            Self::Amx(unit) => unit.multiply_bf16(a, rows, b, c),
            Self::Emulated(unit) => unit.multiply_bf16(a, rows, b, c),
            Self::Vectors(unit) => unit.multiply_bf16(a, rows, b, c),
        }
    }
}

/// Sums of 16 rows and 16 outputs, in one chain of additions each, pairs in the order of k.
impl Bf16Unit for Avx512Bf16 {
    fn add_bf16(&self, a: &[&[Bf16Rows]], rows: usize, b: &[&[Bf16Weights]], c: &mut [&mut [Sums<f32>]]) {
        products::<true>(*self, a, rows, b, c);
    }

    fn multiply_bf16(
        &self,
        a: &[&[Bf16Rows]],
        rows: usize,
        b: &[&[Bf16Weights]],
        c: &mut [&mut [Sums<f32>]],
    ) {
        products::<false>(*self, a, rows, b, c);
    }
}

/// Products, and where `ADD` is true what was there before.
fn products<const ADD: bool>(
    _: Avx512Bf16,
    a: &[&[Bf16Rows]],
    rows: usize,
    b: &[&[Bf16Weights]],
    c: &mut [&mut [Sums<f32>]],
) {
    check_bf16(a, b, c);
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

/// The sums of the first R rows.
///
/// # Safety
///
/// `a` and `b` are equally long.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn kernel<const R: usize, const ADD: bool>(a: &[Bf16Rows], b: &[Bf16Weights], c: &mut Sums<f32>) {
    let mut acc: [__m512; R] = std::array::from_fn(|row| {
        // SAFETY: rows of 16 floats.
        if ADD { unsafe { _mm512_load_ps(c.0[row].as_ptr()) } } else { _mm512_setzero_ps() }
    });
    for (rows, weights) in a.iter().zip(b) {
        let (rows, weights) = (rows.as_ptr().cast::<i32>(), weights.as_ptr());
        for pair in 0..ROWS {
            // SAFETY: a tile of weights is 16 vectors, a row of a tile 16 pairs.
            unsafe {
                let weights = bf16(_mm512_loadu_si512(weights.add(pair).cast()));
                for (row, acc) in acc.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32(rows.add(row * ROWS + pair).read_unaligned());
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

/// The same bits.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn bf16(vector: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits of which any are valid.
    unsafe { std::mem::transmute(vector) }
}

/// To the nearest bf16, ties to even; NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) fn round(first: __m512, second: __m512) -> __m512i {
    // SAFETY: both are 512 bits of which any are valid.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(second, first)) }
}

/// Two vectors, rounded: element i of both side by side, as a tile of weights has a pair of inputs of an output.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) fn round_pairs(first: __m512, second: __m512) -> __m512i {
    const ORDER: [u16; BF16_INPUTS] = {
        let mut order = [0; BF16_INPUTS];
        let mut lane = 0;
        while lane < LANES {
            (order[2 * lane], order[2 * lane + 1]) = (lane as u16, (lane + LANES) as u16);
            lane += 1;
        }
        order
    };
    // SAFETY: 32 places are read.
    let order = unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) };
    _mm512_permutexvar_epi16(order, round(first, second))
}

/// Rounds `x` into row `lane` of as many tiles as it fills; the last is filled up with zeroes.
pub(crate) fn round_row(_: Avx512Bf16, x: &[f32], lane: usize, tiles: &mut [Bf16Rows]) {
    // SAFETY: the proof.
    unsafe { round_row_avx512(x, lane, tiles) }
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn round_row_avx512(x: &[f32], lane: usize, tiles: &mut [Bf16Rows]) {
    let (whole, rest) = x.as_chunks::<BF16_INPUTS>();
    let mut last = [0.0; BF16_INPUTS];
    last[..rest.len()].copy_from_slice(rest);
    for (x, tile) in whole.iter().chain([&last]).zip(tiles) {
        // SAFETY: 32 floats are read, as many bf16 written.
        unsafe {
            let halves = [0, LANES].map(|half| _mm512_loadu_ps(x.as_ptr().add(half)));
            let rounded = round(halves[0], halves[1]);
            _mm512_storeu_si512(tile[lane].as_mut_ptr().cast(), rounded);
        }
    }
}
