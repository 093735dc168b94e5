//! AVX2: the 16 rows of a tile as two halves of 8.
//!
//! Without a four-way dot product, `vpmaddubsw` adds pairs to 16 bits and `vpmaddwd` pairs of those to 32.
//! Codes below 64 times activations up to 127 leave room to add several pairs in 16 bits; full bytes do not,
//! so they are recentred to −128..=127 and their sign moves to the activations. All of it is exact.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; vector loads need no alignment"
)]

use std::arch::x86_64::*;

use super::super::layout::{Codes, LANES, Layout, Shape, TABLE, UNIT_BLOCKS, WIDE_BLOCK_BYTES};
use super::super::scales::{self, Lanes, UnitScales};
use super::panel::{for_each_block, unit_bytes};
use super::{Kind, Panel, with_kind, with_rows};
use crate::isa::Avx2;
use crate::quantize::QuantizedRow;

/// Rows of a vector.
const HALF: usize = LANES / 2;

pub(super) fn multiply_tile(
    _: Avx2,
    layout: &Layout,
    tile: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    for (x, out) in x.chunks(4).zip(out.chunks_mut(4)) {
        // SAFETY: the proof; `super::multiply_tile` checked all lengths.
        with_kind!(layout, K => with_rows!(x.len(), R => unsafe { tile_kernel::<K, R>(layout, tile, x, out) }, 1 2 4));
    }
}

pub(super) fn multiply_panel(
    _: Avx2,
    layout: &Layout,
    panel: &Panel,
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    for (x, out) in x.chunks(4).zip(out.chunks_mut(4)) {
        // SAFETY: the proof; `super::multiply_panel` checked all lengths.
        with_kind!(layout, K => with_rows!(x.len(), R => unsafe { panel_kernel::<K, R>(panel, x, out) }, 1 2 4));
    }
}

pub(super) fn fill_panel(_: Avx2, layout: &Layout, tile: &[u8], panel: &mut Panel) {
    // SAFETY: the proof; `super::fill_panel` checked the tile and made room.
    with_kind!(layout, K => unsafe { fill_kernel::<K>(layout, tile, panel) });
}

/// # Safety
///
/// `tile` is a tile of `layout`, `x` and `out` have R rows, every row of `x` the blocks of `layout`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile_kernel<K: Kind, const R: usize>(
    layout: &Layout,
    tile: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    let mut unpacked = UnitScales::ZERO;
    for unit in 0..layout.units() {
        let blocks = layout.unit_blocks(unit);
        let (head, stored) = unit_bytes(layout, tile, unit);
        scales::expand(layout, head, unit, stored, &mut unpacked);
        let planes = &stored[layout.scale_bytes(blocks)..];
        for at in 0..blocks {
            let per_block = K::SHAPE.scales_per_block();
            for half in 0..2 {
                // SAFETY: block `at` of this unit is within the tile; its scales were just unpacked.
                unsafe {
                    let weights = unpack::<K>(planes.as_ptr().add(at * K::CODES.block_bytes() + 32 * half));
                    let scale = unpacked.scale.as_ptr().add(at * per_block);
                    let min = unpacked.min.as_ptr().add(at * per_block);
                    accumulate::<K, R>(half, &weights, scale, min, x, unit * UNIT_BLOCKS + at, &mut acc);
                }
            }
        }
    }
    store(&acc, out);
}

/// # Safety
///
/// `panel` holds a tile of kind K, `x` and `out` have R rows, every row of `x` the blocks of `panel`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel_kernel<K: Kind, const R: usize>(panel: &Panel, x: &[QuantizedRow<'_>], out: &mut [Lanes]) {
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    for (block, codes) in panel.codes.iter().enumerate() {
        let per_block = K::SHAPE.scales_per_block();
        for half in 0..2 {
            // SAFETY: a panel's block is eight vectors; its scales and minima are as many as the shape says.
            unsafe {
                let codes = codes.0.as_ptr().add(32 * half);
                let mut weights = [_mm256_setzero_si256(); 8];
                for (group, weights) in weights.iter_mut().enumerate() {
                    *weights = load(codes.add(64 * group));
                }
                let scale = panel.scales.as_ptr().add(block * per_block).cast::<Lanes>();
                let min = panel.mins.as_ptr().cast::<Lanes>().wrapping_add(block * per_block);
                accumulate::<K, R>(half, &weights, scale, min, x, block, &mut acc);
            }
        }
    }
    store(&acc, out);
}

/// # Safety
///
/// `tile` is a tile of `layout`, which is of kind K; `panel` has room for it.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fill_kernel<K: Kind>(layout: &Layout, tile: &[u8], panel: &mut Panel) {
    panel.fill_scales(layout, tile);
    let codes = &mut panel.codes;
    for_each_block(layout, tile, |block, packed| {
        let out: &mut [u8; WIDE_BLOCK_BYTES] = &mut codes[block].0;
        for half in 0..2 {
            // SAFETY: `packed` is a block of kind K, `out` is eight vectors of two halves.
            unsafe {
                for (group, weights) in unpack::<K>(packed.as_ptr().add(32 * half)).into_iter().enumerate() {
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
/// `scale` and `min` point to what the shape of K has per block; `x` has R rows with a block `block`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn accumulate<K: Kind, const R: usize>(
    half: usize,
    weights: &[__m256i; 8],
    scale: *const Lanes,
    min: *const Lanes,
    x: &[QuantizedRow<'_>],
    block: usize,
    acc: &mut [[__m256; 2]; R],
) {
    let recentred = matches!(K::CODES, Codes::Bits8 | Codes::Table4);
    let shift = K::CODES.offset_shift();
    // SAFETY: scales are of 16 lanes.
    let lanes = |values: *const Lanes| unsafe { _mm256_loadu_ps(values.cast::<f32>().add(HALF * half)) };
    for row in 0..R {
        // SAFETY: by the contract.
        unsafe {
            let x = x.get_unchecked(row);
            let meta = x.blocks.get_unchecked(block);
            let codes = x.codes.as_ptr().add(block * 32).cast::<i32>();
            // `Σ q·a − (sum << shift)` where the format has an offset, else `Σ q·a`.
            let dot = |sum: i32, from: usize, to: usize| {
                let start = match (K::SHAPE.has_min(), recentred) {
                    (false, true) | (true, false) => 0,
                    (false, false) => -(sum << shift),
                    (true, true) => sum << shift,
                };
                let dot = dot::<K>(&weights[from..to], codes.add(from));
                _mm256_cvtepi32_ps(_mm256_add_epi32(dot, _mm256_set1_epi32(start)))
            };
            let activation_scale = _mm256_set1_ps(meta.scale);
            let [first, second] = meta.half_sums.map(i32::from);
            let acc = &mut acc[row][half];
            *acc = match K::SHAPE {
                Shape::Whole => {
                    let factor = _mm256_mul_ps(lanes(scale), activation_scale);
                    _mm256_fmadd_ps(dot(meta.sum, 0, 8), factor, *acc)
                }
                Shape::WholeMin => {
                    let factor = _mm256_mul_ps(lanes(scale), activation_scale);
                    let acc = _mm256_fmadd_ps(dot(meta.sum, 0, 8), factor, *acc);
                    _mm256_fmadd_ps(lanes(min), _mm256_set1_ps(meta.scaled_sum), acc)
                }
                Shape::Halves | Shape::HalvesMin => {
                    let both = _mm256_mul_ps(dot(first, 0, 4), lanes(scale));
                    let both = _mm256_fmadd_ps(dot(second, 4, 8), lanes(scale.add(1)), both);
                    let acc = _mm256_fmadd_ps(both, activation_scale, *acc);
                    if K::SHAPE.has_min() {
                        let sum = |half: i32| _mm256_set1_ps(meta.scale * half as f32);
                        let acc = _mm256_fmadd_ps(lanes(min), sum(first), acc);
                        _mm256_fmadd_ps(lanes(min.add(1)), sum(second), acc)
                    } else {
                        acc
                    }
                }
            };
        }
    }
}

/// `Σ q·a` of codes below 64, `Σ (q − 128)·a` of full bytes.
///
/// # Safety
///
/// As many groups of activations are readable as there are weights.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn dot<K: Kind>(weights: &[__m256i], codes: *const i32) -> __m256i {
    // SAFETY: by the contract.
    let activations = |group: usize| unsafe { _mm256_set1_epi32(codes.add(group).read_unaligned()) };
    // Groups whose pair sums fit 16 bits together: 2 · 127 · largest code · groups < 2¹⁵.
    let groups = match K::CODES {
        Codes::Bits2 | Codes::Bits3 | Codes::Bits4 => 8,
        Codes::Bits5 => 4,
        Codes::Bits6 => 2,
        Codes::Bits8 | Codes::Table4 => 1,
    };
    let ones = _mm256_set1_epi16(1);
    let mut sum = _mm256_setzero_si256();
    for (step, weights) in weights.chunks(groups).enumerate() {
        let mut pairs = _mm256_setzero_si256();
        for (index, weights) in weights.iter().enumerate() {
            let activations = activations(step * groups + index);
            let products = if groups == 1 {
                let centred = _mm256_xor_si256(*weights, _mm256_set1_epi8(-128));
                _mm256_maddubs_epi16(_mm256_abs_epi8(centred), _mm256_sign_epi8(activations, centred))
            } else {
                _mm256_maddubs_epi16(*weights, activations)
            };
            pairs = _mm256_add_epi16(pairs, products);
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    sum
}

/// Half of the eight vectors of a block, a byte per code.
///
/// # Safety
///
/// `planes` points to a packed block of kind K, or 32 bytes behind, for the second half.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn unpack<K: Kind>(planes: *const u8) -> [__m256i; 8] {
    // SAFETY: by the contract; vectors are counted as `layout` says.
    let vector = |index: usize| unsafe { load(planes.add(64 * index)) };
    let mut out = [_mm256_setzero_si256(); 8];
    match K::CODES {
        Codes::Bits8 => {
            for (group, out) in out.iter_mut().enumerate() {
                *out = vector(group);
            }
        }
        Codes::Bits4 | Codes::Table4 | Codes::Bits5 | Codes::Bits6 => {
            let mask = _mm256_set1_epi8(15);
            for index in 0..4 {
                let both = vector(index);
                out[index] = _mm256_and_si256(both, mask);
                out[index + 4] = _mm256_and_si256(_mm256_srli_epi32::<4>(both), mask);
            }
        }
        Codes::Bits2 | Codes::Bits3 => {
            let mask = _mm256_set1_epi8(3);
            for (group, out) in out.iter_mut().enumerate() {
                *out = _mm256_and_si256(shifted(vector(group / 4), group % 4 * 2, 0), mask);
            }
        }
    }
    match K::CODES {
        Codes::Table4 => {
            // SAFETY: the table is 16 bytes.
            let table = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(TABLE.as_ptr().cast()) });
            out.map(|codes| _mm256_shuffle_epi8(table, codes))
        }
        Codes::Bits3 => with_bits(out, 2, |group| (vector(2), group), 1),
        Codes::Bits5 => with_bits(out, 4, |group| (vector(4), group), 1),
        Codes::Bits6 => with_bits(out, 4, |group| (vector(4 + group / 4), group % 4 * 2), 3),
        Codes::Bits2 | Codes::Bits4 | Codes::Bits8 => out,
    }
}

/// Adds the high bits of codes: `mask` bits from the place that `source` names, to place `to`.
#[inline]
#[target_feature(enable = "avx2")]
fn with_bits(
    mut codes: [__m256i; 8],
    to: usize,
    source: impl Fn(usize) -> (__m256i, usize),
    mask: i8,
) -> [__m256i; 8] {
    let mask = _mm256_set1_epi8(mask << to);
    for (group, out) in codes.iter_mut().enumerate() {
        let (plane, from) = source(group);
        *out = _mm256_or_si256(*out, _mm256_and_si256(shifted(plane, from, to), mask));
    }
    codes
}

/// Moves bit `from` of every byte to bit `to`; other bits are whatever comes along.
#[inline]
#[target_feature(enable = "avx2")]
fn shifted(vector: __m256i, from: usize, to: usize) -> __m256i {
    if from >= to {
        _mm256_srl_epi32(vector, _mm_cvtsi32_si128((from - to) as i32))
    } else {
        _mm256_sll_epi32(vector, _mm_cvtsi32_si128((to - from) as i32))
    }
}

/// # Safety
///
/// 32 bytes are readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(bytes: *const u8) -> __m256i {
    // SAFETY: by the contract.
    unsafe { _mm256_loadu_si256(bytes.cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store<const R: usize>(acc: &[[__m256; 2]; R], out: &mut [Lanes]) {
    for (acc, out) in acc.iter().zip(out) {
        for (half, acc) in acc.iter().enumerate() {
            // SAFETY: `out` is 16 floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(HALF * half), *acc) };
        }
    }
}
