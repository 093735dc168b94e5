//! Products of F32, F16 and BF16 weights with f32 activations, written once over [`Vectors`].
//!
//! Each output has four running sums, of the inputs k ≡ 0, 1, 2, 3 (mod 4), added with fused
//! multiply-add in the order of k and combined as `(s0 + s1) + (s2 + s3)`: enough independent chains to fill
//! the pipeline with one row, and the same order for any number of rows and on every instruction set.
//!
//! With AVX-512 a strip is passed once, strictly forward, and so it is with NEON and one row, whose running sums of all parts fit
//! the registers. With more rows there is room for fewer parts. So as not to fetch every line of a strip from the second cache once
//! for each part, NEON's parts take turns on [`CHUNK`] inputs. AVX2 passes a strip twice with one row or two: both parts at once were
//! slower by a quarter with one (F16, weights in the cache, Zen 4). It has [another way](super::phase_rows) with more.
#![expect(unsafe_code, reason = "vector loads through pointers")]

use std::marker::PhantomData;
use std::ops::Range;

use super::super::float_layout::FloatLayout;
use super::super::formats::Float;
use super::super::layout::{LANES, Lanes};
use super::vectors::{Dots, Vectors, Work};
use super::{PHASES, phase_rows};
use crate::prefetch::PrefetchPolicy;

/// Inputs that all parts pass before any goes on, a multiple of [`PHASES`]: 16 KiB of a strip, and their activations,
/// stay in the first cache.
const CHUNK: usize = 256;

/// A storage type as a type: a kernel is compiled for each.
pub(super) trait FloatKind {
    const FLOAT: Float;
}

/// Declares a type for each storage type, and the dispatch to them.
macro_rules! float_kinds {
    ($($name:ident),*) => {
        $(
            pub(super) struct $name;
            impl FloatKind for $name {
                const FLOAT: Float = Float::$name;
            }
        )*

        /// Evaluates the expression with `$kind` standing for the storage type of `$layout`.
        macro_rules! with_float {
            ($layout:expr, $kind:ident => $value:expr) => {
                match $layout.float {
                    $($crate::linear::formats::Float::$name => {
                        type $kind = $crate::linear::kernels::floats::$name;
                        $value
                    })*
                }
            };
        }
    };
}
float_kinds!(F32, F16, BF16);
#[cfg(target_arch = "x86_64")]
pub(super) use with_float;

/// Writes the products of consecutive packed strips with all rows of `x`: for each strip those of all rows.
///
/// Lengths were checked: strips are whole, every row has the inputs of `layout`, and `out` has all rows for each strip.
pub(super) fn multiply_strips(
    dots: impl Dots,
    layout: &FloatLayout,
    strips: &[u8],
    x: &[&[f32]],
    out: &mut [Lanes],
) {
    for (strip, out) in strips.chunks_exact(layout.strip_bytes()).zip(out.chunks_exact_mut(x.len())) {
        multiply_strip(dots.vectors(), layout, strip, x, out);
    }
}

fn multiply_strip<D: Dots>(dots: D, layout: &FloatLayout, strip: &[u8], x: &[&[f32]], out: &mut [Lanes]) {
    for (x, out) in x.chunks(6).zip(out.chunks_mut(6)) {
        macro_rules! run {
            ($rows:literal, $parts:literal) => {
                with_float!(layout, K => {
                    dots.run(OfStrip::<K, $rows, $parts> { k: layout.k, strip, x, out, kind: PhantomData });
                })
            };
        }
        macro_rules! by_phase {
            ($rows:literal) => {
                // SAFETY: the strip is of type K; lengths were checked.
                with_float!(layout, K => unsafe {
                    phase_rows::multiply_strip::<_, K, $rows>(dots, layout.k, strip, x, out);
                })
            };
        }
        match (x.len(), D::V::PARTS) {
            (6, 2) => by_phase!(6),
            (4, 2) => by_phase!(4),
            (6, 1 | 4) => run!(6, 1),
            (4, 1 | 4) => run!(4, 1),
            (2, 1 | 2) => run!(2, 1),
            (2, 4) => run!(2, 2),
            (1, 1 | 2) => run!(1, 1),
            (1, 4) => run!(1, 4),
            (rows, parts) => unreachable!("a kernel call of {rows} rows and {parts} parts"),
        }
    }
}

/// Products of a strip with R rows, P parts at a time.
struct OfStrip<'a, K, const R: usize, const P: usize> {
    k: usize,
    strip: &'a [u8],
    x: &'a [&'a [f32]],
    out: &'a mut [Lanes],
    kind: PhantomData<K>,
}

impl<K: FloatKind, const R: usize, const P: usize> Work for OfStrip<'_, K, R, P> {
    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        let Self { k, strip, x, out, .. } = self;
        let v = dots.vectors();
        let zero = [[[v.splat(0.0); PHASES]; R]; P];
        if D::V::PARTS == 4 && P < 4 {
            let mut sums = [[[[v.splat(0.0); PHASES]; R]; P]; 4];
            for start in (0..k).step_by(CHUNK) {
                for (index, sums) in sums.iter_mut().take(4 / P).enumerate() {
                    let mut now = *sums;
                    // SAFETY: the inputs are within the strip and the rows.
                    unsafe {
                        add_inputs::<_, K, R, P>(
                            v,
                            strip,
                            P * index,
                            start..k.min(start + CHUNK),
                            x,
                            &mut now,
                        );
                    };
                    *sums = now;
                }
            }
            for (index, sums) in sums.iter().take(4 / P).enumerate() {
                store(v, sums, P * index, out);
            }
            return;
        }
        for first in (0..D::V::PARTS).step_by(P) {
            let mut sums = zero;
            // SAFETY: the inputs are within the strip and the rows.
            unsafe { add_inputs::<_, K, R, P>(v, strip, first, 0..k, x, &mut sums) };
            store(v, &sums, first, out);
        }
    }
}

/// Writes the sums of P parts from `first` on.
#[inline(always)]
fn store<V: Vectors, const R: usize, const P: usize>(
    v: V,
    sums: &[[[V::Floats; PHASES]; R]; P],
    first: usize,
    out: &mut [Lanes],
) {
    for (part, sums) in sums.iter().enumerate() {
        for ([s0, s1, s2, s3], out) in sums.iter().zip(&mut *out) {
            let sum = v.add(v.add(*s0, *s1), v.add(*s2, *s3));
            let out = &mut out[V::OUTPUTS * (first + part)..][..V::OUTPUTS];
            // SAFETY: the lanes of a part.
            unsafe { v.store(sum, out.as_mut_ptr()) };
        }
    }
}

/// Adds the products of some inputs to the sums of P parts from `first` on.
///
/// # Safety
///
/// `inputs` are within the strip, which is of type K, and within all R rows of `x`; they begin at a multiple of four.
#[inline(always)]
unsafe fn add_inputs<V: Vectors, K: FloatKind, const R: usize, const P: usize>(
    v: V,
    strip: &[u8],
    first: usize,
    inputs: Range<usize>,
    x: &[&[f32]],
    now: &mut [[[V::Floats; PHASES]; R]; P],
) {
    let strip = strip.as_ptr();
    // One row waits for memory: longer steps keep the processor's prefetcher further ahead.
    let policy = if R == 1 || V::PARTS == 1 { PrefetchPolicy::for_rows(R) } else { PrefetchPolicy::Never };
    let steps = if R == 1 && V::PARTS == 1 { 2 } else { 1 };
    let input_bytes = LANES * K::FLOAT.bytes();
    let mut at = inputs.start;
    while at + steps * PHASES <= inputs.end {
        policy.prefetch(strip.wrapping_add(at * input_bytes), steps * PHASES * input_bytes);
        for step in 0..steps {
            // SAFETY: these inputs exist.
            unsafe { add_four::<V, K, R, P>(v, strip, first, at + step * PHASES, x, now) };
        }
        at += steps * PHASES;
    }
    while steps > 1 && at + PHASES <= inputs.end {
        // SAFETY: these inputs exist.
        unsafe { add_four::<V, K, R, P>(v, strip, first, at, x, now) };
        at += PHASES;
    }
    // Sums are named by constants, else they would live in memory.
    for phase in 0..PHASES - 1 {
        if at + phase < inputs.end {
            for (part, now) in now.iter_mut().enumerate() {
                // SAFETY: input `at + phase` exists.
                unsafe {
                    let weights = one::<V, K>(v, strip, first + part, at + phase);
                    for (row, now) in now.iter_mut().enumerate() {
                        let x = *x.get_unchecked(row).get_unchecked(at + phase);
                        now[phase] = v.mul_add(weights, v.splat(x), now[phase]);
                    }
                }
            }
        }
    }
}

/// Adds the products of inputs `at..at + 4`.
///
/// # Safety
///
/// They are within the strip, which is of type K, and within all R rows of `x`; `at` is even.
#[inline(always)]
unsafe fn add_four<V: Vectors, K: FloatKind, const R: usize, const P: usize>(
    v: V,
    strip: *const u8,
    first: usize,
    at: usize,
    x: &[&[f32]],
    now: &mut [[[V::Floats; PHASES]; R]; P],
) {
    // SAFETY: by the contract.
    unsafe {
        let mut weights = [[v.splat(0.0); PHASES]; P];
        for (part, weights) in weights.iter_mut().enumerate() {
            *weights = four::<V, K>(v, strip, first + part, at);
        }
        for row in 0..R {
            let x = v.load_four(x.get_unchecked(row).as_ptr().add(at));
            for (now, weights) in now.iter_mut().zip(&weights) {
                let sums = &mut now[row];
                sums[0] = v.add_product::<0>(weights[0], x, sums[0]);
                sums[1] = v.add_product::<1>(weights[1], x, sums[1]);
                sums[2] = v.add_product::<2>(weights[2], x, sums[2]);
                sums[3] = v.add_product::<3>(weights[3], x, sums[3]);
            }
        }
    }
}

/// A part's weights of inputs `at..at + 4`.
///
/// # Safety
///
/// They are within the strip; `at` is even.
#[inline(always)]
unsafe fn four<V: Vectors, K: FloatKind>(
    v: V,
    strip: *const u8,
    part: usize,
    at: usize,
) -> [V::Floats; PHASES] {
    // SAFETY: by the contract.
    unsafe {
        if matches!(K::FLOAT, Float::BF16) {
            let pairs = strip.add(at * 2 * LANES + V::BYTES * part);
            let ([a, b], [c, d]) = (v.load_bf16_pair(pairs), v.load_bf16_pair(pairs.add(4 * LANES)));
            return [a, b, c, d];
        }
        [
            one::<V, K>(v, strip, part, at),
            one::<V, K>(v, strip, part, at + 1),
            one::<V, K>(v, strip, part, at + 2),
            one::<V, K>(v, strip, part, at + 3),
        ]
    }
}

/// A part's weights of input `at`.
///
/// # Safety
///
/// They are within the strip.
#[inline(always)]
pub(super) unsafe fn one<V: Vectors, K: FloatKind>(
    v: V,
    strip: *const u8,
    part: usize,
    at: usize,
) -> V::Floats {
    let lane = V::OUTPUTS * part;
    // SAFETY: by the contract.
    unsafe {
        match K::FLOAT {
            Float::F32 => v.load(strip.add((at * LANES + lane) * 4).cast()),
            Float::F16 => v.load_f16(strip.add((at * LANES + lane) * 2)),
            Float::BF16 => v.load_bf16_pair(strip.add((at / 2 * LANES + lane) * 4))[at % 2],
        }
    }
}
