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

use super::super::layout::{Codes, LANES, Layout, Scales, Shape, TABLE, WIDE_BLOCK_BYTES};
use super::super::scales::{BlockScales, Halves, Lanes};
use super::kinds::{Kind, with_kind, with_panel_kind, with_rows};
use super::panel::for_each_block;
use super::{MAX_ROWS, Panel};
use crate::isa::Avx512;
use crate::prefetch::PrefetchPolicy;
use crate::quantize::QuantizedRow;

pub(super) fn multiply_tiles(
    _: Avx512,
    layout: &Layout,
    tiles: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    // SAFETY: the proof; `super::multiply_tiles` checked all lengths.
    with_kind!(layout, K => with_rows!(x.len(), R => unsafe { tile_kernel::<K, R>(layout, tiles, x, out) }, 1 2 4 8));
}

pub(super) fn multiply_panel(
    _: Avx512,
    layout: &Layout,
    panel: &Panel,
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let shift = layout.codes.offset_shift();
    // SAFETY: the proof; `super::multiply_panel` checked all lengths.
    with_panel_kind!(layout, K => with_rows!(x.len(), R => unsafe { panel_kernel::<K, R>(panel, shift, x, out) }, 1 2 4 8));
}

pub(super) fn fill_panel(_: Avx512, layout: &Layout, tile: &[u8], panel: &mut Panel) {
    // SAFETY: the proof; `super::fill_panel` checked the tile and made room.
    with_kind!(layout, K => unsafe { fill_kernel::<K>(layout, tile, panel) });
}

/// # Safety
///
/// `tiles` are tiles of `layout`, `x` has R rows, every one the blocks of `layout`; `out` has R rows for each tile.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn tile_kernel<K: Kind, const R: usize>(
    layout: &Layout,
    tiles: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let layout = &K::layout(layout);
    let ahead = PrefetchPolicy::for_rows(R);
    let mut unpacked = BlockScales::ZERO;
    for (tile, out) in tiles.chunks_exact(layout.tile_bytes()).zip(out.chunks_exact_mut(R)) {
        let mut acc = [_mm512_setzero_ps(); R];
        for_each_block(layout, tile, 0..layout.blocks, ahead, |block, packed| {
            packed.scales::<Widen>(layout.scales, &mut unpacked);
            // SAFETY: the block is of kind K, `unpacked` are its scales.
            unsafe {
                let weights = unpack::<K>(packed.planes.as_ptr());
                let (scale, min) = (unpacked.scale.as_ptr(), unpacked.min.as_ptr());
                accumulate::<K, R>(weights, scale, min, K::CODES.offset_shift(), x, block, &mut acc);
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn panel_kernel<K: Kind, const R: usize>(
    panel: &Panel,
    shift: u32,
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let mut acc = [_mm512_setzero_ps(); R];
    if panel.first > 0 {
        // SAFETY: `out` has R rows of 16 floats.
        acc = std::array::from_fn(|row| unsafe { lanes(&raw const out[row]) });
    }
    for (at, codes) in panel.codes.iter().enumerate() {
        let per_block = K::SHAPE.scales_per_block();
        // SAFETY: a panel's block is eight vectors; its scales and minima are as many as the shape says.
        unsafe {
            let codes = codes.0.as_ptr();
            let weights = std::array::from_fn(|group| load(codes.add(64 * group)));
            let scale = panel.scales.as_ptr().add(at * per_block).cast::<Lanes>();
            let min = panel.mins.as_ptr().cast::<Lanes>().wrapping_add(at * per_block);
            accumulate::<K, R>(weights, scale, min, shift, x, panel.first + at, &mut acc);
        }
    }
    // SAFETY: this kernel has the feature.
    unsafe { store(&acc, out) };
}

/// # Safety
///
/// `tile` is a tile of `layout`, which is of kind K; `panel` has room for it.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn fill_kernel<K: Kind>(layout: &Layout, tile: &[u8], panel: &mut Panel) {
    let layout = &K::layout(layout);
    let mut unpacked = BlockScales::ZERO;
    for_each_block(layout, tile, panel.blocks(), PrefetchPolicy::for_rows(MAX_ROWS), |block, packed| {
        let at = block - panel.first;
        packed.scales::<Widen>(layout.scales, &mut unpacked);
        panel.put_scales(K::SHAPE, at, &unpacked);
        let offset = _mm512_set1_epi8(panel.offset.cast_signed());
        let out: &mut [u8; WIDE_BLOCK_BYTES] = &mut panel.codes[at].0;
        // SAFETY: `packed` is a block of kind K, `out` is eight vectors.
        unsafe {
            for (group, weights) in unpack::<K>(packed.planes.as_ptr()).into_iter().enumerate() {
                let weights = _mm512_sub_epi8(weights, offset);
                _mm512_storeu_si512(out.as_mut_ptr().add(64 * group).cast(), weights);
            }
        }
    });
}

/// Adds one block of 32 inputs to the sums of R rows; see [`super`] for the order.
///
/// # Safety
///
/// The caller has the features of this file's kernels; `scale` and `min` point to what the shape of K has per
/// block; `shift` is that of the format's codes; `x` has R rows with a block `block`.
#[inline(always)]
unsafe fn accumulate<K: Kind, const R: usize>(
    weights: [__m512i; 8],
    scale: *const Lanes,
    min: *const Lanes,
    shift: u32,
    x: &[QuantizedRow<'_>],
    block: usize,
    acc: &mut [__m512; R],
) {
    for row in 0..R {
        // SAFETY: by the contract.
        unsafe {
            let x = x.get_unchecked(row);
            let meta = x.blocks.get_unchecked(block);
            let codes = x.codes.as_ptr().add(block * 32).cast::<i32>();
            macro_rules! dot {
                ($split:literal, $start:expr, $($group:literal)*) => {{
                    let mut dot = [_mm512_set1_epi32($start), _mm512_setzero_si512()];
                    $(
                        let activations = _mm512_set1_epi32(codes.add($group).read_unaligned());
                        let chain = if R < $split { $group % 2 } else { 0 };
                        dot[chain] = _mm512_dpbusd_epi32(dot[chain], weights[$group], activations);
                    )*
                    _mm512_cvtepi32_ps(if R < $split { _mm512_add_epi32(dot[0], dot[1]) } else { dot[0] })
                }};
            }
            // Integers add exactly in any order: with few rows, short chains keep the pipeline fuller than long ones.
            macro_rules! whole {
                ($start:expr) => {
                    dot!(8, $start, 0 1 2 3 4 5 6 7)
                };
            }
            macro_rules! halves {
                ($first:expr, $second:expr) => {
                    [dot!(2, $first, 0 1 2 3), dot!(2, $second, 4 5 6 7)]
                };
            }
            let activation_scale = _mm512_set1_ps(meta.scale);
            acc[row] = match K::SHAPE {
                Shape::Whole => {
                    let dot = whole!(-(meta.sum << shift));
                    _mm512_fmadd_ps(dot, _mm512_mul_ps(lanes(scale), activation_scale), acc[row])
                }
                Shape::WholeMin => {
                    let factor = _mm512_mul_ps(lanes(scale), activation_scale);
                    let acc = _mm512_fmadd_ps(whole!(0), factor, acc[row]);
                    _mm512_fmadd_ps(lanes(min), _mm512_set1_ps(meta.scaled_sum), acc)
                }
                Shape::Halves => {
                    let [first, second] = meta.half_sums.map(i32::from);
                    let [first, second] = halves!(-(first << shift), -(second << shift));
                    let both = _mm512_mul_ps(first, lanes(scale));
                    let both = _mm512_fmadd_ps(second, lanes(scale.add(1)), both);
                    _mm512_fmadd_ps(both, activation_scale, acc[row])
                }
                Shape::HalvesMin => {
                    let [first, second] = meta.half_sums.map(|sum| meta.scale * f32::from(sum));
                    let [first_dot, second_dot] = halves!(0, 0);
                    let both = _mm512_mul_ps(first_dot, lanes(scale));
                    let both = _mm512_fmadd_ps(second_dot, lanes(scale.add(1)), both);
                    let acc = _mm512_fmadd_ps(both, activation_scale, acc[row]);
                    let acc = _mm512_fmadd_ps(lanes(min), _mm512_set1_ps(first), acc);
                    _mm512_fmadd_ps(lanes(min.add(1)), _mm512_set1_ps(second), acc)
                }
            };
        }
    }
}

/// The eight vectors of a block, a byte per code.
///
/// # Safety
///
/// The caller has the features of this file's kernels; `planes` points to a packed block of kind K.
#[inline(always)]
pub(super) unsafe fn unpack<K: Kind>(planes: *const u8) -> [__m512i; 8] {
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

/// Group G of a block, a byte per code; vectors and bits are counted as [`layout`](super::super::layout) says.
///
/// # Safety
///
/// As [`unpack`].
#[inline(always)]
unsafe fn group<K: Kind, const G: usize>(planes: *const u8) -> __m512i {
    // SAFETY: by the contract.
    unsafe {
        let nibbles = |first: usize| bits(load(planes.add(64 * (first + G % 4))), G / 4 * 4, 0, 15);
        let pairs = |vector: usize, to: usize| bits(load(planes.add(64 * vector)), G % 4 * 2, to, 3);
        let single = |to: usize| bits(load(planes), G, to, 1);
        match K::CODES {
            Codes::Bits8 => load(planes.add(64 * G)),
            Codes::Bits4 => nibbles(0),
            Codes::Table4 => {
                let table = _mm512_broadcast_i32x4(_mm_loadu_si128(TABLE.as_ptr().cast()));
                _mm512_shuffle_epi8(table, nibbles(0))
            }
            Codes::Bits5 => _mm512_or_si512(single(4), nibbles(1)),
            Codes::Bits6 => _mm512_or_si512(pairs(G / 4 * 5, 4), nibbles(1)),
            Codes::Bits2 => pairs(G / 4, 0),
            Codes::Bits3 => _mm512_or_si512(single(2), pairs(1 + G / 4, 0)),
        }
    }
}

/// The bits `mask` from place `from` of every byte, moved to place `to`.
///
/// # Safety
///
/// The caller has the features of this file's kernels.
#[inline(always)]
unsafe fn bits(vector: __m512i, from: usize, to: usize, mask: i8) -> __m512i {
    // SAFETY: by the contract.
    unsafe {
        // Shifting words carries bits across bytes; the mask drops them.
        let moved = if from >= to {
            _mm512_srl_epi32(vector, _mm_cvtsi32_si128((from - to) as i32))
        } else {
            _mm512_sll_epi32(vector, _mm_cvtsi32_si128((to - from) as i32))
        };
        _mm512_and_si512(moved, _mm512_set1_epi8(mask << to))
    }
}

/// # Safety
///
/// The caller has AVX-512 F; 64 bytes are readable.
#[inline(always)]
unsafe fn load(bytes: *const u8) -> __m512i {
    // SAFETY: by the contract.
    unsafe { _mm512_loadu_si512(bytes.cast()) }
}

/// # Safety
///
/// The caller has AVX-512 F; the pointer is readable.
#[inline(always)]
unsafe fn lanes(values: *const Lanes) -> __m512 {
    // SAFETY: by the contract.
    unsafe { _mm512_loadu_ps(values.cast()) }
}

/// # Safety
///
/// The caller has AVX-512 F.
#[inline(always)]
unsafe fn store<const R: usize>(acc: &[__m512; R], out: &mut [Lanes]) {
    for (acc, out) in acc.iter().zip(out) {
        // SAFETY: by the contract; `out` is 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *acc) };
    }
}

/// Conversion by one instruction; used by this file's kernels alone, which have it.
pub(super) struct Widen;

impl Halves for Widen {
    #[inline(always)]
    fn widen(bytes: &[u8; 2 * LANES]) -> Lanes {
        // SAFETY: only called where the instruction is there; 16 halves are read, 16 floats written.
        unsafe {
            let mut lanes = [0.0; LANES];
            let halves = _mm256_loadu_si256(bytes.as_ptr().cast());
            _mm512_storeu_ps(lanes.as_mut_ptr(), _mm512_cvtph_ps(halves));
            lanes
        }
    }
}
