//! Four or six rows of floats times a strip, one of the four running sums after the other: for AVX2.
//!
//! Its sixteen registers hold all running sums of two rows, of which each weight is converted for itself, or one running sum of both parts of
//! a strip for six rows, of which each weight is converted once. The other sums wait in the first cache, while a slab of inputs stays there for all four.
#![expect(unsafe_code, reason = "vector loads through pointers")]

use std::array::from_fn;
use std::marker::PhantomData;

use super::super::formats::Float;
use super::super::layout::{LANES, Lanes};
use super::PHASES;
use super::floats::{FloatKind, one};
use super::vectors::{Dots, Vectors, Work};

/// Inputs of a slab, a multiple of [`PHASES`]: 16 KiB of F32 weights and 6 KiB of activations.
const SLAB: usize = 256;

/// Writes the products of a strip with R rows.
///
/// # Safety
///
/// The strip is of type K and has `k` inputs, as each of the R rows does; there are R results.
pub(super) unsafe fn multiply_strip<D: Dots, K: FloatKind, const R: usize>(
    dots: D,
    k: usize,
    strip: &[u8],
    x: &[&[f32]],
    out: &mut [Lanes],
) {
    // SAFETY: R rows, by the contract.
    let x: [_; R] = from_fn(|row| unsafe { x.get_unchecked(row).as_ptr() });
    let strip = strip.as_ptr();
    let mut sums = [[[0.0; LANES]; R]; PHASES];
    for start in (0..k).step_by(SLAB) {
        let inputs = SLAB.min(k - start);
        for (phase, sums) in sums.iter_mut().enumerate() {
            let count = (inputs + PHASES - 1 - phase) / PHASES;
            let at = start + phase;
            if phase % 2 == 0 {
                dots.run(Steps::<K, R, 0> { strip, x, at, count, sums, kind: PhantomData });
            } else {
                dots.run(Steps::<K, R, 1> { strip, x, at, count, sums, kind: PhantomData });
            }
        }
    }
    let [s0, s1, s2, s3] = &sums;
    for (row, out) in out.iter_mut().enumerate() {
        *out = from_fn(|lane| (s0[row][lane] + s1[row][lane]) + (s2[row][lane] + s3[row][lane]));
    }
}

/// Adds the products of every fourth input from `at` on to the sums of R rows. ODD is the input's place in its pair.
struct Steps<'a, K, const R: usize, const ODD: usize> {
    strip: *const u8,
    x: [*const f32; R],
    at: usize,
    count: usize,
    sums: &'a mut [Lanes; R],
    kind: PhantomData<K>,
}

impl<K: FloatKind, const R: usize, const ODD: usize> Work for Steps<'_, K, R, ODD> {
    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        let Self { strip, x, mut at, count, sums, .. } = self;
        let v = dots.vectors();
        let mut now = [v.zero_parts(); R];
        for (now, sums) in now.iter_mut().zip(&*sums) {
            for part in 0..D::V::PARTS {
                // SAFETY: a row's sums are the lanes of all parts.
                now[part] = unsafe { v.load(sums.as_ptr().add(D::V::OUTPUTS * part)) };
            }
        }
        for _ in 0..count {
            let mut weights = v.zero_parts();
            for part in 0..D::V::PARTS {
                // SAFETY: the input is within the strip, which is of type K.
                weights[part] = unsafe { weight::<_, K, ODD>(v, strip, part, at) };
            }
            for row in 0..R {
                // SAFETY: the input is within the row.
                let x = v.splat(unsafe { *x[row].add(at) });
                for part in 0..D::V::PARTS {
                    now[row][part] = v.mul_add(weights[part], x, now[row][part]);
                }
            }
            at += PHASES;
        }
        for (now, sums) in now.iter().zip(sums) {
            for part in 0..D::V::PARTS {
                // SAFETY: a row's sums are the lanes of all parts.
                unsafe { v.store(now[part], sums.as_mut_ptr().add(D::V::OUTPUTS * part)) };
            }
        }
    }
}

/// A part's weights of input `at`, which is ODD modulo 2.
///
/// # Safety
///
/// They are within the strip.
#[inline(always)]
unsafe fn weight<V: Vectors, K: FloatKind, const ODD: usize>(
    v: V,
    strip: *const u8,
    part: usize,
    at: usize,
) -> V::Floats {
    // SAFETY: by the contract.
    unsafe {
        if const { matches!(K::FLOAT, Float::BF16) } {
            return v.load_bf16_pair(strip.add((at / 2 * LANES + V::OUTPUTS * part) * 4))[ODD];
        }
        one::<V, K>(v, strip, part, at)
    }
}
