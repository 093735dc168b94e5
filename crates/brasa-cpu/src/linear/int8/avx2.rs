//! AVX2: the 16 rows of a tile as two halves of 8.
//!
//! Without a four-way dot product, `vpmaddubsw` adds pairs to 16 bits and `vpmaddwd` pairs of those to 32.
//! Codes below 64 times activations up to 127 leave room to add several pairs in 16 bits; full bytes do not,
//! so they are recentred to −128..=127 and their sign moves to the activations. AVX-VNNI has the dot product. All of it
//! is exact.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; vector loads need no alignment"
)]

use std::arch::x86_64::*;

use super::super::layout::{Codes, LANES, Layout, Scales, Shape, TABLE, WIDE_BLOCK_BYTES};
use super::super::scales::{BlockScales, Halves, Lanes};
use super::Panel;
use super::kinds::{Kind, with_kind, with_panel_kind, with_rows};
use super::panel::for_each_block;
use crate::isa::Avx2;
use crate::prefetch::PrefetchPolicy;
use crate::quantize::QuantizedRow;

/// Rows of a vector.
const HALF: usize = LANES / 2;

pub(super) fn multiply_tiles(
    proof: Avx2,
    layout: &Layout,
    tiles: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let few = |tiles: &[u8], x: &[QuantizedRow<'_>], out: &mut [Lanes]| {
        // SAFETY: the proofs; `super::multiply_tiles` checked all lengths.
        with_kind!(layout, K => with_rows!(x.len(), R => unsafe {
            match proof.vnni() {
                Some(_) => vnni::tile_kernel::<K, R>(layout, tiles, x, out),
                None => plain::tile_kernel::<K, R>(layout, tiles, x, out),
            }
        }, 1 2 4));
    };
    if x.len() <= 4 {
        return few(tiles, x, out);
    }
    for (tile, out) in tiles.chunks_exact(layout.tile_bytes()).zip(out.chunks_exact_mut(x.len())) {
        for (x, out) in x.chunks(4).zip(out.chunks_mut(4)) {
            few(tile, x, out);
        }
    }
}

pub(super) fn multiply_panel(
    proof: Avx2,
    layout: &Layout,
    panel: &Panel,
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    if panel.first == 0 {
        out.fill([0.0; LANES]);
    }
    let shift = layout.codes.offset_shift();
    for (x, out) in x.chunks(4).zip(out.chunks_mut(4)) {
        // SAFETY: the proofs; `super::multiply_panel` checked all lengths.
        with_panel_kind!(layout, K => with_rows!(x.len(), R => unsafe {
            match proof.vnni() {
                Some(_) => vnni::panel_kernel::<K, R>(panel, shift, x, out),
                None => plain::panel_kernel::<K, R>(panel, shift, x, out),
            }
        }, 1 2 4));
    }
}

pub(super) fn fill_panel(_: Avx2, layout: &Layout, tile: &[u8], panel: &mut Panel) {
    // SAFETY: the proof; `super::fill_panel` checked the tile and made room.
    with_kind!(layout, K => unsafe { fill_kernel::<K>(layout, tile, panel) });
}

/// The kernels, compiled with and without AVX-VNNI.
macro_rules! kernels {
    ($module:ident, $features:literal, $vnni:literal) => {
        mod $module {
            use super::*;

            /// # Safety
            ///
            /// `tiles` are tiles of `layout`, `x` has R rows, every one the blocks of `layout`; `out` has R rows for each
            /// tile.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn tile_kernel<K: Kind, const R: usize>(
                layout: &Layout,
                tiles: &[u8],
                x: &[QuantizedRow<'_>],
                out: &mut [Lanes],
            ) {
                let layout = &K::layout(layout);
                let ahead = PrefetchPolicy::for_rows(1);
                let mut unpacked = BlockScales::ZERO;
                for (tile, out) in tiles.chunks_exact(layout.tile_bytes()).zip(out.chunks_exact_mut(R)) {
                    let mut acc = [[_mm256_setzero_ps(); 2]; R];
                    for_each_block(layout, tile, 0..layout.blocks, ahead, |block, packed| {
                        packed.scales::<Widen>(layout.scales, &mut unpacked);
                        for half in 0..2 {
                            // SAFETY: the block is of kind K, `unpacked` are its scales.
                            unsafe {
                                let weights = unpack::<K>(packed.planes.as_ptr().add(32 * half));
                                let (scale, min) = (unpacked.scale.as_ptr(), unpacked.min.as_ptr());
                                let shift = K::CODES.offset_shift();
                                accumulate::<K, R, $vnni>(
                                    half, weights, scale, min, shift, x, block, &mut acc,
                                );
                            }
                        }
                    });
                    // SAFETY: this kernel has the feature.
                    unsafe { store(&acc, out) };
                }
            }

            /// # Safety
            ///
            /// `panel` holds a tile of kind K, `x` and `out` have R rows, every row of `x` the blocks of `panel`;
            /// `shift` is that of the layout's codes.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn panel_kernel<K: Kind, const R: usize>(
                panel: &Panel,
                shift: u32,
                x: &[QuantizedRow<'_>],
                out: &mut [Lanes],
            ) {
                let mut acc: [[__m256; 2]; R] = std::array::from_fn(|row| {
                    // SAFETY: a row of results is 16 floats.
                    [0, HALF].map(|first| unsafe { _mm256_loadu_ps(out[row].as_ptr().add(first)) })
                });
                for (at, codes) in panel.codes.iter().enumerate() {
                    let per_block = K::SHAPE.scales_per_block();
                    for half in 0..2 {
                        // SAFETY: a panel's block is eight vectors; its scales and minima are as many as the shape says.
                        unsafe {
                            let codes = codes.0.as_ptr().add(32 * half);
                            let weights = std::array::from_fn(|group| load(codes.add(64 * group)));
                            let scale = panel.scales.as_ptr().add(at * per_block).cast::<Lanes>();
                            let min = panel.mins.as_ptr().cast::<Lanes>().wrapping_add(at * per_block);
                            accumulate::<K, R, $vnni>(
                                half,
                                weights,
                                scale,
                                min,
                                shift,
                                x,
                                panel.first + at,
                                &mut acc,
                            );
                        }
                    }
                }
                // SAFETY: this kernel has the feature.
                unsafe { store(&acc, out) };
            }
        }
    };
}

kernels!(plain, "avx2,fma,f16c", false);
kernels!(vnni, "avx2,fma,f16c,avxvnni", true);

/// # Safety
///
/// `tile` is a tile of `layout`, which is of kind K; `panel` has room for it.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fill_kernel<K: Kind>(layout: &Layout, tile: &[u8], panel: &mut Panel) {
    let layout = &K::layout(layout);
    let mut unpacked = BlockScales::ZERO;
    for_each_block(layout, tile, panel.blocks(), PrefetchPolicy::for_rows(1), |block, packed| {
        let at = block - panel.first;
        packed.scales::<Widen>(layout.scales, &mut unpacked);
        panel.put_scales(K::SHAPE, at, &unpacked);
        let out: &mut [u8; WIDE_BLOCK_BYTES] = &mut panel.codes[at].0;
        // SAFETY: `packed` is a block of kind K, `out` is eight vectors.
        unsafe {
            for half in 0..2 {
                let planes = packed.planes.as_ptr().add(32 * half);
                for (group, weights) in unpack::<K>(planes).into_iter().enumerate() {
                    _mm256_storeu_si256(out.as_mut_ptr().add(64 * group + 32 * half).cast(), weights);
                }
            }
        }
    });
}

/// Adds one block of 32 inputs to the sums of R rows, for half of the tile; see [`super`] for the order.
///
/// # Safety
///
/// The caller has the features of this file's kernels; `scale` and `min` point to what the shape of K has per
/// block; `shift` is that of the format's codes; `x` has R rows with a block `block`.
#[inline(always)]
unsafe fn accumulate<K: Kind, const R: usize, const VNNI: bool>(
    half: usize,
    weights: [__m256i; 8],
    scale: *const Lanes,
    min: *const Lanes,
    shift: u32,
    x: &[QuantizedRow<'_>],
    block: usize,
    acc: &mut [[__m256; 2]; R],
) {
    let recentred = !VNNI && matches!(K::CODES, Codes::Bits8 | Codes::Table4);
    // What turns `Σ q·a`, or `Σ (q − 128)·a` where codes are recentred, into what the format means.
    let correction = |sum: i32| match (K::SHAPE.has_min(), recentred) {
        (false, true) | (true, false) => 0,
        (false, false) => -(sum << shift),
        (true, true) => sum << shift,
    };
    for row in 0..R {
        // SAFETY: by the contract.
        unsafe {
            let lanes = |values: *const Lanes| _mm256_loadu_ps(values.cast::<f32>().add(HALF * half));
            let x = x.get_unchecked(row);
            let meta = x.blocks.get_unchecked(block);
            let codes = x.codes.as_ptr().add(block * 32).cast::<i32>();
            macro_rules! pairs {
                ($group:literal) => {{
                    let activations = _mm256_set1_epi32(codes.add($group).read_unaligned());
                    if recentred {
                        let centred = _mm256_xor_si256(weights[$group], _mm256_set1_epi8(-128));
                        _mm256_maddubs_epi16(_mm256_abs_epi8(centred), _mm256_sign_epi8(activations, centred))
                    } else {
                        _mm256_maddubs_epi16(weights[$group], activations)
                    }
                }};
            }
            // Pair sums of several groups fit 16 bits where 2 · 127 · largest code · groups < 2¹⁵.
            macro_rules! dot_of_four {
                ($a:literal $b:literal $c:literal $d:literal) => {{
                    if VNNI {
                        let mut dot = _mm256_setzero_si256();
                        for group in [$a, $b, $c, $d] {
                            let activations = _mm256_set1_epi32(codes.add(group).read_unaligned());
                            dot = _mm256_dpbusd_avx_epi32(dot, weights[group], activations);
                        }
                        dot
                    } else {
                        let [a, b, c, d] = [pairs!($a), pairs!($b), pairs!($c), pairs!($d)];
                        match K::CODES {
                            Codes::Bits2 | Codes::Bits3 | Codes::Bits4 | Codes::Bits5 => {
                                wide(_mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_add_epi16(c, d)))
                            }
                            Codes::Bits6 => {
                                let (first, second) = (_mm256_add_epi16(a, b), _mm256_add_epi16(c, d));
                                _mm256_add_epi32(wide(first), wide(second))
                            }
                            Codes::Bits8 | Codes::Table4 => {
                                let first = _mm256_add_epi32(wide(a), wide(b));
                                _mm256_add_epi32(first, _mm256_add_epi32(wide(c), wide(d)))
                            }
                        }
                    }
                }};
            }
            let (first, second) = (dot_of_four!(0 1 2 3), dot_of_four!(4 5 6 7));
            let corrected =
                |dot, sum| _mm256_cvtepi32_ps(_mm256_add_epi32(dot, _mm256_set1_epi32(correction(sum))));
            let activation_scale = _mm256_set1_ps(meta.scale);
            let acc = &mut acc[row][half];
            *acc = match K::SHAPE {
                Shape::Whole | Shape::WholeMin => {
                    let factor = _mm256_mul_ps(lanes(scale), activation_scale);
                    let dot = corrected(_mm256_add_epi32(first, second), meta.sum);
                    let acc = _mm256_fmadd_ps(dot, factor, *acc);
                    if K::SHAPE.has_min() {
                        _mm256_fmadd_ps(lanes(min), _mm256_set1_ps(meta.scaled_sum), acc)
                    } else {
                        acc
                    }
                }
                Shape::Halves | Shape::HalvesMin => {
                    let [first_sum, second_sum] = meta.half_sums.map(i32::from);
                    let both = _mm256_mul_ps(corrected(first, first_sum), lanes(scale));
                    let both = _mm256_fmadd_ps(corrected(second, second_sum), lanes(scale.add(1)), both);
                    let acc = _mm256_fmadd_ps(both, activation_scale, *acc);
                    if K::SHAPE.has_min() {
                        let sum = |half: i32| _mm256_set1_ps(meta.scale * half as f32);
                        let acc = _mm256_fmadd_ps(lanes(min), sum(first_sum), acc);
                        _mm256_fmadd_ps(lanes(min.add(1)), sum(second_sum), acc)
                    } else {
                        acc
                    }
                }
            };
        }
    }
}

/// Adds neighbours of 16 bits to 32.
///
/// # Safety
///
/// The caller has AVX2.
#[inline(always)]
unsafe fn wide(pairs: __m256i) -> __m256i {
    // SAFETY: by the contract.
    unsafe { _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)) }
}

/// Half of the eight vectors of a block, a byte per code.
///
/// # Safety
///
/// The caller has the features of this file's kernels; `planes` points to a packed block of kind K, or 32 bytes
/// behind, for the second half.
#[inline(always)]
unsafe fn unpack<K: Kind>(planes: *const u8) -> [__m256i; 8] {
    // SAFETY: by the contract.
    unsafe {
        [
            group::<K, 0>(planes),
            group::<K, 1>(planes),
            group::<K, 2>(planes),
            group::<K, 3>(planes),
            group::<K, 4>(planes),
            group::<K, 5>(planes),
            group::<K, 6>(planes),
            group::<K, 7>(planes),
        ]
    }
}

/// Half of group G of a block; vectors and bits are counted as [`layout`](super::super::layout) says.
///
/// # Safety
///
/// As [`unpack`].
#[inline(always)]
unsafe fn group<K: Kind, const G: usize>(planes: *const u8) -> __m256i {
    // SAFETY: by the contract.
    unsafe {
        let nibbles = |first: usize| bits(load(planes.add(64 * (first + G % 4))), G / 4 * 4, 0, 15);
        let pairs = |vector: usize, to: usize| bits(load(planes.add(64 * vector)), G % 4 * 2, to, 3);
        let single = |to: usize| bits(load(planes), G, to, 1);
        match K::CODES {
            Codes::Bits8 => load(planes.add(64 * G)),
            Codes::Bits4 => nibbles(0),
            Codes::Table4 => {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(TABLE.as_ptr().cast()));
                _mm256_shuffle_epi8(table, nibbles(0))
            }
            Codes::Bits5 => _mm256_or_si256(single(4), nibbles(1)),
            Codes::Bits6 => _mm256_or_si256(pairs(G / 4 * 5, 4), nibbles(1)),
            Codes::Bits2 => pairs(G / 4, 0),
            Codes::Bits3 => _mm256_or_si256(single(2), pairs(1 + G / 4, 0)),
        }
    }
}

/// The bits `mask` from place `from` of every byte, moved to place `to`.
///
/// # Safety
///
/// The caller has AVX2.
#[inline(always)]
unsafe fn bits(vector: __m256i, from: usize, to: usize, mask: i8) -> __m256i {
    // SAFETY: by the contract.
    unsafe {
        // Shifting words carries bits across bytes; the mask drops them.
        let moved = if from >= to {
            _mm256_srl_epi32(vector, _mm_cvtsi32_si128((from - to) as i32))
        } else {
            _mm256_sll_epi32(vector, _mm_cvtsi32_si128((to - from) as i32))
        };
        _mm256_and_si256(moved, _mm256_set1_epi8(mask << to))
    }
}

/// # Safety
///
/// The caller has AVX2; 32 bytes are readable.
#[inline(always)]
unsafe fn load(bytes: *const u8) -> __m256i {
    // SAFETY: by the contract.
    unsafe { _mm256_loadu_si256(bytes.cast()) }
}

/// # Safety
///
/// The caller has AVX2.
#[inline(always)]
unsafe fn store<const R: usize>(acc: &[[__m256; 2]; R], out: &mut [Lanes]) {
    for (acc, out) in acc.iter().zip(out) {
        for (half, acc) in acc.iter().enumerate() {
            // SAFETY: by the contract; `out` is 16 floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(HALF * half), *acc) };
        }
    }
}

/// Conversion by one instruction; used by this file's kernels alone, which have it.
struct Widen;

impl Halves for Widen {
    #[inline(always)]
    fn widen(bytes: &[u8; 2 * LANES]) -> Lanes {
        // SAFETY: only called where the instruction is there; 16 halves are read, 16 floats written.
        unsafe {
            let mut lanes = [0.0; LANES];
            for half in 0..2 {
                let halves = _mm_loadu_si128(bytes.as_ptr().add(2 * HALF * half).cast());
                _mm256_storeu_ps(lanes.as_mut_ptr().add(HALF * half), _mm256_cvtph_ps(halves));
            }
            lanes
        }
    }
}
