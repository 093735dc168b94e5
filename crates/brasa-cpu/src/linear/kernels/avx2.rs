//! AVX2, with and without AVX-VNNI: a strip is two vectors of 8 outputs.
//!
//! Without a four-way dot product, `vpmaddubsw` adds pairs to 16 bits and `vpmaddwd` pairs of those to 32. Codes below 64
//! times activations up to 127 leave room to add several pairs in 16 bits; whole bytes do not,
//! so they are centred to −128..=127 and their sign moves to the activations. AVX-VNNI has the dot product. All of it
//! is exact.
#![expect(unsafe_code, reason = "vector intrinsics behind proofs that the processor has them")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; vector loads need no alignment"
)]

use std::arch::x86_64::*;

use super::super::formats::{Kind, Meaning, Width};
use super::codes::group;
use super::vectors::{Centring, Dots, Vectors, Work, one_each, one_each_of_memory};
use crate::isa::{Avx2, AvxVnni};
use crate::simd::read;

/// Proof that this CPU has AVX2 and int8 dot products in its vectors.
#[derive(Clone, Copy)]
pub(super) struct WithVnni {
    avx2: Avx2,
    _vnni: AvxVnni,
}

impl WithVnni {
    /// The proof, if `avx2` includes it.
    pub(super) fn of(avx2: Avx2) -> Option<Self> {
        avx2.vnni().map(|vnni| Self { avx2, _vnni: vnni })
    }
}

impl Vectors for Avx2 {
    type Codes = __m256i;
    type Ints = __m256i;
    type Floats = __m256;
    type Parts = [__m256; 2];
    type FourInputs = *const f32;
    const PARTS: usize = 2;

    one_each! {
        zero_parts() -> [__m256; 2] = [_mm256_setzero_ps(); 2];
        look_up(table: &[u8; 16], codes: __m256i) -> __m256i =
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), codes);
        or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        minus(codes: __m256i, offset: u8) -> __m256i =
            _mm256_sub_epi8(codes, _mm256_set1_epi8(offset.cast_signed()));
        // Shifting words carries bits across bytes; the mask drops them.
        bits(codes: __m256i, from: usize, to: usize, mask: u8) -> __m256i = {
            let moved = if from >= to {
                _mm256_srl_epi32(codes, _mm_cvtsi32_si128((from - to) as i32))
            } else {
                _mm256_sll_epi32(codes, _mm_cvtsi32_si128((to - from) as i32))
            };
            _mm256_and_si256(moved, _mm256_set1_epi8((mask << to).cast_signed()))
        };
        floats(ints: __m256i) -> __m256 = _mm256_cvtepi32_ps(ints);
        splat(value: f32) -> __m256 = _mm256_set1_ps(value);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        mul_add(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
    }

    one_each_of_memory! {
        load_codes(from: *const u8) -> __m256i = read(from.cast());
        store_codes(codes: __m256i, to: *mut u8) = _mm256_storeu_si256(to.cast(), codes);
        load(from: *const f32) -> __m256 = read(from.cast());
        store(floats: __m256, to: *mut f32) = _mm256_storeu_ps(to, floats);
        load_f16(from: *const u8) -> __m256 = _mm256_cvtph_ps(read(from.cast()));
        load_bf16_pair(from: *const u8) -> [__m256; 2] = {
            let both = read(from.cast());
            let high = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(high)]
        };
    }

    #[inline(always)]
    unsafe fn load_four(self, from: *const f32) -> *const f32 {
        from
    }

    #[inline(always)]
    unsafe fn add_product<const AT: usize>(self, weights: __m256, x: *const f32, sum: __m256) -> __m256 {
        // SAFETY: `self` proves the instructions; memory by the contract.
        unsafe { _mm256_fmadd_ps(weights, _mm256_set1_ps(*x.add(AT)), sum) }
    }
}

/// How many products of pairs of codes up to `largest` and of activations up to 127 fit a sum of 16 bits.
const fn pairs_in_16_bits(largest: i32) -> i32 {
    i16::MAX as i32 / (2 * 127 * largest)
}

impl Dots for Avx2 {
    type V = Self;
    const CENTRING: Centring = Centring::Bytes;
    const PLANE_ROWS: usize = 4;
    const PANEL_ROWS: usize = 4;
    const BYTES_BY_GROUPS: bool = true;
    const TWO_PARTS_OF_A_ROW: bool = true;

    #[inline(always)]
    fn vectors(self) -> Self {
        self
    }

    #[inline(always)]
    fn run(self, work: impl Work) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run(proof: Avx2, work: impl Work) {
            work.run(proof);
        }
        // SAFETY: the proof.
        unsafe { run(self, work) }
    }

    #[inline(always)]
    unsafe fn dots<M: Meaning, const R: usize>(
        self,
        start: [i32; 2],
        weights: &[__m256i; 8],
        x: *const i8,
    ) -> [__m256i; 2] {
        macro_rules! sum {
            ($($group:literal)*) => {
                sum_of_pairs::<M>([$({
                    let activations = _mm256_set1_epi32(read(x.cast::<i32>().add($group)));
                    pairs::<M>(weights[$group], activations)
                }),*])
            };
        }
        // SAFETY: `self` proves the instructions; memory by the contract.
        unsafe { corrected::<M>(start, [sum!(0 1 2 3), sum!(4 5 6 7)]) }
    }

    #[inline(always)]
    unsafe fn dots_of_parts<K: Kind>(
        self,
        start: [i32; 2],
        planes: *const u8,
        x: *const i8,
        centred: bool,
    ) -> [[__m256i; 2]; 2] {
        macro_rules! both {
            ($group:literal) => {{
                let activations = _mm256_set1_epi32(read(x.cast::<i32>().add($group)));
                let first = group::<Self, K, $group>(self, planes, centred);
                let second = group::<Self, K, $group>(self, planes.add(Self::BYTES), centred);
                [pairs::<K>(first, activations), pairs::<K>(second, activations)]
            }};
        }
        macro_rules! sums {
            ($a:literal $b:literal $c:literal $d:literal) => {{
                let [a, b, c, d] = [both!($a), both!($b), both!($c), both!($d)];
                [sum_of_pairs::<K>([a[0], b[0], c[0], d[0]]), sum_of_pairs::<K>([a[1], b[1], c[1], d[1]])]
            }};
        }
        // SAFETY: `self` proves the instructions; memory by the contract.
        unsafe {
            let (first, second) = (sums!(0 1 2 3), sums!(4 5 6 7));
            [corrected::<K>(start, [first[0], second[0]]), corrected::<K>(start, [first[1], second[1]])]
        }
    }

    #[inline(always)]
    unsafe fn panel_dots_of_rows<M: Meaning, const R: usize>(
        self,
        start: [[i32; 2]; R],
        codes: *const u8,
        x: [*const i8; R],
    ) -> [[__m256i; 2]; R] {
        // SAFETY: `self` proves the instructions; memory by the contract.
        unsafe {
            let mut halves = [[_mm256_setzero_si256(); 2]; R];
            macro_rules! add {
                ($($group:literal)*) => {$(
                    let weights: __m256i = read(codes.add(Self::BYTES * $group).cast());
                    let magnitudes = _mm256_abs_epi8(weights);
                    for row in 0..R {
                        let activations = _mm256_set1_epi32(read(x[row].cast::<i32>().add($group)));
                        let pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(activations, weights));
                        let sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                        let half = if M::SHAPE.has_halves() { $group / 4 } else { 0 };
                        halves[row][half] = _mm256_add_epi32(halves[row][half], sums);
                    }
                )*};
            }
            add!(0 1 2 3 4 5 6 7);
            for row in 0..R {
                halves[row] = corrected::<M>(start[row], halves[row]);
            }
            halves
        }
    }
}

/// Products of unsigned and signed bytes, of which neighbours are added to 16 bits.
///
/// # Safety
///
/// The processor has AVX2.
#[inline(always)]
unsafe fn pairs<M: Meaning>(weights: __m256i, activations: __m256i) -> __m256i {
    // SAFETY: by the contract.
    unsafe {
        match M::WIDTH {
            // Centred: −128 · 127 and its neighbour, the sign of which is the activation's, fit.
            Width::Eight => {
                _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(activations, weights))
            }
            Width::UpTo5 | Width::Six => _mm256_maddubs_epi16(weights, activations),
        }
    }
}

/// The sum of four groups' pairs, in 32 bits.
///
/// # Safety
///
/// The processor has AVX2.
#[inline(always)]
unsafe fn sum_of_pairs<M: Meaning>([a, b, c, d]: [__m256i; 4]) -> __m256i {
    macro_rules! wide {
        ($pairs:expr) => {
            _mm256_madd_epi16($pairs, _mm256_set1_epi16(1))
        };
    }
    // SAFETY: by the contract.
    unsafe {
        match M::WIDTH {
            Width::UpTo5 => {
                const { assert!(pairs_in_16_bits(Width::UpTo5.largest_code()) >= 4) };
                wide!(_mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_add_epi16(c, d)))
            }
            Width::Six => {
                const { assert!(pairs_in_16_bits(Width::Six.largest_code()) >= 2) };
                _mm256_add_epi32(wide!(_mm256_add_epi16(a, b)), wide!(_mm256_add_epi16(c, d)))
            }
            Width::Eight => {
                const { assert!(pairs_in_16_bits(128) >= 1) };
                let first = _mm256_add_epi32(wide!(a), wide!(b));
                _mm256_add_epi32(first, _mm256_add_epi32(wide!(c), wide!(d)))
            }
        }
    }
}

/// `start` plus the sums of a block's halves.
///
/// # Safety
///
/// The processor has AVX2.
#[inline(always)]
unsafe fn corrected<M: Meaning>(start: [i32; 2], [first, second]: [__m256i; 2]) -> [__m256i; 2] {
    // SAFETY: by the contract.
    unsafe {
        if const { M::SHAPE.has_halves() } {
            [
                _mm256_add_epi32(first, _mm256_set1_epi32(start[0])),
                _mm256_add_epi32(second, _mm256_set1_epi32(start[1])),
            ]
        } else {
            let both = _mm256_add_epi32(first, second);
            [_mm256_add_epi32(both, _mm256_set1_epi32(start[0])), _mm256_setzero_si256()]
        }
    }
}

impl Dots for WithVnni {
    type V = Avx2;
    const CENTRING: Centring = Centring::Never;
    const PLANE_ROWS: usize = 4;
    const PANEL_ROWS: usize = 4;

    #[inline(always)]
    fn vectors(self) -> Avx2 {
        self.avx2
    }

    #[inline(always)]
    fn run(self, work: impl Work) {
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn run(proof: WithVnni, work: impl Work) {
            work.run(proof);
        }
        // SAFETY: the proofs.
        unsafe { run(self, work) }
    }

    #[inline(always)]
    unsafe fn dots<M: Meaning, const R: usize>(
        self,
        start: [i32; 2],
        weights: &[__m256i; 8],
        x: *const i8,
    ) -> [__m256i; 2] {
        macro_rules! sum {
            ($start:expr, $($group:literal)*) => {{
                let mut sum = $start;
                $(
                    let activations = _mm256_set1_epi32(read(x.cast::<i32>().add($group)));
                    sum = _mm256_dpbusd_avx_epi32(sum, weights[$group], activations);
                )*
                sum
            }};
        }
        // SAFETY: `self` proves the instructions; memory by the contract.
        unsafe {
            let first = sum!(_mm256_set1_epi32(start[0]), 0 1 2 3);
            if const { M::SHAPE.has_halves() } {
                [first, sum!(_mm256_set1_epi32(start[1]), 4 5 6 7)]
            } else {
                [_mm256_add_epi32(first, sum!(_mm256_setzero_si256(), 4 5 6 7)), _mm256_setzero_si256()]
            }
        }
    }
}
