//! Dot products of int8 codes, on three instruction sets; all are exact.
//!
//! - NEON alone multiplies bytes to 16 bits. Two products, at most 2 · 128 · 127, are added there before neighbours are
//!   added in 32 bits.
//! - dotprod: `sdot` adds four products to every 32-bit lane, a row of the tile; the four activations are a lane of a
//!   vector that holds sixteen.
//! - i8mm: `smmla` multiplies two rows of eight by two rows of eight. Two rows of activations are interleaved by
//!   eights as they are read, the rows of a panel as it is filled. A single row decodes faster with `sdot`, which
//!   takes codes as they are packed.
//!
//! `sdot` and `smmla` have no stable intrinsics and are written as assembly, each in a function of its own that has
//! the instruction; called from where it is enabled, it becomes that instruction.

#[allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]
use std::arch::aarch64::*;
use std::arch::asm;

use super::super::super::layout::Shape;
use super::{GROUPS, Meaning};
use crate::isa::{Dotprod, I8mm, Neon};

/// The codes of four rows of a tile and 32 inputs.
type Weights = [int8x16_t; GROUPS];
/// The codes of 32 inputs of a row of activations.
type Activations = [int8x16_t; 2];
/// Sums for four rows of a tile: of a block, or, where M's shape has halves, of each half. The second is undefined
/// where there are none.
type Sums = [int32x4_t; 2];

/// What is compiled for an instruction set.
pub(in super::super) trait Work {
    /// Does it; must be `#[inline(always)]`.
    ///
    /// # Safety
    ///
    /// The caller has the instructions of D; beyond that as the work says.
    unsafe fn run<D: Dots>(self);
}

/// An instruction set's way to multiply codes; the value proves that the processor has it, and NEON.
///
/// All functions but [`run`](Self::run) may be called within work that it runs, nowhere else.
pub(in super::super) trait Dots: Copy {
    /// Does `work` in a function that has the instructions.
    ///
    /// # Safety
    ///
    /// As the work says.
    unsafe fn run<W: Work>(self, work: W);

    /// `start` plus the products of codes as they are packed.
    ///
    /// # Safety
    ///
    /// The processor has the instructions.
    unsafe fn one_row<M: Meaning>(start: Sums, weights: &Weights, x: Activations) -> Sums;

    /// The order in which a panel keeps codes.
    ///
    /// # Safety
    ///
    /// As [`one_row`](Self::one_row).
    #[inline(always)]
    unsafe fn arrange(weights: Weights) -> Weights {
        weights
    }

    /// The products of codes in a panel's order.
    ///
    /// # Safety
    ///
    /// As [`one_row`](Self::one_row).
    #[inline(always)]
    unsafe fn one_row_of_panel<M: Meaning>(weights: &Weights, x: Activations) -> Sums {
        // SAFETY: by the contract.
        unsafe { Self::one_row::<M>([vdupq_n_s32(0); 2], weights, x) }
    }

    /// The products of codes in a panel's order with two rows.
    ///
    /// # Safety
    ///
    /// As [`one_row`](Self::one_row).
    #[inline(always)]
    unsafe fn two_rows_of_panel<M: Meaning>(weights: &Weights, x: [Activations; 2]) -> [Sums; 2] {
        // SAFETY: by the contract.
        unsafe { [Self::one_row_of_panel::<M>(weights, x[0]), Self::one_row_of_panel::<M>(weights, x[1])] }
    }
}

/// The sums of a block or of its halves: one after the other, the second beginning where the first ends unless halves
/// have their own.
macro_rules! in_halves {
    ($half:ident, $meaning:ident, $start:ident, $weights:ident, $x:ident) => {{
        let &[a, b, c, d, e, f, g, h] = $weights;
        let first = $half($start[0], [a, b, c, d], $x[0]);
        match $meaning::SHAPE {
            Shape::Whole | Shape::WholeMin => [$half(first, [e, f, g, h], $x[1]), $start[1]],
            Shape::Halves | Shape::HalvesMin => [first, $half($start[1], [e, f, g, h], $x[1])],
        }
    }};
}

impl Dots for Neon {
    #[inline(always)]
    unsafe fn run<W: Work>(self, work: W) {
        #[target_feature(enable = "neon")]
        unsafe fn run<W: Work>(work: W) {
            // SAFETY: this function has the instructions; the rest by the contract.
            unsafe { work.run::<Neon>() }
        }
        // SAFETY: the proof; the rest by the contract.
        unsafe { run(work) }
    }

    #[inline(always)]
    unsafe fn one_row<M: Meaning>(start: Sums, weights: &Weights, x: Activations) -> Sums {
        // SAFETY: by the contract.
        unsafe { in_halves!(half_neon, M, start, weights, x) }
    }
}

impl Dots for Dotprod {
    #[inline(always)]
    unsafe fn run<W: Work>(self, work: W) {
        #[target_feature(enable = "neon,dotprod")]
        unsafe fn run<W: Work>(work: W) {
            // SAFETY: this function has the instructions; the rest by the contract.
            unsafe { work.run::<Dotprod>() }
        }
        // SAFETY: the proof; the rest by the contract.
        unsafe { run(work) }
    }

    #[inline(always)]
    unsafe fn one_row<M: Meaning>(start: Sums, weights: &Weights, x: Activations) -> Sums {
        // SAFETY: by the contract.
        unsafe { in_halves!(half_dotprod, M, start, weights, x) }
    }
}

impl Dots for I8mm {
    #[inline(always)]
    unsafe fn run<W: Work>(self, work: W) {
        #[target_feature(enable = "neon,dotprod,i8mm")]
        unsafe fn run<W: Work>(work: W) {
            // SAFETY: this function has the instructions; the rest by the contract.
            unsafe { work.run::<I8mm>() }
        }
        // SAFETY: the proof; the rest by the contract.
        unsafe { run(work) }
    }

    #[inline(always)]
    unsafe fn one_row<M: Meaning>(start: Sums, weights: &Weights, x: Activations) -> Sums {
        // SAFETY: i8mm is proven with dotprod.
        unsafe { Dotprod::one_row::<M>(start, weights, x) }
    }

    /// Eight consecutive inputs of two rows in every vector: rows 0 and 1, rows 2 and 3, then the next eight.
    #[inline(always)]
    unsafe fn arrange(weights: Weights) -> Weights {
        // SAFETY: by the contract.
        unsafe {
            let [a, b, c, d, e, f, g, h] = weights;
            let ([a, b], [c, d]) = (zip_rows(a, b), zip_rows(c, d));
            let ([e, f], [g, h]) = (zip_rows(e, f), zip_rows(g, h));
            [a, b, c, d, e, f, g, h]
        }
    }

    #[inline(always)]
    unsafe fn one_row_of_panel<M: Meaning>(weights: &Weights, x: Activations) -> Sums {
        // SAFETY: by the contract.
        unsafe { Self::two_rows_of_panel::<M>(weights, [x, x])[0] }
    }

    #[inline(always)]
    unsafe fn two_rows_of_panel<M: Meaning>(weights: &Weights, x: [Activations; 2]) -> [Sums; 2] {
        // SAFETY: by the contract.
        unsafe {
            let zero = [vdupq_n_s32(0); 2];
            let &[a, b, c, d, e, f, g, h] = weights;
            let first = half_i8mm(zero, [a, b, c, d], [x[0][0], x[1][0]]);
            match M::SHAPE {
                Shape::Whole | Shape::WholeMin => {
                    let [x0, x1] = by_row(half_i8mm(first, [e, f, g, h], [x[0][1], x[1][1]]));
                    [[x0, zero[0]], [x1, zero[0]]]
                }
                Shape::Halves | Shape::HalvesMin => {
                    let first = by_row(first);
                    let second = by_row(half_i8mm(zero, [e, f, g, h], [x[0][1], x[1][1]]));
                    [[first[0], second[0]], [first[1], second[1]]]
                }
            }
        }
    }
}

/// `start` plus the products of four groups.
///
/// # Safety
///
/// The processor has NEON.
#[inline(always)]
unsafe fn half_neon(start: int32x4_t, [a, b, c, d]: [int8x16_t; 4], x: int8x16_t) -> int32x4_t {
    // SAFETY: by the contract.
    unsafe {
        let x = vreinterpretq_s32_s8(x);
        let (xa, xb) = (vdupq_laneq_s32::<0>(x), vdupq_laneq_s32::<1>(x));
        let (xc, xd) = (vdupq_laneq_s32::<2>(x), vdupq_laneq_s32::<3>(x));
        let (xa, xb) = (vreinterpretq_s8_s32(xa), vreinterpretq_s8_s32(xb));
        let (xc, xd) = (vreinterpretq_s8_s32(xc), vreinterpretq_s8_s32(xd));
        // Each row of the tile has two neighbouring sums; `low` those of two rows, `high` those of the others.
        let ab = vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(xa)), vget_low_s8(b), vget_low_s8(xb));
        let cd = vmlal_s8(vmull_s8(vget_low_s8(c), vget_low_s8(xc)), vget_low_s8(d), vget_low_s8(xd));
        let low = vpadalq_s16(vpaddlq_s16(ab), cd);
        let ab = vmlal_high_s8(vmull_high_s8(a, xa), b, xb);
        let cd = vmlal_high_s8(vmull_high_s8(c, xc), d, xd);
        let high = vpadalq_s16(vpaddlq_s16(ab), cd);
        vaddq_s32(start, vpaddq_s32(low, high))
    }
}

/// As [`half_neon`].
///
/// # Safety
///
/// The processor has dotprod.
#[inline(always)]
unsafe fn half_dotprod(start: int32x4_t, [a, b, c, d]: [int8x16_t; 4], x: int8x16_t) -> int32x4_t {
    // SAFETY: by the contract.
    unsafe {
        let sum = sdot::<0>(start, a, x);
        let sum = sdot::<1>(sum, b, x);
        let sum = sdot::<2>(sum, c, x);
        sdot::<3>(sum, d, x)
    }
}

/// As [`half_neon`] for two rows of activations and codes in a panel's order; the first sum is that of rows 0 and 1
/// of the tile with both, the second that of rows 2 and 3.
///
/// # Safety
///
/// The processor has i8mm.
#[inline(always)]
unsafe fn half_i8mm(
    [low, high]: [int32x4_t; 2],
    [a, b, c, d]: [int8x16_t; 4],
    [x0, x1]: [int8x16_t; 2],
) -> [int32x4_t; 2] {
    // SAFETY: by the contract.
    unsafe {
        let (x0, x1) = (vreinterpretq_s64_s8(x0), vreinterpretq_s64_s8(x1));
        let early = vreinterpretq_s8_s64(vzip1q_s64(x0, x1));
        let late = vreinterpretq_s8_s64(vzip2q_s64(x0, x1));
        [smmla(smmla(low, early, a), late, c), smmla(smmla(high, early, b), late, d)]
    }
}

/// From sums of pairs of the tile's rows to those of each row of activations.
///
/// # Safety
///
/// The processor has NEON.
#[inline(always)]
unsafe fn by_row([low, high]: [int32x4_t; 2]) -> [int32x4_t; 2] {
    // SAFETY: by the contract.
    unsafe {
        let (low, high) = (vreinterpretq_s64_s32(low), vreinterpretq_s64_s32(high));
        [vreinterpretq_s32_s64(vtrn1q_s64(low, high)), vreinterpretq_s32_s64(vtrn2q_s64(low, high))]
    }
}

/// Two groups to eight inputs of rows 0 and 1, and of rows 2 and 3.
///
/// # Safety
///
/// The processor has NEON.
#[inline(always)]
unsafe fn zip_rows(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
    // SAFETY: by the contract.
    unsafe {
        let (a, b) = (vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b));
        [vreinterpretq_s8_s32(vzip1q_s32(a, b)), vreinterpretq_s8_s32(vzip2q_s32(a, b))]
    }
}

/// `sum`, in every lane, plus four products of codes with the four activations of lane LANE.
///
/// # Safety
///
/// The processor has dotprod.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn sdot<const LANE: i32>(sum: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
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
unsafe fn smmla(sum: int32x4_t, x: int8x16_t, weights: int8x16_t) -> int32x4_t {
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
