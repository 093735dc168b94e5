//! F16 and BF16 weights times many rows of activations, both rounded to bf16.
//!
//! Weights are tiles of 16 outputs and 32 inputs, pairs of inputs in a lane, which is how BF16 is packed; F16 is
//! rounded as a tile comes by. Rows are tiles of 16 rows and 32 inputs. Inputs beyond K are zero. A tile unit keeps the
//! sums of 64 rows in its registers; `vdpbf16ps` those of 16 rows, in one chain of additions for each output, pairs in
//! the order of k: the order of every sum depends on K alone.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; loads need no alignment"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::layout::{Float, LANES};
use super::FloatLayout;
use crate::isa::{Avx512, Avx512Bf16};
use crate::tiles::{
    AmxThread, BF16_INPUTS, Bf16Rows, Bf16Unit, Bf16Weights, EmulatedBf16, ROWS, Sums, Tiles, check_bf16,
};

/// Rows of activations in groups of 16, rounded; scratch memory of one thread, reused from pass to pass.
#[derive(Default)]
pub(in super::super) struct Bf16RowTiles {
    /// Tiles of a group.
    steps: usize,
    /// By group and 32 inputs.
    tiles: Vec<Bf16Rows>,
}

/// A tile of weights as bf16, where it is not stored so.
#[derive(Default)]
pub(in super::super) struct Bf16Panel {
    tiles: Vec<Bf16Weights>,
}

impl Bf16RowTiles {
    /// Takes `rows` rows of `k` inputs.
    pub(in super::super) fn gather<'a>(
        &mut self,
        _: Avx512,
        k: usize,
        rows: usize,
        row: impl Fn(usize) -> &'a [f32],
    ) {
        self.steps = k.div_ceil(BF16_INPUTS);
        self.tiles.resize(rows.div_ceil(ROWS) * self.steps, [[0; BF16_INPUTS]; ROWS]);
        for (group, tiles) in self.tiles.chunks_exact_mut(self.steps).enumerate() {
            for lane in 0..ROWS {
                let index = group * ROWS + lane;
                if index < rows {
                    // SAFETY: the proof.
                    unsafe { round_row(row(index), lane, tiles) };
                } else {
                    for tile in &mut *tiles {
                        tile[lane] = [0; BF16_INPUTS];
                    }
                }
            }
        }
    }
}

impl Bf16Panel {
    /// The tile as tiles of bf16.
    pub(in super::super) fn of<'a>(
        &'a mut self,
        _: Avx512,
        layout: &FloatLayout,
        tile: &'a [u8],
    ) -> &'a [Bf16Weights] {
        if layout.float == Float::BF16 && layout.k.is_multiple_of(BF16_INPUTS) {
            return bytemuck::cast_slice(tile);
        }
        self.tiles.clear();
        self.tiles.resize(layout.k.div_ceil(BF16_INPUTS), [[[0; 2]; LANES]; ROWS]);
        match layout.float {
            Float::BF16 => bytemuck::cast_slice_mut(&mut self.tiles)[..tile.len()].copy_from_slice(tile),
            // SAFETY: the proof.
            Float::F16 => unsafe { round_halves(layout.k, tile, &mut self.tiles) },
            Float::F32 => unreachable!("F32 weights are multiplied as they are"),
        }
        &self.tiles
    }
}

/// To the nearest bf16, ties to even, in the high half of the word; NaN stays NaN.
#[inline(always)]
fn round(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    if value.is_nan() { bits | 0x0040_0000 } else { rounded }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn round_row(x: &[f32], lane: usize, tiles: &mut [Bf16Rows]) {
    let (whole, rest) = x.as_chunks::<BF16_INPUTS>();
    for (x, tile) in whole.iter().zip(&mut *tiles) {
        for (to, x) in tile[lane].iter_mut().zip(x) {
            *to = (round(*x) >> 16) as u16;
        }
    }
    if let Some(last) = tiles.get_mut(whole.len()) {
        last[lane] = [0; BF16_INPUTS];
        for (to, x) in last[lane].iter_mut().zip(rest) {
            *to = (round(*x) >> 16) as u16;
        }
    }
}

/// F16 is packed input by input.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn round_halves(k: usize, tile: &[u8], panel: &mut [Bf16Weights]) {
    let inputs = &tile.as_chunks::<{ 2 * LANES }>().0[..k];
    let pairs = panel.as_flattened_mut();
    for (inputs, pair) in inputs.chunks(2).zip(pairs) {
        let first = widen(&inputs[0]);
        let second = if let [_, second] = inputs { widen(second) } else { [0.0; LANES] };
        for (to, (first, second)) in pair.iter_mut().zip(first.iter().zip(second)) {
            *to = [(round(*first) >> 16) as u16, (round(second) >> 16) as u16];
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn widen(halves: &[u8; 2 * LANES]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    // SAFETY: 16 halves are read, 16 floats written.
    unsafe {
        let halves = _mm256_loadu_si256(halves.as_ptr().cast());
        _mm512_storeu_ps(lanes.as_mut_ptr(), _mm512_cvtph_ps(halves));
    }
    lanes
}

/// What multiplies bf16 on this thread.
pub(in super::super) struct Bf16Products(Unit);

enum Unit {
    Amx(AmxThread),
    Emulated(EmulatedBf16),
    Vectors(Avx512Bf16),
}

impl Bf16Products {
    /// Groups of rows that a call takes at most.
    pub(in super::super) const GROUPS: usize = 4;

    /// Sets the thread up.
    pub(in super::super) fn new(proof: Avx512, bf16: Avx512Bf16) -> Self {
        Self(match proof.tiles() {
            Some(Tiles::Amx(amx)) => Unit::Amx(amx.bf16()),
            Some(Tiles::Emulated) => Unit::Emulated(EmulatedBf16),
            None => Unit::Vectors(bf16),
        })
    }

    /// The products of a panel with up to 64 rows, of which the first begins a group.
    pub(in super::super) fn multiply(
        &self,
        panel: &[Bf16Weights],
        x: &Bf16RowTiles,
        rows: Range<usize>,
        sums: &mut [Sums<f32>; Self::GROUPS],
    ) {
        let first = rows.start / ROWS;
        let groups = rows.len().div_ceil(ROWS);
        let group = |group: usize| &x.tiles[(first + group.min(groups - 1)) * x.steps..][..x.steps];
        let groups_of_rows: [&[Bf16Rows]; Self::GROUPS] = std::array::from_fn(group);
        let (a, sums) = (&groups_of_rows[..groups], &mut sums[..groups]);
        match &self.0 {
            Unit::Amx(unit) => unit.dot_bf16(a, rows.len(), panel, sums),
            Unit::Emulated(unit) => unit.dot_bf16(a, rows.len(), panel, sums),
            Unit::Vectors(unit) => unit.dot_bf16(a, rows.len(), panel, sums),
        }
    }
}

impl Bf16Unit for Avx512Bf16 {
    const GROUPS: usize = Bf16Products::GROUPS;

    fn dot_bf16(&self, a: &[&[Bf16Rows]], rows: usize, b: &[Bf16Weights], c: &mut [Sums<f32>]) {
        check_bf16::<Self>(a, b, c);
        for (group, (a, c)) in a.iter().zip(c).enumerate() {
            // SAFETY: the proof; there are as many tiles of rows as of weights.
            unsafe {
                match rows - group * ROWS {
                    ..=4 => kernel::<4>(a, b, c),
                    5..=8 => kernel::<8>(a, b, c),
                    9..=12 => kernel::<12>(a, b, c),
                    _ => kernel::<16>(a, b, c),
                }
            }
        }
    }
}

/// The sums of the first R rows.
///
/// # Safety
///
/// `a` and `b` are equally long.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn kernel<const R: usize>(a: &[Bf16Rows], b: &[Bf16Weights], c: &mut Sums<f32>) {
    let mut acc = [_mm512_setzero_ps(); R];
    for (rows, weights) in a.iter().zip(b) {
        let (rows, weights) = (rows.as_ptr().cast::<i32>(), weights.as_ptr());
        for pair in 0..ROWS {
            // SAFETY: a tile of weights is 16 vectors, a row of a tile 16 pairs.
            unsafe {
                let weights = bf16(_mm512_loadu_si512(weights.add(pair).cast()));
                for (row, acc) in acc.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32(rows.add(row * ROWS + pair).read_unaligned());
                    *acc = _mm512_dpbf16_ps(*acc, weights, bf16(x));
                }
            }
        }
    }
    for (acc, c) in acc.iter().zip(&mut c.0) {
        // SAFETY: 16 floats.
        unsafe { _mm512_storeu_ps(c.as_mut_ptr(), *acc) };
    }
}

/// # Safety
///
/// The caller has AVX-512 F.
#[inline(always)]
unsafe fn bf16(vector: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits of which any are valid.
    unsafe { std::mem::transmute(vector) }
}
