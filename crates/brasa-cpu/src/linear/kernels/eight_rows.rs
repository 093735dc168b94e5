//! Eight rows of floats times two strips at a time, in AVX-512.
//!
//! A weight is converted once for all rows and an activation loaded once for both strips, which matters where conversions
//! take the place of multiplications: a Xeon (Emerald Rapids) makes 128 GFLOP/s of F16 so with weights in the cache, and 109
//! with four rows and one strip at a time, while an EPYC (Zen 4) converts beside its multiplications. The sixteen sums of one
//! phase are in registers while a slab of inputs goes by, those of the other phases in the first cache.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;
use std::array::from_fn;

use super::super::float_layout::FloatLayout;
use super::super::layout::{LANES, Lanes};
use super::floats::{FloatKind, one, with_float};
use super::{FLOAT_STRIPS, MOST_ROWS, PHASES};
use crate::isa::Avx512;
use crate::prefetch::{LINE_BYTES, PrefetchPolicy};

const ROWS: usize = MOST_ROWS;
/// Inputs of a slab, a multiple of [`PHASES`]: their weights and activations stay in the first cache from phase to phase.
const SLAB: usize = 128;

/// The running sums of a phase.
type Sums<const S: usize> = [[__m512; ROWS]; S];

/// Writes the products of consecutive packed strips with eight rows: for each strip those of all rows.
///
/// Lengths were checked: strips are whole, `x` has eight rows with the inputs of `layout`, and `out` eight for each strip.
pub(super) fn multiply_strips(
    proof: Avx512,
    layout: &FloatLayout,
    strips: &[u8],
    x: &[&[f32]],
    out: &mut [Lanes],
) {
    let together =
        strips.chunks(FLOAT_STRIPS * layout.strip_bytes()).zip(out.chunks_mut(FLOAT_STRIPS * ROWS));
    for (strips, out) in together {
        // SAFETY: the proof; one or two strips, eight rows, eight results for each strip.
        with_float!(layout, K => unsafe {
            if out.len() == ROWS {
                kernel::<K, 1>(proof, layout, strips, x, out);
            } else {
                kernel::<K, FLOAT_STRIPS>(proof, layout, strips, x, out);
            }
        });
    }
}

/// # Safety
///
/// `strips` are S strips of the layout, which is of type K; `x` has eight rows of its inputs, `out` eight for each strip.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn kernel<K: FloatKind, const S: usize>(
    proof: Avx512,
    layout: &FloatLayout,
    strips: &[u8],
    x: &[&[f32]],
    out: &mut [Lanes],
) {
    let k = layout.k;
    // SAFETY: by the contract.
    let (strips, x) = unsafe {
        let strips: [_; S] = from_fn(|strip| strips.as_ptr().add(strip * layout.strip_bytes()));
        let x: [_; ROWS] = from_fn(|row| x.get_unchecked(row).as_ptr());
        (strips, x)
    };
    let mut sums = [[[_mm512_setzero_ps(); ROWS]; S]; PHASES];
    for start in (0..k).step_by(SLAB) {
        let inputs = SLAB.min(k - start);
        for (phase, sums) in sums.iter_mut().enumerate() {
            // Each phase prefetches its share of the slab that comes so much later.
            let offset_bytes = (start + inputs / PHASES * phase) * LANES * K::FLOAT.bytes();
            let steps = (inputs + PHASES - 1 - phase) / PHASES;
            // SAFETY: inputs `start..start + inputs` are within strips and rows.
            unsafe { add_steps::<K, S>(proof, sums, &strips, &x, start + phase, steps, offset_bytes) };
        }
    }
    let [s0, s1, s2, s3] = sums;
    for strip in 0..S {
        for row in 0..ROWS {
            let [s0, s1, s2, s3] = [&s0, &s1, &s2, &s3].map(|sums| sums[strip][row]);
            let sum = _mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3));
            // SAFETY: `out` has these rows of 16 floats.
            unsafe { _mm512_storeu_ps(out.get_unchecked_mut(strip * ROWS + row).as_mut_ptr(), sum) };
        }
    }
}

/// Adds the products of every fourth input from `at` on, and prefetches behind `offset_bytes` of the strips.
///
/// A function of its own, lest sums of other phases take its registers.
///
/// # Safety
///
/// The inputs of `steps` steps are within strips of type K and rows.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn add_steps<K: FloatKind, const S: usize>(
    proof: Avx512,
    sums: &mut Sums<S>,
    strips: &[*const u8; S],
    x: &[*const f32; ROWS],
    at: usize,
    steps: usize,
    offset_bytes: usize,
) {
    let (strips, x, mut now) = (*strips, *x, *sums);
    let policy = PrefetchPolicy::for_rows(ROWS);
    let step_bytes = LANES * K::FLOAT.bytes();
    for step in 0..steps {
        let (at, offset_bytes) = (at + step * PHASES, offset_bytes + step * step_bytes);
        if offset_bytes.is_multiple_of(LINE_BYTES) {
            for strip in strips {
                policy.prefetch(strip.wrapping_add(offset_bytes), LINE_BYTES);
            }
        }
        // SAFETY: by the contract.
        unsafe {
            let weights = strips.map(|strip| one::<_, K>(proof, strip, 0, at));
            for (row, x) in x.iter().enumerate() {
                let x = _mm512_set1_ps(*x.add(at));
                for (sums, &weights) in now.iter_mut().zip(&weights) {
                    sums[row] = _mm512_fmadd_ps(weights, x, sums[row]);
                }
            }
        }
    }
    *sums = now;
}

#[cfg(test)]
mod tests {
    use super::super::super::formats::Float;
    use super::super::floats;
    use super::*;
    use crate::Isa;

    #[test]
    fn two_strips_and_eight_rows_give_the_same_bits_as_one_strip_and_four() {
        let Some(proof) = Isa::choices().into_iter().find_map(|isa| match isa {
            Isa::Avx512(proof) => Some(proof),
            _ => None,
        }) else {
            brasa_fuzz::skipped("two strips of floats and eight rows", "this processor lacks AVX-512");
            return;
        };
        for float in [Float::F32, Float::F16, Float::BF16] {
            for k in [1, 2, 3, 4, 6, 127, 128, 129, 131, 260, 515] {
                let layout = FloatLayout { float, k };
                // No bit pattern below 0x3f00 is infinite or none, in any of the formats.
                let mut state = k as u32;
                let mut noise = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state >> 8
                };
                let strips: Vec<u8> = (0..FLOAT_STRIPS * layout.strip_bytes())
                    .map(|at| if at % 2 == 1 { (noise() % 0x3f) as u8 | 0x30 } else { noise() as u8 })
                    .collect();
                let x: Vec<f32> = (0..ROWS * k).map(|_| noise() as f32 / (1 << 23) as f32 - 1.0).collect();
                let x: Vec<&[f32]> = x.chunks_exact(k).collect();
                let (mut found, mut alone, mut expected) =
                    ([[0.0; LANES]; 16], [[2.0; LANES]; 16], [[1.0; LANES]; 16]);
                multiply_strips(proof, &layout, &strips, &x, &mut found);
                let each = strips.chunks_exact(layout.strip_bytes());
                let results = alone.chunks_exact_mut(ROWS).zip(expected.chunks_exact_mut(ROWS));
                for (strip, (alone, expected)) in each.zip(results) {
                    multiply_strips(proof, &layout, strip, &x, alone);
                    for (x, expected) in x.chunks_exact(4).zip(expected.chunks_exact_mut(4)) {
                        floats::multiply_strips(proof, &layout, strip, x, expected);
                    }
                }
                let bits = |rows: [Lanes; 16]| rows.map(|lanes| lanes.map(f32::to_bits));
                assert_eq!(bits(found), bits(expected), "{float:?}, {k} inputs");
                assert_eq!(bits(alone), bits(expected), "{float:?}, {k} inputs, one strip at a time");
            }
        }
    }
}
