//! AVX-512 with VNNI: a vector is all 16 outputs of a strip. `vpdpbusd` multiplies four codes of each output with four
//! activations that are broadcast to all lanes.
#![expect(unsafe_code, reason = "vector intrinsics behind a proof that the processor has them")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; vector loads need no alignment"
)]

use std::arch::x86_64::*;

use super::super::formats::Meaning;
use super::vectors::{Centring, Dots, Vectors, Work, one_each, one_each_of_memory};
use crate::isa::Avx512;
use crate::simd::read;

impl Vectors for Avx512 {
    type Codes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    type Parts = [__m512; 1];
    type FourInputs = *const f32;
    const PARTS: usize = 1;

    one_each! {
        zero_parts() -> [__m512; 1] = [_mm512_setzero_ps()];
        look_up(table: &[u8; 16], codes: __m512i) -> __m512i =
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), codes);
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        minus(codes: __m512i, offset: u8) -> __m512i =
            _mm512_sub_epi8(codes, _mm512_set1_epi8(offset.cast_signed()));
        // Shifting words carries bits across bytes; the mask drops them.
        bits(codes: __m512i, from: usize, to: usize, mask: u8) -> __m512i = {
            let moved = if from >= to {
                _mm512_srl_epi32(codes, _mm_cvtsi32_si128((from - to) as i32))
            } else {
                _mm512_sll_epi32(codes, _mm_cvtsi32_si128((to - from) as i32))
            };
            _mm512_and_si512(moved, _mm512_set1_epi8((mask << to).cast_signed()))
        };
        floats(ints: __m512i) -> __m512 = _mm512_cvtepi32_ps(ints);
        splat(value: f32) -> __m512 = _mm512_set1_ps(value);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        mul_add(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
    }

    one_each_of_memory! {
        load_codes(from: *const u8) -> __m512i = read(from.cast());
        store_codes(codes: __m512i, to: *mut u8) = _mm512_storeu_si512(to.cast(), codes);
        load(from: *const f32) -> __m512 = read(from.cast());
        store(floats: __m512, to: *mut f32) = _mm512_storeu_ps(to, floats);
        load_f16(from: *const u8) -> __m512 = _mm512_cvtph_ps(read(from.cast()));
        load_bf16_pair(from: *const u8) -> [__m512; 2] = {
            let both = read(from.cast());
            let high = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(high)]
        };
    }

    #[inline(always)]
    unsafe fn load_four(self, from: *const f32) -> *const f32 {
        from
    }

    #[inline(always)]
    unsafe fn add_product<const AT: usize>(self, weights: __m512, x: *const f32, sum: __m512) -> __m512 {
        // SAFETY: `self` proves the instructions; memory by the contract.
        unsafe { _mm512_fmadd_ps(weights, _mm512_set1_ps(*x.add(AT)), sum) }
    }
}

impl Dots for Avx512 {
    type V = Self;
    const CENTRING: Centring = Centring::Never;
    const PLANE_ROWS: usize = 8;
    const PANEL_ROWS: usize = 8;

    #[inline(always)]
    fn vectors(self) -> Self {
        self
    }

    #[inline(always)]
    fn run(self, work: impl Work) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
        fn run(proof: Avx512, work: impl Work) {
            work.run(proof);
        }
        // SAFETY: the proof.
        unsafe { run(self, work) }
    }

    #[inline(always)]
    unsafe fn dots<M: Meaning, const R: usize>(
        self,
        start: [i32; 2],
        weights: &[__m512i; 8],
        x: *const i8,
    ) -> [__m512i; 2] {
        // Integers add exactly in any order: with few rows, short chains keep the pipeline fuller than long ones.
        macro_rules! sum {
            ($start:expr, $split:expr, $($group:literal)*) => {{
                let mut sums = [_mm512_set1_epi32($start), _mm512_setzero_si512()];
                $(
                    let activations = _mm512_set1_epi32(read(x.cast::<i32>().add($group)));
                    let chain = if const { $split } { $group % 2 } else { 0 };
                    sums[chain] = _mm512_dpbusd_epi32(sums[chain], weights[$group], activations);
                )*
                if const { $split } { _mm512_add_epi32(sums[0], sums[1]) } else { sums[0] }
            }};
        }
        // SAFETY: `self` proves the instructions; memory by the contract.
        unsafe {
            if const { M::SHAPE.has_halves() } {
                [sum!(start[0], R < 2, 0 1 2 3), sum!(start[1], R < 2, 4 5 6 7)]
            } else {
                [sum!(start[0], R < 8, 0 1 2 3 4 5 6 7), _mm512_setzero_si512()]
            }
        }
    }
}
