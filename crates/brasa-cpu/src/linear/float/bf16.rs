//! F16 and BF16 weights times many rows of activations, both rounded to bf16.
//!
//! Weights are tiles of 16 outputs and 32 inputs, pairs of inputs in a lane, which is how BF16 is packed; F16 is
//! rounded as a tile comes by. Rows are tiles of 16 rows and 32 inputs. Inputs beyond K are zero. A tile unit keeps the
//! sums of 32 rows and 32 outputs in its registers; `vdpbf16ps` those of 16 rows and 16 outputs, in one chain of
//! additions for each, pairs in the order of k: the order of every sum depends on K alone.
//!
//! Two panels of 16 outputs go by all rows of a pass together, [`SLICE_STEPS`] tiles at a time, while sums wait in memory:
//! these 16 KiB of weights, and as many of the two groups of rows that meet them, stay in the first cache. Of a
//! product of tiles, 16 cycles long, the second cache gives half of what it takes from rows, 512 bytes, and 256 of
//! sums; four groups of rows times one whole panel took 1.3 KiB.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; loads need no alignment"
)]

use std::arch::x86_64::*;

use super::super::layout::{Float, LANES};
use super::super::rows::parts;
use super::FloatLayout;
use crate::bf16::{Bf16Multiplier, round_pairs, round_row};
use crate::isa::{Avx512, Avx512Bf16};
use crate::tiles::{BF16_INPUTS, BF16_SIDE, Bf16Rows, Bf16Unit, Bf16Weights, ROWS, Sums};

/// Panels that go by together.
pub(in super::super) const PANELS: usize = BF16_SIDE;
/// Tiles of a panel that go by together: 256 inputs.
const SLICE_STEPS: usize = 8;

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
        proof: Avx512Bf16,
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
                    round_row(proof, row(index), lane, tiles);
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
        _: Avx512Bf16,
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

/// F16 is packed input by input.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn round_halves(k: usize, tile: &[u8], panel: &mut [Bf16Weights]) {
    let inputs = &tile.as_chunks::<{ 2 * LANES }>().0[..k];
    for (inputs, pair) in inputs.chunks(2).zip(panel.as_flattened_mut()) {
        // SAFETY: an input is 16 halves; a pair of inputs is a vector.
        unsafe {
            let widen =
                |halves: &[u8; 2 * LANES]| _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast()));
            let second = if let [_, second] = inputs { widen(second) } else { _mm512_setzero_ps() };
            let rounded = round_pairs(widen(&inputs[0]), second);
            _mm512_storeu_si512(pair.as_mut_ptr().cast(), rounded);
        }
    }
}

/// Products of a thread.
pub(in super::super) struct Bf16Products(Bf16Multiplier);

impl Bf16Products {
    /// Sets the thread up.
    pub(in super::super) fn new(proof: Avx512, bf16: Avx512Bf16) -> Self {
        Self(Bf16Multiplier::new(proof, bf16))
    }

    /// The products of at most [`PANELS`] panels with the `rows` rows that were gathered: by panel and group.
    pub(in super::super) fn multiply(
        &self,
        panels: &[&[Bf16Weights]],
        x: &Bf16RowTiles,
        rows: usize,
        results: &mut [Vec<Sums<f32>>; PANELS],
    ) {
        let groups = rows.div_ceil(ROWS);
        for results in &mut *results {
            results.clear();
            results.resize(groups, Sums([[0.0; LANES]; ROWS]));
        }
        for steps in parts(x.steps, SLICE_STEPS) {
            for groups in parts(groups, BF16_SIDE) {
                let a: [_; BF16_SIDE] = std::array::from_fn(|group| {
                    let group = (groups.start + group).min(groups.end - 1);
                    &x.tiles[group * x.steps..][steps.clone()]
                });
                let b: [_; PANELS] =
                    std::array::from_fn(|panel| &panels[panel.min(panels.len() - 1)][steps.clone()]);
                let mut c = results.each_mut().map(|results| &mut results[groups.clone()]);
                let (a, b, c) = (&a[..groups.len()], &b[..panels.len()], &mut c[..panels.len()]);
                let rows = rows - groups.start * ROWS;
                self.0.add_bf16(a, rows, b, c);
            }
        }
    }
}
