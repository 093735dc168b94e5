//! NEON: the 16 rows of a tile as four quads, one vector each.
//!
//! One row of activations needs all 16 running sums of a tile in registers and passes it once, strictly forward. With
//! more rows there is room for fewer quads: six rows multiply one, twenty-four sums. So as not to fetch every
//! line of a tile from the second cache once for each quad, the quads take turns on [`CHUNK`] inputs.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; vector loads need no alignment"
)]

use std::arch::aarch64::*;
use std::array::from_fn;
use std::ops::Range;

use super::super::layout::{Float, LANES};
use super::super::scales::Lanes;
use super::kinds::{Kind, with_kind};
use super::{FloatLayout, PHASES};
use crate::isa::Neon;

/// Rows of a vector.
const QUAD: usize = 4;
/// Vectors of a tile's rows.
const QUADS: usize = LANES / QUAD;
/// Inputs that all quads pass before any goes on, a multiple of [`PHASES`]: 16 KiB of a tile, and their activations,
/// stay in the first cache.
const CHUNK: usize = 256;

/// The running sums of a quad for one row.
type Sums = [float32x4_t; PHASES];

pub(super) fn multiply_tile(_: Neon, layout: &FloatLayout, tile: &[u8], x: &[&[f32]], out: &mut [Lanes]) {
    // SAFETY: the proof; `super::multiply_tiles` checked all lengths.
    with_kind!(layout, K => unsafe {
        match x.len() {
            6 => kernel::<K, 6, 1>(layout.k, tile, x, out),
            4 => kernel::<K, 4, 1>(layout.k, tile, x, out),
            2 => kernel::<K, 2, 2>(layout.k, tile, x, out),
            1 => kernel::<K, 1, 4>(layout.k, tile, x, out),
            rows => unreachable!("a kernel call of {rows} rows"),
        }
    });
}

/// Products with R rows, Q quads at a time.
///
/// # Safety
///
/// `tile` is a tile of `k` inputs of type K; `x` and `out` have R rows, those of `x` are `k` long.
#[target_feature(enable = "neon")]
unsafe fn kernel<K: Kind, const R: usize, const Q: usize>(
    k: usize,
    tile: &[u8],
    x: &[&[f32]],
    out: &mut [Lanes],
) {
    let mut sums = [[[vdupq_n_f32(0.0); PHASES]; R]; QUADS];
    for start in (0..k).step_by(CHUNK) {
        let (sums, _) = sums.as_chunks_mut::<Q>();
        for (at, sums) in sums.iter_mut().enumerate() {
            // SAFETY: by the contract; inputs `start..` are within the tile and the rows.
            unsafe { add_inputs::<K, R, Q>(tile.as_ptr(), at * Q, start..k.min(start + CHUNK), x, sums) };
        }
    }
    for (quad, sums) in sums.iter().enumerate() {
        for ([s0, s1, s2, s3], out) in sums.iter().zip(&mut *out) {
            let sum = vaddq_f32(vaddq_f32(*s0, *s1), vaddq_f32(*s2, *s3));
            // SAFETY: `out` is 16 floats.
            unsafe { vst1q_f32(out.as_mut_ptr().add(QUAD * quad), sum) };
        }
    }
}

/// Adds the products of some inputs to the sums of Q quads from `first` on.
///
/// # Safety
///
/// `inputs` are within the tile, which is of type K, and within all R rows of `x`; they begin at a multiple of four.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn add_inputs<K: Kind, const R: usize, const Q: usize>(
    tile: *const u8,
    first: usize,
    inputs: Range<usize>,
    x: &[&[f32]],
    sums: &mut [[Sums; R]; Q],
) {
    let mut now = *sums;
    let mut at = inputs.start;
    while at + PHASES <= inputs.end {
        // SAFETY: inputs `at..at + 4` exist.
        unsafe {
            let weights: [_; Q] = from_fn(|quad| four::<K>(tile, first + quad, at));
            for row in 0..R {
                let x = vld1q_f32(x.get_unchecked(row).as_ptr().add(at));
                for (now, weights) in now.iter_mut().zip(&weights) {
                    let sums = &mut now[row];
                    sums[0] = vfmaq_laneq_f32::<0>(sums[0], weights[0], x);
                    sums[1] = vfmaq_laneq_f32::<1>(sums[1], weights[1], x);
                    sums[2] = vfmaq_laneq_f32::<2>(sums[2], weights[2], x);
                    sums[3] = vfmaq_laneq_f32::<3>(sums[3], weights[3], x);
                }
            }
        }
        at += PHASES;
    }
    // Sums are named by constants, else they would live in memory.
    for phase in 0..PHASES - 1 {
        if at + phase < inputs.end {
            for (quad, now) in now.iter_mut().enumerate() {
                // SAFETY: input `at + phase` exists.
                unsafe {
                    let weights = one::<K>(tile, first + quad, at + phase);
                    for (row, sums) in now.iter_mut().enumerate() {
                        let x = *x.get_unchecked(row).get_unchecked(at + phase);
                        sums[phase] = vfmaq_n_f32(sums[phase], weights, x);
                    }
                }
            }
        }
    }
    *sums = now;
}

/// A quad's weights of inputs `at..at + 4`, `at` being even.
///
/// # Safety
///
/// They are within the tile.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn four<K: Kind>(tile: *const u8, quad: usize, at: usize) -> [float32x4_t; PHASES] {
    // SAFETY: by the contract.
    unsafe {
        match K::FLOAT {
            Float::BF16 => {
                let [first, second] =
                    [0, 64].map(|offset| pair(tile.add(at * 2 * LANES + 4 * QUAD * quad + offset)));
                [first[0], first[1], second[0], second[1]]
            }
            _ => from_fn(|phase| one::<K>(tile, quad, at + phase)),
        }
    }
}

/// A quad's weights of input `at`.
///
/// # Safety
///
/// They are within the tile.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn one<K: Kind>(tile: *const u8, quad: usize, at: usize) -> float32x4_t {
    // SAFETY: by the contract.
    unsafe {
        match K::FLOAT {
            Float::F32 => vld1q_f32(tile.add((at * LANES + quad * QUAD) * 4).cast()),
            Float::F16 => {
                let halves = vld1_u16(tile.add((at * LANES + quad * QUAD) * 2).cast());
                vcvt_f32_f16(vreinterpret_f16_u16(halves))
            }
            Float::BF16 => pair(tile.add((at / 2 * LANES + quad * QUAD) * 4))[at % 2],
        }
    }
}

/// A quad's weights of two inputs of bf16.
///
/// # Safety
///
/// 16 bytes are readable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn pair(stored: *const u8) -> [float32x4_t; 2] {
    // SAFETY: by the contract.
    let both = unsafe { vld1q_u32(stored.cast()) };
    let high = vandq_u32(both, vdupq_n_u32(0xffff_0000));
    [vreinterpretq_f32_u32(vshlq_n_u32::<16>(both)), vreinterpretq_f32_u32(high)]
}
