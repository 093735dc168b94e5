//! Keys and values of a page as tiles of 16 bits.
//!
//! A panel of keys is 16 positions and tiles of 32 elements each, a panel of values 16 elements and tiles of 32
//! positions each. Either way the cache holds the 16 lanes of a tile side by side, so that a row of it is two vectors,
//! rounded and shuffled.
//!
//! Values are bf16. Keys are [`int16`] for vectors, and bf16 for a matrix unit, which has no int16. There the
//! residual of rounding a key is rounded and multiplied too. Keys have a large common part and differ little: rounded to bf16
//! once, they more than doubled the error of a prompt of our trained models. Queries and values have less in common, and
//! rounding them made no difference.
#![expect(unsafe_code, reason = "instructions behind proofs that the processor has them")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;
use std::ops::Range;

use brasa_graph::step::PAGE_POSITIONS;

use super::source::{KvFormat, Page};
use crate::bf16::round_pairs;
use crate::int16;
use crate::isa::{Avx512, Avx512Bf16};
use crate::kv::layout::{BLOCKS, SCALE_ELEMENTS};
use crate::simd::{LANES, Simd, f16_to_f32};
use crate::tiles::{BF16_INPUTS, Bf16Weights, ROWS, TileMemory};

/// Positions of a tile of values.
pub(super) const STEP: usize = BF16_INPUTS;
/// Tiles of a panel of values: a page.
pub(super) const STEPS: usize = PAGE_POSITIONS / STEP;

// A tile of keys has one scale a position.
const _: () = assert!(SCALE_ELEMENTS == BF16_INPUTS);

/// The rounded keys and values of one page of one KV head.
#[derive(Debug, Default)]
pub(super) struct Panels {
    key_dim: usize,
    value_dim: usize,
    /// Tiles of keys, by 16 positions and 32 elements.
    keys: TileMemory<Bf16Weights>,
    /// Tiles of what rounding to bf16 took from keys, by 16 positions and 32 elements.
    key_residuals: TileMemory<Bf16Weights>,
    /// The factor that turns the int16 codes of a key into its elements, by blocks of 16 positions.
    key_scales: [[f32; LANES]; BLOCKS],
    /// Tiles of values, by 16 elements and 32 positions.
    values: TileMemory<Bf16Weights>,
}

impl Panels {
    /// Makes room for keys of `key_dim` elements and values of `value_dim`.
    pub fn reserve(&mut self, key_dim: usize, value_dim: usize) {
        (self.key_dim, self.value_dim) = (key_dim, value_dim);
        self.keys.reserve(BLOCKS * self.key_tiles());
        self.key_residuals.reserve(BLOCKS * self.key_tiles());
        self.values.reserve(self.value_panels() * STEPS);
    }

    /// Number of tiles in a panel of keys.
    pub fn key_tiles(&self) -> usize {
        self.key_dim.div_ceil(BF16_INPUTS)
    }

    /// Number of panels of values.
    pub fn value_panels(&self) -> usize {
        self.value_dim.div_ceil(LANES)
    }

    /// Panel `block` of the keys.
    pub fn keys(&self, block: usize) -> &[Bf16Weights] {
        let tiles = self.key_tiles();
        &self.keys[block * tiles..][..tiles]
    }

    /// The residuals of panel `block` of the keys.
    pub fn key_residuals(&self, block: usize) -> &[Bf16Weights] {
        let tiles = self.key_tiles();
        &self.key_residuals[block * tiles..][..tiles]
    }

    /// The factors that make elements of the int16 codes of panel `block`, one for each key.
    pub fn key_scales(&self, block: usize) -> &[f32; LANES] {
        &self.key_scales[block]
    }

    /// Tiles `steps` of panel `panel` of the values.
    pub fn values(&self, panel: usize, steps: Range<usize>) -> &[Bf16Weights] {
        &self.values[panel * STEPS..][steps]
    }

    /// Rounds the positions `slots` of a page.
    ///
    /// Other positions of the same tiles of values become zero, because a weight of zero does not undo a NaN. Other keys stay
    /// as they were, because their scores are never looked at.
    pub fn fill<F: KvFormat>(
        &mut self,
        proof: Avx512,
        _: Avx512Bf16,
        page: Page<'_, F>,
        slots: Range<usize>,
    ) {
        let widths = (page.key_dim(), page.value_dim());
        assert_eq!(widths, (self.key_dim, self.value_dim), "elements of a head");
        // SAFETY: the proofs.
        unsafe {
            let blocks = slots.start / LANES..slots.end.div_ceil(LANES);
            match proof.tiles() {
                Some(_) => self.fill_keys(proof, page, blocks),
                None => self.fill_int16_keys(proof, page, blocks),
            }
            self.fill_values(proof, page, slots);
        }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn fill_keys<F: KvFormat>(&mut self, simd: Avx512, page: Page<'_, F>, blocks: Range<usize>) {
        let tiles = self.key_tiles();
        for block in blocks {
            let keys = Keys::<F> { elements: page.keys(block), scales: page.key_scales(block) };
            let panel = self.keys[block * tiles..][..tiles].iter_mut();
            let panel = panel.zip(&mut self.key_residuals[block * tiles..][..tiles]);
            for (index, (tile, residuals)) in panel.enumerate() {
                let element = |element: usize| keys.element(simd, index * BF16_INPUTS + element);
                for (pair, (lanes, residuals)) in tile.iter_mut().zip(residuals).enumerate() {
                    let both = [element(2 * pair), element(2 * pair + 1)];
                    let rounded = round_pairs(both[0], both[1]);
                    store(rounded, lanes);
                    // A pair lies in one lane: the first below, the second above.
                    let first = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(rounded));
                    let above = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
                    let second = _mm512_castsi512_ps(_mm512_and_si512(rounded, above));
                    store(round_pairs(simd.sub(both[0], first), simd.sub(both[1], second)), residuals);
                }
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn fill_int16_keys<F: KvFormat>(&mut self, simd: Avx512, page: Page<'_, F>, blocks: Range<usize>) {
        let tiles = self.key_tiles();
        for block in blocks {
            let keys = Keys::<F> { elements: page.keys(block), scales: page.key_scales(block) };
            let to = &mut self.keys[block * tiles..][..tiles];
            // SAFETY: the proof.
            self.key_scales[block] = unsafe {
                int16::round_columns(simd, self.key_dim, |element| keys.element(simd, element), to)
            };
        }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn fill_values<F: KvFormat>(&mut self, simd: Avx512, page: Page<'_, F>, slots: Range<usize>) {
        let panels = self.value_panels();
        let (values, scales) = (page.values(), page.value_scales());
        let scale = |slot: usize, panel: usize| {
            let group = panel * LANES / SCALE_ELEMENTS;
            simd.splat(f16_to_f32(scales.at(group, slot / LANES)[slot % LANES]))
        };
        for step in slots.start / STEP..slots.end.div_ceil(STEP) {
            for pair in 0..ROWS {
                let rows = [0, 1].map(|odd| {
                    let slot = step * STEP + 2 * pair + odd;
                    slots.contains(&slot).then(|| (slot, &values[slot * panels..][..panels]))
                });
                for panel in 0..panels {
                    let vector = |row: Option<(usize, &[_])>| match row {
                        None => simd.splat(0.0),
                        Some((slot, row)) if F::SCALED => {
                            simd.mul(F::load(simd, &row[panel]), scale(slot, panel))
                        }
                        Some((_, row)) => F::load(simd, &row[panel]),
                    };
                    let rounded = round_pairs(vector(rows[0]), vector(rows[1]));
                    store(rounded, &mut self.values[panel * STEPS + step][pair]);
                }
            }
        }
    }
}

/// The keys of 16 positions: their elements, and the scales of each 32 if their format has some.
#[derive(Clone, Copy)]
struct Keys<'a, F: KvFormat> {
    elements: &'a [[F::Raw; LANES]],
    scales: &'a [[u16; LANES]],
}

impl<F: KvFormat> Keys<'_, F> {
    /// An element of all keys; zero beyond the last.
    #[inline(always)]
    fn element(&self, simd: Avx512, element: usize) -> __m512 {
        let Some(raw) = self.elements.get(element) else { return simd.splat(0.0) };
        let value = F::load(simd, raw);
        if F::SCALED { simd.mul(value, simd.load_f16(&self.scales[element / SCALE_ELEMENTS])) } else { value }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(rounded: __m512i, lanes: &mut [[u16; 2]; LANES]) {
    // SAFETY: 64 bytes are written.
    unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), rounded) }
}
