//! Tiles: 16 rows of activations times the 16 outputs of a panel, block by block.
//!
//! A product of tiles gives the exact sums of a block; AVX-512 scales and adds them as everywhere. That is three
//! instructions per row and block at least, against eight `vpdpbusd` before them without tiles. One block of sums is
//! in the making while the last one is scaled.
//!
//! Codes of formats with an offset are centred as a panel is filled, so that sums need no correction.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::layout::{BLOCK, Codes as Stored, LANES, Layout, Shape};
use super::super::scales::Lanes;
use super::Panel;
use crate::isa::Avx512;
use crate::quantize::{BlockMeta, QuantizedRow};
use crate::tiles::{Codes, EmulatedTiles, ROWS, Sums, TileUnit, Tiles};

/// Some blocks of rows of activations in groups of 16, in the order of tiles; what is missing of the last group is
/// zero. Scratch memory of one thread, reused from pass to pass.
#[derive(Default)]
pub(in super::super) struct RowTiles {
    blocks: usize,
    /// By group and block.
    codes: Vec<CodeTile>,
    /// As `codes`.
    blocks_meta: Vec<[BlockMeta; ROWS]>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CodeTile(Codes);

impl RowTiles {
    /// Takes `blocks` of `rows` rows.
    pub(in super::super) fn gather<'a>(
        &mut self,
        rows: usize,
        blocks: &Range<usize>,
        row: impl Fn(usize) -> QuantizedRow<'a>,
    ) {
        self.blocks = blocks.len();
        let tiles = rows.div_ceil(ROWS) * self.blocks;
        self.codes.resize(tiles, CodeTile([[0; BLOCK]; ROWS]));
        self.blocks_meta.resize(tiles, [BlockMeta::default(); ROWS]);
        let groups =
            self.codes.chunks_exact_mut(self.blocks).zip(self.blocks_meta.chunks_exact_mut(self.blocks));
        for (group, (codes, metas)) in groups.enumerate() {
            for lane in 0..ROWS {
                let index = group * ROWS + lane;
                if index < rows {
                    let x = row(index);
                    let x_codes = x.codes.as_chunks::<BLOCK>().0[blocks.clone()].iter();
                    let x = x_codes.zip(&x.blocks[blocks.clone()]);
                    for ((codes, meta), (x_codes, x_meta)) in codes.iter_mut().zip(&mut *metas).zip(x) {
                        codes.0[lane] = *x_codes;
                        meta[lane] = *x_meta;
                    }
                } else {
                    for (codes, meta) in codes.iter_mut().zip(&mut *metas) {
                        codes.0[lane] = [0; BLOCK];
                        meta[lane] = BlockMeta::default();
                    }
                }
            }
        }
    }
}

/// What multiplies a panel with rows in tiles, on this thread.
pub(in super::super) struct TileProducts<'a> {
    proof: Avx512,
    unit: Unit,
    rows: &'a RowTiles,
}

enum Unit {
    Amx(crate::tiles::AmxThread),
    Emulated(EmulatedTiles),
}

impl<'a> TileProducts<'a> {
    /// Sets the thread's tiles up.
    pub(in super::super) fn new(proof: Avx512, tiles: Tiles, rows: &'a RowTiles) -> Self {
        let unit = match tiles {
            Tiles::Amx(amx) => Unit::Amx(amx.int8()),
            Tiles::Emulated => Unit::Emulated(EmulatedTiles),
        };
        Self { proof, unit, rows }
    }

    /// Adds to `out` the products of the blocks of a panel with the rows of `group`, of which the panel must have the
    /// blocks.
    pub(in super::super) fn multiply(
        &self,
        layout: &Layout,
        panel: &Panel,
        group: usize,
        out: &mut [Lanes; ROWS],
    ) {
        match &self.unit {
            Unit::Amx(unit) => multiply(self.proof, unit, layout, panel, self.rows, group, out),
            Unit::Emulated(unit) => multiply(self.proof, unit, layout, panel, self.rows, group, out),
        }
    }
}

fn multiply<U: TileUnit>(
    _: Avx512,
    unit: &U,
    layout: &Layout,
    panel: &Panel,
    rows: &RowTiles,
    group: usize,
    out: &mut [Lanes; ROWS],
) {
    panel.check(layout);
    assert_eq!(panel.codes.len(), rows.blocks, "blocks of a panel and of rows");
    assert_eq!(panel.offset, panel_offset(layout), "what a panel's codes are centred by");
    let codes = &rows.codes[group * rows.blocks..][..rows.blocks];
    let metas = &rows.blocks_meta[group * rows.blocks..][..rows.blocks];
    // SAFETY: the proof; a panel has as many scales and minima as its layout says for its blocks, of which there are as
    // many as of the rows.
    unsafe {
        match (layout.shape, layout.codes) {
            (Shape::Whole, _) => whole::<U, false, false>(unit, panel, codes, metas, out),
            (Shape::WholeMin, Stored::Bits8) => whole::<U, true, true>(unit, panel, codes, metas, out),
            (Shape::WholeMin, _) => whole::<U, true, false>(unit, panel, codes, metas, out),
            (Shape::Halves, _) => halves::<U, false>(unit, panel, codes, metas, out),
            (Shape::HalvesMin, _) => halves::<U, true>(unit, panel, codes, metas, out),
        }
    }
}

/// What is subtracted from the codes of a panel for tiles.
pub(super) const fn panel_offset(layout: &Layout) -> u8 {
    if layout.shape.has_min() { 0 } else { 1 << layout.codes.offset_shift() }
}

/// Evaluates the expression for rows 0 to 15: sums are named by constants, else they would live in memory.
macro_rules! each_row {
    ($row:ident => $value:expr) => {
        each_row!(@ $row, $value, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $row:ident, $value:expr, $($number:literal)*) => {
        $({
            const $row: usize = $number;
            $value;
        })*
    };
}

/// One scale a block.
///
/// # Safety
///
/// The CPU has AVX-512 F; the panel has a scale, and with MIN a minimum, for each of its blocks, of which there are as
/// many as in `codes` and `metas`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn whole<U: TileUnit, const MIN: bool, const UNSIGNED: bool>(
    unit: &U,
    panel: &Panel,
    codes: &[CodeTile],
    metas: &[[BlockMeta; ROWS]],
    out: &mut [Lanes; ROWS],
) {
    // SAFETY: rows of 16 floats.
    let mut acc: [__m512; ROWS] = std::array::from_fn(|row| unsafe { _mm512_loadu_ps(out[row].as_ptr()) });
    let mut sums = [Sums([[0; LANES]; ROWS]); 2];
    let [even, odd] = &mut sums;
    if let (Some(codes), Some(weights)) = (codes.first(), panel.codes.first()) {
        unit.dot::<0, UNSIGNED>(&codes.0, &weights.0, even);
    }
    for (at, metas) in metas.iter().enumerate() {
        if let (Some(codes), Some(weights)) = (codes.get(at + 1), panel.codes.get(at + 1)) {
            if at % 2 == 0 {
                unit.dot::<1, UNSIGNED>(&codes.0, &weights.0, odd);
            } else {
                unit.dot::<0, UNSIGNED>(&codes.0, &weights.0, even);
            }
        }
        let sums = if at % 2 == 0 { &*even } else { &*odd };
        // SAFETY: by the contract; every array has 16 rows.
        unsafe {
            let scale = _mm512_load_ps(panel.scales.get_unchecked(at).0.as_ptr());
            let min = if MIN {
                _mm512_load_ps(panel.mins.get_unchecked(at).0.as_ptr())
            } else {
                _mm512_setzero_ps()
            };
            each_row!(R => {
                let dot = _mm512_cvtepi32_ps(_mm512_load_si512(sums.0[R].as_ptr().cast()));
                let factor = _mm512_mul_ps(scale, _mm512_set1_ps(metas[R].scale));
                acc[R] = _mm512_fmadd_ps(dot, factor, acc[R]);
                if MIN {
                    acc[R] = _mm512_fmadd_ps(min, _mm512_set1_ps(metas[R].scaled_sum), acc[R]);
                }
            });
        }
    }
    for (acc, out) in acc.iter().zip(out) {
        // SAFETY: `out` is 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *acc) };
    }
}

/// A scale for each half of a block.
///
/// # Safety
///
/// As [`whole`], with two scales and minima a block.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn halves<U: TileUnit, const MIN: bool>(
    unit: &U,
    panel: &Panel,
    codes: &[CodeTile],
    metas: &[[BlockMeta; ROWS]],
    out: &mut [Lanes; ROWS],
) {
    // SAFETY: rows of 16 floats.
    let mut acc: [__m512; ROWS] = std::array::from_fn(|row| unsafe { _mm512_loadu_ps(out[row].as_ptr()) });
    let mut sums = [[Sums([[0; LANES]; ROWS]); 2]; 2];
    let [even, odd] = &mut sums;
    if let (Some(codes), Some(weights)) = (codes.first(), panel.codes.first()) {
        unit.dot_halves::<false>(&codes.0, &weights.0, even);
    }
    for (at, metas) in metas.iter().enumerate() {
        if let (Some(codes), Some(weights)) = (codes.get(at + 1), panel.codes.get(at + 1)) {
            unit.dot_halves::<false>(&codes.0, &weights.0, if at % 2 == 0 { &mut *odd } else { &mut *even });
        }
        let [first, second] = if at % 2 == 0 { &*even } else { &*odd };
        // SAFETY: by the contract; every array has 16 rows.
        unsafe {
            let lanes = |values: &[super::panel::PanelLanes], half: usize| {
                values.get_unchecked(2 * at + half).0.as_ptr()
            };
            let scales = [_mm512_load_ps(lanes(&panel.scales, 0)), _mm512_load_ps(lanes(&panel.scales, 1))];
            let mins = if MIN {
                [_mm512_load_ps(lanes(&panel.mins, 0)), _mm512_load_ps(lanes(&panel.mins, 1))]
            } else {
                [_mm512_setzero_ps(); 2]
            };
            each_row!(R => {
                let meta = &metas[R];
                let dot = _mm512_cvtepi32_ps(_mm512_load_si512(first.0[R].as_ptr().cast()));
                let both = _mm512_mul_ps(dot, scales[0]);
                let dot = _mm512_cvtepi32_ps(_mm512_load_si512(second.0[R].as_ptr().cast()));
                let both = _mm512_fmadd_ps(dot, scales[1], both);
                acc[R] = _mm512_fmadd_ps(both, _mm512_set1_ps(meta.scale), acc[R]);
                if MIN {
                    let [first, second] = meta.half_sums.map(|sum| meta.scale * f32::from(sum));
                    acc[R] = _mm512_fmadd_ps(mins[0], _mm512_set1_ps(first), acc[R]);
                    acc[R] = _mm512_fmadd_ps(mins[1], _mm512_set1_ps(second), acc[R]);
                }
            });
        }
    }
    for (acc, out) in acc.iter().zip(out) {
        // SAFETY: `out` is 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *acc) };
    }
}
