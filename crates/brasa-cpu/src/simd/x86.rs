//! AVX2: two vectors of eight lanes. AVX-512: one of sixteen.
#![expect(unsafe_code, reason = "vector intrinsics behind proofs that the processor has them")]

#[allow(clippy::wildcard_imports, reason = "intrinsics")]
use std::arch::x86_64::*;

use super::lanes::{LANES, Simd};
use crate::isa::{Avx2, Avx512};

/// Reads a vector, or a number, at any address.
///
/// With debug assertions `read_unaligned`, which intrinsics load with, checks that memory and its result lie apart, in every turn
/// of every inner loop.
///
/// # Safety
///
/// T's bytes can be read at `from`, and any bytes make a T.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy>(from: *const T) -> T {
    #[repr(C, packed)]
    struct Unaligned<T>(T);
    // SAFETY: by the contract; the type needs no alignment.
    unsafe { (*from.cast::<Unaligned<T>>()).0 }
}

/// Two halves of sixteen lanes.
#[derive(Clone, Copy)]
pub(crate) struct Pair(__m256, __m256);

macro_rules! pairwise {
    ($name:ident, $intrinsic:ident) => {
        #[inline(always)]
        fn $name(self, a: Pair, b: Pair) -> Pair {
            // SAFETY: `self` proves AVX2.
            unsafe { Pair($intrinsic(a.0, b.0), $intrinsic(a.1, b.1)) }
        }
    };
}

/// Folds eight lanes to one: lanes `i` and `i + 4`, of those `i` and `i + 2`, of those the first two.
macro_rules! folded {
    ($v:expr, $of_four:ident, $of_one:ident) => {{
        let v: __m256 = $v;
        let four = $of_four(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = $of_four(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32($of_one(two, _mm_movehdup_ps(two)))
    }};
}

impl Simd for Avx2 {
    type V = Pair;
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe { Pair(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Pair {
        // SAFETY: `self` proves AVX2; sixteen elements are there.
        unsafe { Pair(read(from.as_ptr().cast()), read(from.as_ptr().add(8).cast())) }
    }
    #[inline(always)]
    fn store(self, v: Pair, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX2; sixteen elements are there.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), v.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v.1);
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Pair {
        // SAFETY: `self` proves F16C; sixteen elements are there.
        unsafe {
            Pair(
                _mm256_cvtph_ps(read(from.as_ptr().cast())),
                _mm256_cvtph_ps(read(from.as_ptr().add(8).cast())),
            )
        }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Pair {
        // SAFETY: `self` proves AVX2; sixteen elements are there.
        unsafe {
            let widen =
                |half: __m128i| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)));
            Pair(widen(read(from.as_ptr().cast())), widen(read(from.as_ptr().add(8).cast())))
        }
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Pair {
        // SAFETY: `self` proves AVX2; sixteen elements are there.
        unsafe {
            let bytes = read(from.as_ptr().cast());
            Pair(
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
            )
        }
    }
    pairwise!(add, _mm256_add_ps);
    pairwise!(sub, _mm256_sub_ps);
    pairwise!(mul, _mm256_mul_ps);
    pairwise!(div, _mm256_div_ps);
    pairwise!(max, _mm256_max_ps);
    pairwise!(min, _mm256_min_ps);
    #[inline(always)]
    fn sum(self, v: Pair) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe { folded!(_mm256_add_ps(v.0, v.1), _mm_add_ps, _mm_add_ss) }
    }
    #[inline(always)]
    fn largest(self, v: Pair) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe { folded!(_mm256_max_ps(v.0, v.1), _mm_max_ps, _mm_max_ss) }
    }
    #[inline(always)]
    fn mul_add(self, a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: `self` proves FMA.
        unsafe { Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn less(self, a: Pair, b: Pair, x: Pair, y: Pair) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe {
            Pair(
                _mm256_blendv_ps(y.0, x.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
                _mm256_blendv_ps(y.1, x.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn round(self, v: Pair) -> Pair {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: `self` proves AVX2.
        unsafe { Pair(_mm256_round_ps::<NEAREST>(v.0), _mm256_round_ps::<NEAREST>(v.1)) }
    }
    #[inline(always)]
    fn exp2_integer(self, v: Pair) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let power = |v| {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            };
            Pair(power(v.0), power(v.1))
        }
    }
    #[inline(always)]
    fn transpose(self, from: &[&[f32; LANES]; LANES], to: &mut [[f32; LANES]; LANES]) {
        // Squares of eight.
        for (row, column) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
            // SAFETY: `self` proves AVX2; rows have sixteen elements.
            unsafe {
                let square = std::array::from_fn(|at| read(from[row + at].as_ptr().add(column).cast()));
                for (at, turned) in transpose_eight(square).into_iter().enumerate() {
                    _mm256_storeu_ps(to[column + at].as_mut_ptr().add(row), turned);
                }
            }
        }
    }
}

/// Makes columns of eight rows.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_eight(rows: [__m256; 8]) -> [__m256; 8] {
    let [a, b, c, d, e, f, g, h] = rows;
    // Within each half: pairs of two rows, then fours of four.
    let fours = |a, b, c, d| {
        let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (others, higher) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0x44>(low, others),
            _mm256_shuffle_ps::<0xee>(low, others),
            _mm256_shuffle_ps::<0x44>(high, higher),
            _mm256_shuffle_ps::<0xee>(high, higher),
        ]
    };
    let (first, last) = (fours(a, b, c, d), fours(e, f, g, h));
    std::array::from_fn(|column| {
        let (first, last) = (first[column % 4], last[column % 4]);
        if column < 4 {
            _mm256_permute2f128_ps::<0x20>(first, last)
        } else {
            _mm256_permute2f128_ps::<0x31>(first, last)
        }
    })
}

/// Makes columns of sixteen rows of words.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn transpose_words(mut rows: [__m512i; LANES]) -> [__m512i; LANES] {
    // Words of four columns together, by pairs of vectors, then by fours.
    for at in (0..LANES).step_by(2) {
        let (a, b) = (rows[at], rows[at + 1]);
        (rows[at], rows[at + 1]) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    }
    for at in (0..LANES).step_by(4) {
        let [a, b, c, d] = [rows[at], rows[at + 1], rows[at + 2], rows[at + 3]];
        (rows[at], rows[at + 1]) = (_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c));
        (rows[at + 2], rows[at + 3]) = (_mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d));
    }
    // Quarter q of vector 4i + j now holds words 4i..4i + 4 of column 4q + j.
    let mut columns = [_mm512_setzero_si512(); LANES];
    for j in 0..4 {
        let [a, b, c, d] = [rows[j], rows[4 + j], rows[8 + j], rows[12 + j]];
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (even_rest, odd_rest) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        columns[j] = _mm512_shuffle_i32x4::<0x88>(even, even_rest);
        columns[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even, even_rest);
        columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd, odd_rest);
        columns[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd, odd_rest);
    }
    columns
}

macro_rules! lanewise {
    ($name:ident, $intrinsic:ident) => {
        #[inline(always)]
        fn $name(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: `self` proves AVX-512 F.
            unsafe { $intrinsic(a, b) }
        }
    };
}

impl Simd for Avx512 {
    type V = __m512;
    const ACCUMULATORS: usize = 16;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512 F.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512 F; sixteen elements are there.
        unsafe { read(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX-512 F; sixteen elements are there.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512 F; sixteen elements are there.
        unsafe { _mm512_cvtph_ps(read(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512 F; sixteen elements are there.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(read(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512 F; sixteen elements are there.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(read(from.as_ptr().cast()))) }
    }
    lanewise!(add, _mm512_add_ps);
    lanewise!(sub, _mm512_sub_ps);
    lanewise!(mul, _mm512_mul_ps);
    lanewise!(div, _mm512_div_ps);
    lanewise!(max, _mm512_max_ps);
    lanewise!(min, _mm512_min_ps);
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512 F and DQ.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            folded!(eight, _mm_add_ps, _mm_add_ss)
        }
    }
    #[inline(always)]
    fn largest(self, v: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512 F and DQ.
        unsafe {
            let eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            folded!(eight, _mm_max_ps, _mm_max_ss)
        }
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512 F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn transpose(self, from: &[&[f32; LANES]; LANES], to: &mut [[f32; LANES]; LANES]) {
        // SAFETY: `self` proves AVX-512 F; rows have sixteen elements.
        unsafe {
            let columns = transpose_words(from.map(|row| read(row.as_ptr().cast())));
            for (to, column) in to.iter_mut().zip(columns) {
                _mm512_storeu_si512(to.as_mut_ptr().cast(), column);
            }
        }
    }
    #[inline(always)]
    fn less(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512 F.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    fn round(self, v: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512 F.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v) }
    }
    #[inline(always)]
    fn exp2_integer(self, v: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512 F.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
}
