//! NEON, alone and with dotprod and i8mm: a strip is four vectors of 4 outputs.
//!
//! All dot products are exact.
//!
//! - NEON alone multiplies bytes to 16 bits. Two products, at most 2 · 128 · 127, are added there before neighbours are
//!   added in 32 bits.
//! - dotprod: `sdot` adds four products to every 32-bit lane; the four activations are a lane of a
//!   vector that holds sixteen.
//! - i8mm: `smmla` multiplies two rows of eight by two rows of eight. Two rows of activations are interleaved by
//!   eights as they are read, the outputs of a panel as it is filled. A single row decodes faster with `sdot`, which
//!   takes codes as they are packed.
//!
//! `sdot` and `smmla` have no stable intrinsics and are written as assembly, each in a function of its own that has
//! the instruction; called from code that is compiled for it, it becomes that instruction.
#![expect(unsafe_code, reason = "vector intrinsics behind proofs that the processor has them")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::formats::Meaning;
use super::vectors::{Centring, Dots, Vectors, Work, one_each, one_each_of_memory};
use crate::isa::{Dotprod, I8mm, Neon};

/// Codes of a quad of outputs and 32 inputs.
type Weights = [uint8x16_t; 8];
/// Sums of a quad of outputs: of a block, or of each half of it.
type Sums = [int32x4_t; 2];

/// A shift by one of 1 to 7 places.
macro_rules! shifted {
    ($shift:ident $codes:ident $by:expr) => {
        match $by {
            1 => $shift::<1>($codes),
            2 => $shift::<2>($codes),
            3 => $shift::<3>($codes),
            4 => $shift::<4>($codes),
            5 => $shift::<5>($codes),
            6 => $shift::<6>($codes),
            7 => $shift::<7>($codes),
            _ => $codes,
        }
    };
}

impl Vectors for Neon {
    type Codes = uint8x16_t;
    type Ints = int32x4_t;
    type Floats = float32x4_t;
    type Parts = [float32x4_t; 4];
    type FourInputs = float32x4_t;
    const PARTS: usize = 4;

    one_each! {
        zero_parts() -> [float32x4_t; 4] = [vdupq_n_f32(0.0); 4];
        look_up(table: &[u8; 16], codes: uint8x16_t) -> uint8x16_t = vqtbl1q_u8(vld1q_u8(table.as_ptr()), codes);
        or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t = vorrq_u8(a, b);
        minus(codes: uint8x16_t, offset: u8) -> uint8x16_t = vsubq_u8(codes, vdupq_n_u8(offset));
        bits(codes: uint8x16_t, from: usize, to: usize, mask: u8) -> uint8x16_t = {
            let moved =
                if from >= to { shifted!(vshrq_n_u8 codes from - to) } else { shifted!(vshlq_n_u8 codes to - from) };
            vandq_u8(moved, vdupq_n_u8(mask << to))
        };
        floats(ints: int32x4_t) -> float32x4_t = vcvtq_f32_s32(ints);
        splat(value: f32) -> float32x4_t = vdupq_n_f32(value);
        add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
        mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
        mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
    }

    one_each_of_memory! {
        load_codes(from: *const u8) -> uint8x16_t = vld1q_u8(from);
        store_codes(codes: uint8x16_t, to: *mut u8) = vst1q_u8(to, codes);
        load(from: *const f32) -> float32x4_t = vld1q_f32(from);
        store(floats: float32x4_t, to: *mut f32) = vst1q_f32(to, floats);
        load_f16(from: *const u8) -> float32x4_t = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
        load_bf16_pair(from: *const u8) -> [float32x4_t; 2] = {
            let both = vreinterpretq_u32_u8(vld1q_u8(from));
            let high = vandq_u32(both, vdupq_n_u32(0xffff_0000));
            [vreinterpretq_f32_u32(vshlq_n_u32::<16>(both)), vreinterpretq_f32_u32(high)]
        };
        load_four(from: *const f32) -> float32x4_t = vld1q_f32(from);
    }

    #[inline(always)]
    unsafe fn add_product<const AT: usize>(
        self,
        weights: float32x4_t,
        x: float32x4_t,
        sum: float32x4_t,
    ) -> float32x4_t {
        // SAFETY: `self` proves the instructions.
        unsafe {
            match AT {
                0 => vfmaq_laneq_f32::<0>(sum, weights, x),
                1 => vfmaq_laneq_f32::<1>(sum, weights, x),
                2 => vfmaq_laneq_f32::<2>(sum, weights, x),
                _ => vfmaq_laneq_f32::<3>(sum, weights, x),
            }
        }
    }
}

/// The implementations of [`Dots`], compiled for `$features`; `$half` adds the products of four groups and 16 activations.
macro_rules! dots {
    ($proof:ty, $features:literal, $half:ident, $vectors:expr; $($more:tt)*) => {
        impl Dots for $proof {
            type V = Neon;
            const CENTRING: Centring = Centring::Signed;
            const PLANE_ROWS: usize = 4;
            const PANEL_ROWS: usize = 8;
            const PAIRS: bool = true;

            #[inline(always)]
            fn vectors(self) -> Neon {
                let vectors: fn(Self) -> Neon = $vectors;
                vectors(self)
            }

            #[inline(always)]
            fn run(self, work: impl Work) {
                #[target_feature(enable = $features)]
                fn run(proof: $proof, work: impl Work) {
                    work.run(proof);
                }
                // SAFETY: the proof.
                unsafe { run(self, work) }
            }

            #[inline(always)]
            unsafe fn dots<M: Meaning, const R: usize>(
                self,
                start: [i32; 2],
                weights: &Weights,
                x: *const i8,
            ) -> Sums {
                let &[a, b, c, d, e, f, g, h] = weights;
                // SAFETY: `self` proves the instructions; memory by the contract.
                unsafe {
                    let first = $half(vdupq_n_s32(start[0]), [a, b, c, d], vld1q_s8(x));
                    // The second half begins where the first ends, unless it has a sum of its own.
                    let second = if M::SHAPE.has_halves() { vdupq_n_s32(start[1]) } else { first };
                    let second = $half(second, [e, f, g, h], vld1q_s8(x.add(16)));
                    if M::SHAPE.has_halves() { [first, second] } else { [second, first] }
                }
            }

            $($more)*
        }
    };
}

dots! { Neon, "neon", half_neon, |proof| proof; }
dots! { Dotprod, "neon,dotprod", half_dotprod, Dotprod::neon; }
dots! {
    I8mm, "neon,dotprod,i8mm", half_dotprod, I8mm::neon;

    /// Eight consecutive inputs of two outputs in every vector: outputs 0 and 1, outputs 2 and 3, then the next eight.
    #[inline(always)]
    fn arrange(self, [a, b, c, d, e, f, g, h]: Weights) -> Weights {
        // SAFETY: `self` proves the instructions.
        unsafe {
            let ([a, b], [c, d]) = (zip_outputs(a, b), zip_outputs(c, d));
            let ([e, f], [g, h]) = (zip_outputs(e, f), zip_outputs(g, h));
            [a, b, c, d, e, f, g, h]
        }
    }

    #[inline(always)]
    unsafe fn panel_dots<M: Meaning, const R: usize>(
        self,
        start: [i32; 2],
        weights: &Weights,
        x: *const i8,
    ) -> Sums {
        // SAFETY: by the contract.
        unsafe { self.panel_dots_of_pair::<M>([start; 2], weights, [x; 2])[0] }
    }

    #[inline(always)]
    unsafe fn panel_dots_of_pair<M: Meaning>(
        self,
        start: [[i32; 2]; 2],
        weights: &Weights,
        x: [*const i8; 2],
    ) -> [Sums; 2] {
        let &[a, b, c, d, e, f, g, h] = weights;
        // SAFETY: `self` proves the instructions; memory by the contract.
        unsafe {
            let zero = [vdupq_n_s32(0); 2];
            let first = half_i8mm(zero, [a, b, c, d], [vld1q_s8(x[0]), vld1q_s8(x[1])]);
            let begin = if M::SHAPE.has_halves() { zero } else { first };
            let second = half_i8mm(begin, [e, f, g, h], [vld1q_s8(x[0].add(16)), vld1q_s8(x[1].add(16))]);
            let (first, second) = (by_row(first), by_row(second));
            let sums = if M::SHAPE.has_halves() {
                [[first[0], second[0]], [first[1], second[1]]]
            } else {
                [[second[0], second[0]], [second[1], second[1]]]
            };
            let plus = |[a, b]: Sums, [c, d]: [i32; 2]| [vaddq_s32(a, vdupq_n_s32(c)), vaddq_s32(b, vdupq_n_s32(d))];
            [plus(sums[0], start[0]), plus(sums[1], start[1])]
        }
    }
}

/// `start` plus the products of four groups.
///
/// # Safety
///
/// The processor has NEON.
#[inline(always)]
unsafe fn half_neon(start: int32x4_t, weights: [uint8x16_t; 4], x: int8x16_t) -> int32x4_t {
    // SAFETY: by the contract.
    unsafe {
        let [a, b, c, d] = weights.map(|codes| vreinterpretq_s8_u8(codes));
        let x = vreinterpretq_s32_s8(x);
        let (xa, xb) = (vdupq_laneq_s32::<0>(x), vdupq_laneq_s32::<1>(x));
        let (xc, xd) = (vdupq_laneq_s32::<2>(x), vdupq_laneq_s32::<3>(x));
        let (xa, xb) = (vreinterpretq_s8_s32(xa), vreinterpretq_s8_s32(xb));
        let (xc, xd) = (vreinterpretq_s8_s32(xc), vreinterpretq_s8_s32(xd));
        // Each output has two neighbouring sums; `low` those of two outputs, `high` those of the others.
        let ab = vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(xa)), vget_low_s8(b), vget_low_s8(xb));
        let cd = vmlal_s8(vmull_s8(vget_low_s8(c), vget_low_s8(xc)), vget_low_s8(d), vget_low_s8(xd));
        let low = vpadalq_s16(vpaddlq_s16(ab), cd);
        let ab = vmlal_high_s8(vmull_high_s8(a, xa), b, xb);
        let cd = vmlal_high_s8(vmull_high_s8(c, xc), d, xd);
        let high = vpadalq_s16(vpaddlq_s16(ab), cd);
        vaddq_s32(start, vpaddq_s32(low, high))
    }
}

/// `start` plus the products of four groups.
///
/// # Safety
///
/// The processor has dotprod.
#[inline(always)]
unsafe fn half_dotprod(start: int32x4_t, [a, b, c, d]: [uint8x16_t; 4], x: int8x16_t) -> int32x4_t {
    // SAFETY: by the contract.
    unsafe {
        let sum = sdot::<0>(start, a, x);
        let sum = sdot::<1>(sum, b, x);
        let sum = sdot::<2>(sum, c, x);
        sdot::<3>(sum, d, x)
    }
}

/// Sums plus the products of four groups, in a panel's order, with two rows of activations. The first sum is that of outputs
/// 0 and 1 with both rows, the second that of outputs 2 and 3.
///
/// # Safety
///
/// The processor has i8mm.
#[inline(always)]
unsafe fn half_i8mm([low, high]: Sums, [a, b, c, d]: [uint8x16_t; 4], [x0, x1]: [int8x16_t; 2]) -> Sums {
    // SAFETY: by the contract.
    unsafe {
        let (x0, x1) = (vreinterpretq_s64_s8(x0), vreinterpretq_s64_s8(x1));
        let early = vreinterpretq_s8_s64(vzip1q_s64(x0, x1));
        let late = vreinterpretq_s8_s64(vzip2q_s64(x0, x1));
        [smmla(smmla(low, early, a), late, c), smmla(smmla(high, early, b), late, d)]
    }
}

/// Sums of pairs of outputs to those of each row of activations.
///
/// # Safety
///
/// The processor has NEON.
#[inline(always)]
unsafe fn by_row([low, high]: Sums) -> [int32x4_t; 2] {
    // SAFETY: by the contract.
    unsafe {
        let (low, high) = (vreinterpretq_s64_s32(low), vreinterpretq_s64_s32(high));
        [vreinterpretq_s32_s64(vtrn1q_s64(low, high)), vreinterpretq_s32_s64(vtrn2q_s64(low, high))]
    }
}

/// Two groups to eight inputs of outputs 0 and 1, and of outputs 2 and 3.
///
/// # Safety
///
/// The processor has NEON.
#[inline(always)]
unsafe fn zip_outputs(a: uint8x16_t, b: uint8x16_t) -> [uint8x16_t; 2] {
    // SAFETY: by the contract.
    unsafe {
        let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
        [vreinterpretq_u8_u32(vzip1q_u32(a, b)), vreinterpretq_u8_u32(vzip2q_u32(a, b))]
    }
}

/// `sum`, in every lane, plus four products of codes with the four activations of lane LANE.
///
/// # Safety
///
/// The processor has dotprod.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn sdot<const LANE: i32>(sum: int32x4_t, weights: uint8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: by the contract; nothing but registers is touched.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {weights:v}.16b, {x:v}.4b[{lane}]",
            sum = inout(vreg) sum,
            weights = in(vreg) weights,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// `sum[2i + j]` plus the products of the eight codes `x[8i..]` and `weights[8j..]`.
///
/// # Safety
///
/// The processor has i8mm.
#[inline]
#[target_feature(enable = "neon,i8mm")]
unsafe fn smmla(sum: int32x4_t, x: int8x16_t, weights: uint8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: by the contract; nothing but registers is touched.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {x:v}.16b, {weights:v}.16b",
            sum = inout(vreg) sum,
            x = in(vreg) x,
            weights = in(vreg) weights,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
