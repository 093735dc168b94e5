//! AVX-512 with VNNI: a vector holds four codes of each of 16 rows, `vpdpbusd` multiplies it with four
//! activations broadcast to all lanes.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    clippy::large_types_passed_by_value,
    reason = "intrinsics come by the dozen; vector loads need no alignment; vectors stay in registers"
)]

use std::arch::x86_64::*;

use super::super::layout::{Codes, Layout, Shape, TABLE, UNIT_BLOCKS, WIDE_BLOCK_BYTES};
use super::super::scales::{self, Lanes, UnitScales};
use super::panel::{for_each_block, unit_bytes};
use super::{Kind, Panel, with_kind, with_rows};
use crate::isa::Avx512;
use crate::quantize::QuantizedRow;

pub(super) fn multiply_tile(
    _: Avx512,
    layout: &Layout,
    tile: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    // SAFETY: the proof; `super::multiply_tile` checked all lengths.
    with_kind!(layout, K => with_rows!(x.len(), R => unsafe { tile_kernel::<K, R>(layout, tile, x, out) }, 1 2 4 8));
}

pub(super) fn multiply_panel(
    _: Avx512,
    layout: &Layout,
    panel: &Panel,
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    // SAFETY: the proof; `super::multiply_panel` checked all lengths.
    with_kind!(layout, K => with_rows!(x.len(), R => unsafe { panel_kernel::<K, R>(panel, x, out) }, 1 2 4 8));
}

pub(super) fn fill_panel(_: Avx512, layout: &Layout, tile: &[u8], panel: &mut Panel) {
    // SAFETY: the proof; `super::fill_panel` checked the tile and made room.
    with_kind!(layout, K => unsafe { fill_kernel::<K>(layout, tile, panel) });
}

/// # Safety
///
/// `tile` is a tile of `layout`, `x` and `out` have R rows, every row of `x` the blocks of `layout`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn tile_kernel<K: Kind, const R: usize>(
    layout: &Layout,
    tile: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let mut acc = [_mm512_setzero_ps(); R];
    let mut unpacked = UnitScales::ZERO;
    for unit in 0..layout.units() {
        let blocks = layout.unit_blocks(unit);
        let (head, stored) = unit_bytes(layout, tile, unit);
        scales::expand(layout, head, unit, stored, &mut unpacked);
        let planes = &stored[layout.scale_bytes(blocks)..];
        for at in 0..blocks {
            let per_block = K::SHAPE.scales_per_block();
            // SAFETY: block `at` of this unit is within the tile; its scales were just unpacked.
            unsafe {
                let weights = unpack::<K>(planes.as_ptr().add(at * K::CODES.block_bytes()));
                let scale = unpacked.scale.as_ptr().add(at * per_block);
                let min = unpacked.min.as_ptr().add(at * per_block);
                accumulate::<K, R>(&weights, scale, min, x, unit * UNIT_BLOCKS + at, &mut acc);
            }
        }
    }
    store(&acc, out);
}

/// # Safety
///
/// `panel` holds a tile of kind K, `x` and `out` have R rows, every row of `x` the blocks of `panel`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn panel_kernel<K: Kind, const R: usize>(panel: &Panel, x: &[QuantizedRow<'_>], out: &mut [Lanes]) {
    let mut acc = [_mm512_setzero_ps(); R];
    for (block, codes) in panel.codes.iter().enumerate() {
        let per_block = K::SHAPE.scales_per_block();
        // SAFETY: a panel's block is eight vectors; its scales and minima are as many as the shape says.
        unsafe {
            let codes = codes.0.as_ptr();
            let mut weights = [_mm512_setzero_si512(); 8];
            for (group, weights) in weights.iter_mut().enumerate() {
                *weights = load(codes.add(64 * group));
            }
            let scale = panel.scales.as_ptr().add(block * per_block).cast::<Lanes>();
            let min = panel.mins.as_ptr().cast::<Lanes>().wrapping_add(block * per_block);
            accumulate::<K, R>(&weights, scale, min, x, block, &mut acc);
        }
    }
    store(&acc, out);
}

/// # Safety
///
/// `tile` is a tile of `layout`, which is of kind K; `panel` has room for it.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn fill_kernel<K: Kind>(layout: &Layout, tile: &[u8], panel: &mut Panel) {
    panel.fill_scales(layout, tile);
    let codes = &mut panel.codes;
    for_each_block(layout, tile, |block, packed| {
        let out: &mut [u8; WIDE_BLOCK_BYTES] = &mut codes[block].0;
        // SAFETY: `packed` is a block of kind K, `out` is eight vectors.
        unsafe {
            for (group, weights) in unpack::<K>(packed.as_ptr()).into_iter().enumerate() {
                _mm512_storeu_si512(out.as_mut_ptr().add(64 * group).cast(), weights);
            }
        }
    });
}

/// Adds one block of 32 inputs to the sums of R rows; see [`super`] for the order.
///
/// # Safety
///
/// `scale` and `min` point to what the shape of K has per block; `x` has R rows with a block `block`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn accumulate<K: Kind, const R: usize>(
    weights: &[__m512i; 8],
    scale: *const Lanes,
    min: *const Lanes,
    x: &[QuantizedRow<'_>],
    block: usize,
    acc: &mut [__m512; R],
) {
    let shift = K::CODES.offset_shift();
    for row in 0..R {
        // SAFETY: by the contract.
        unsafe {
            let x = x.get_unchecked(row);
            let meta = x.blocks.get_unchecked(block);
            let codes = x.codes.as_ptr().add(block * 32).cast::<i32>();
            let dot = |start: i32, from: usize, to: usize| {
                let mut dot = _mm512_set1_epi32(start);
                for (group, weights) in weights.iter().enumerate().take(to).skip(from) {
                    let activations = _mm512_set1_epi32(codes.add(group).read_unaligned());
                    dot = _mm512_dpbusd_epi32(dot, *weights, activations);
                }
                _mm512_cvtepi32_ps(dot)
            };
            let activation_scale = _mm512_set1_ps(meta.scale);
            acc[row] = match K::SHAPE {
                Shape::Whole => {
                    let dot = dot(-(meta.sum << shift), 0, 8);
                    _mm512_fmadd_ps(dot, _mm512_mul_ps(lanes(scale), activation_scale), acc[row])
                }
                Shape::WholeMin => {
                    let factor = _mm512_mul_ps(lanes(scale), activation_scale);
                    let acc = _mm512_fmadd_ps(dot(0, 0, 8), factor, acc[row]);
                    _mm512_fmadd_ps(lanes(min), _mm512_set1_ps(meta.scaled_sum), acc)
                }
                Shape::Halves => {
                    let [first, second] = meta.half_sums.map(i32::from);
                    let both = _mm512_mul_ps(dot(-(first << shift), 0, 4), lanes(scale));
                    let both = _mm512_fmadd_ps(dot(-(second << shift), 4, 8), lanes(scale.add(1)), both);
                    _mm512_fmadd_ps(both, activation_scale, acc[row])
                }
                Shape::HalvesMin => {
                    let [first, second] =
                        meta.half_sums.map(|sum| _mm512_set1_ps(meta.scale * f32::from(sum)));
                    let both = _mm512_mul_ps(dot(0, 0, 4), lanes(scale));
                    let both = _mm512_fmadd_ps(dot(0, 4, 8), lanes(scale.add(1)), both);
                    let acc = _mm512_fmadd_ps(both, activation_scale, acc[row]);
                    let acc = _mm512_fmadd_ps(lanes(min), first, acc);
                    _mm512_fmadd_ps(lanes(min.add(1)), second, acc)
                }
            };
        }
    }
}

/// The eight vectors of a block, a byte per code.
///
/// # Safety
///
/// `planes` points to a packed block of kind K.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn unpack<K: Kind>(planes: *const u8) -> [__m512i; 8] {
    // SAFETY: by the contract; vectors are counted as `layout` says.
    let vector = |index: usize| unsafe { load(planes.add(64 * index)) };
    let mut out = [_mm512_setzero_si512(); 8];
    match K::CODES {
        Codes::Bits8 => {
            for (group, out) in out.iter_mut().enumerate() {
                *out = vector(group);
            }
        }
        Codes::Bits4 | Codes::Table4 | Codes::Bits5 | Codes::Bits6 => {
            let mask = _mm512_set1_epi8(15);
            for index in 0..4 {
                let both = vector(index);
                out[index] = _mm512_and_si512(both, mask);
                out[index + 4] = _mm512_and_si512(_mm512_srli_epi32::<4>(both), mask);
            }
        }
        Codes::Bits2 | Codes::Bits3 => {
            let mask = _mm512_set1_epi8(3);
            for (group, out) in out.iter_mut().enumerate() {
                *out = _mm512_and_si512(shifted(vector(group / 4), group % 4 * 2, 0), mask);
            }
        }
    }
    match K::CODES {
        Codes::Table4 => {
            // SAFETY: the table is 16 bytes.
            let table = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(TABLE.as_ptr().cast()) });
            out.map(|codes| _mm512_shuffle_epi8(table, codes))
        }
        Codes::Bits3 => with_bits(out, 2, |group| (vector(2), group), 1),
        Codes::Bits5 => with_bits(out, 4, |group| (vector(4), group), 1),
        Codes::Bits6 => with_bits(out, 4, |group| (vector(4 + group / 4), group % 4 * 2), 3),
        Codes::Bits2 | Codes::Bits4 | Codes::Bits8 => out,
    }
}

/// Adds the high bits of codes: `mask` bits from the place that `source` names, to place `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn with_bits(
    mut codes: [__m512i; 8],
    to: usize,
    source: impl Fn(usize) -> (__m512i, usize),
    mask: i8,
) -> [__m512i; 8] {
    let mask = _mm512_set1_epi8(mask << to);
    for (group, out) in codes.iter_mut().enumerate() {
        let (plane, from) = source(group);
        // low | plane & mask
        *out = _mm512_ternarylogic_epi32::<0xf8>(*out, shifted(plane, from, to), mask);
    }
    codes
}

/// Moves bit `from` of every byte to bit `to`; other bits are whatever comes along.
#[inline]
#[target_feature(enable = "avx512f")]
fn shifted(vector: __m512i, from: usize, to: usize) -> __m512i {
    if from >= to {
        _mm512_srl_epi32(vector, _mm_cvtsi32_si128((from - to) as i32))
    } else {
        _mm512_sll_epi32(vector, _mm_cvtsi32_si128((to - from) as i32))
    }
}

/// # Safety
///
/// 64 bytes are readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(bytes: *const u8) -> __m512i {
    // SAFETY: by the contract.
    unsafe { _mm512_loadu_si512(bytes.cast()) }
}

/// # Safety
///
/// The pointer is readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn lanes(values: *const Lanes) -> __m512 {
    // SAFETY: by the contract.
    unsafe { _mm512_loadu_ps(values.cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store<const R: usize>(acc: &[__m512; R], out: &mut [Lanes]) {
    for (acc, out) in acc.iter().zip(out) {
        // SAFETY: `out` is 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *acc) };
    }
}
