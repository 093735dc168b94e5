//! Tiles: 16 rows of activations times the 16 outputs of a panel, block by block.
//!
//! A product of tiles gives the exact sums of a block, or of its halves; AVX-512 scales and adds them as everywhere. That
//! is three instructions per row and block at least, 24 cycles of two pipes for 16 rows, against eight `vpdpbusd` before
//! them without tiles. From the load of a tile to sums that a vector can read it is over a hundred cycles, so up to four
//! products are in the making while the sums of an earlier one are scaled.
//!
//! A block of the result is [`GROUPS`] times 16 rows by [`PANELS`] times 16 outputs. Its sums stay in the first cache, and
//! so do [`SLICE_BLOCKS`] blocks of its operands, 18 and 9 KiB, while every group meets every panel: the second cache
//! has to give 432 bytes for a product, where whole rows times one panel took 1.3 KiB.
//!
//! Codes of formats with an offset are centred as a panel is filled, so that sums need no correction.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::layout::{BLOCK, Codes as Stored, LANES, Layout, Shape};
use super::super::rows::parts;
use super::Panel;
use super::panel::PanelLanes;
use crate::isa::Avx512;
use crate::quantize::QuantizedRow;
use crate::tiles::{AmxInt8, Codes, EmulatedInt8, ROWS, SLOTS, Sums, TileUnit, Tiles};

/// Groups of 16 rows of a block of the result.
pub(in super::super) const GROUPS: usize = 4;
/// Panels of a block of the result.
pub(in super::super) const PANELS: usize = 2;
/// Blocks of inputs that go by together.
const SLICE_BLOCKS: usize = 8;

/// Results by panel and group: row of activations by output.
pub(in super::super) type Results = [[Sums<f32>; GROUPS]; PANELS];

/// Some blocks of rows of activations in groups of 16, in the order of tiles; what is missing of the last group is
/// zero. Scratch memory of one thread, reused from pass to pass.
#[derive(Default)]
pub(in super::super) struct RowTiles {
    blocks: usize,
    /// By group and block.
    codes: Vec<CodeTile>,
    /// As `codes`: a scale for each row.
    scales: Vec<RowLanes>,
    /// As `codes`, as many as a block has minima: what they are multiplied with.
    sums: Vec<RowLanes>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CodeTile(Codes);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct RowLanes([f32; ROWS]);

impl RowTiles {
    /// Takes `blocks` of `rows` rows, for weights of this shape.
    pub(in super::super) fn gather<'a>(
        &mut self,
        shape: Shape,
        rows: usize,
        blocks: &Range<usize>,
        row: impl Fn(usize) -> QuantizedRow<'a>,
    ) {
        self.blocks = blocks.len();
        let tiles = rows.div_ceil(ROWS) * self.blocks;
        let minima = minima_per_block(shape);
        self.codes.resize(tiles, CodeTile([[0; BLOCK]; ROWS]));
        self.scales.resize(tiles, RowLanes([0.0; ROWS]));
        self.sums.resize(tiles * minima, RowLanes([0.0; ROWS]));
        for group in 0..rows.div_ceil(ROWS) {
            let tiles = group * self.blocks..(group + 1) * self.blocks;
            let codes = &mut self.codes[tiles.clone()];
            let scales = &mut self.scales[tiles.clone()];
            let sums = &mut self.sums[tiles.start * minima..tiles.end * minima];
            for lane in 0..ROWS {
                let index = group * ROWS + lane;
                if index >= rows {
                    for codes in &mut *codes {
                        codes.0[lane] = [0; BLOCK];
                    }
                    for lanes in scales.iter_mut().chain(&mut *sums) {
                        lanes.0[lane] = 0.0;
                    }
                    continue;
                }
                let x = row(index);
                let metas = &x.blocks[blocks.clone()];
                for (codes, x) in codes.iter_mut().zip(&x.codes.as_chunks::<BLOCK>().0[blocks.clone()]) {
                    codes.0[lane] = *x;
                }
                for (scales, meta) in scales.iter_mut().zip(metas) {
                    scales.0[lane] = meta.scale;
                }
                match minima {
                    0 => {}
                    1 => {
                        for (sums, meta) in sums.iter_mut().zip(metas) {
                            sums.0[lane] = meta.scaled_sum;
                        }
                    }
                    _ => {
                        for (sums, meta) in sums.as_chunks_mut::<2>().0.iter_mut().zip(metas) {
                            for (sums, half_sum) in sums.iter_mut().zip(meta.half_sums) {
                                sums.0[lane] = meta.scale * f32::from(half_sum);
                            }
                        }
                    }
                }
            }
        }
    }
}

const fn minima_per_block(shape: Shape) -> usize {
    if shape.has_min() { shape.scales_per_block() } else { 0 }
}

/// What multiplies panels of one layout with rows in tiles, on this thread.
pub(in super::super) struct TileProducts {
    proof: Avx512,
    unit: Unit,
    layout: Layout,
    dots: Dots,
}

enum Unit {
    Amx(AmxInt8),
    Emulated(EmulatedInt8),
}

/// Products under way.
type Dots = [Sums<i32>; SLOTS];

impl TileProducts {
    /// Sets the thread's tiles up.
    pub(in super::super) fn new(proof: Avx512, tiles: Tiles, layout: &Layout) -> Self {
        let parts = layout.shape.scales_per_block();
        let unit = match tiles {
            Tiles::Amx(amx) => Unit::Amx(amx.int8(parts)),
            Tiles::Emulated => Unit::Emulated(EmulatedInt8 { parts }),
        };
        Self { proof, unit, layout: *layout, dots: [Sums([[0; LANES]; ROWS]); SLOTS] }
    }

    /// Adds to the results the products of all blocks of `panels`, at most [`PANELS`], with the rows of `groups`, at most
    /// [`GROUPS`], of `rows`, which must have the same blocks.
    pub(in super::super) fn multiply(
        &mut self,
        panels: &[Panel],
        rows: &RowTiles,
        groups: &Range<usize>,
        results: &mut Results,
    ) {
        assert!(
            panels.len() <= PANELS && groups.len() <= GROUPS,
            "{} panels, groups {groups:?}",
            panels.len()
        );
        for panel in panels {
            panel.check(&self.layout);
            assert_eq!(panel.codes.len(), rows.blocks, "blocks of a panel and of rows");
            assert_eq!(panel.offset, panel_offset(&self.layout), "what a panel's codes are centred by");
        }
        assert!(groups.end * rows.blocks <= rows.codes.len(), "groups {groups:?} of rows");
        assert_eq!(
            rows.sums.len(),
            rows.codes.len() * minima_per_block(self.layout.shape),
            "sums of rows for minima"
        );
        for blocks in parts(rows.blocks, SLICE_BLOCKS) {
            for (panel, results) in panels.iter().zip(&mut *results) {
                let step = Step { panel, rows, groups: groups.clone(), blocks: blocks.clone() };
                let (layout, dots) = (&self.layout, &mut self.dots);
                match &self.unit {
                    Unit::Amx(unit) => step.multiply(self.proof, unit, layout, dots, results),
                    Unit::Emulated(unit) => step.multiply(self.proof, unit, layout, dots, results),
                }
            }
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

/// Some blocks of a panel times some groups of rows; both have what is named here, and as many scales and minima as
/// their layout says.
struct Step<'a> {
    panel: &'a Panel,
    rows: &'a RowTiles,
    groups: Range<usize>,
    blocks: Range<usize>,
}

impl Step<'_> {
    fn multiply<U: TileUnit>(
        self,
        _: Avx512,
        unit: &U,
        layout: &Layout,
        dots: &mut Dots,
        results: &mut [Sums<f32>; GROUPS],
    ) {
        // SAFETY: the proof; the caller has checked what the step says of itself, and its shape is the layout's.
        unsafe {
            match (layout.shape, layout.codes) {
                (Shape::Whole, _) => kernel::<U, 1, false, false>(unit, &self, dots, results),
                (Shape::WholeMin, Stored::Bits8) => kernel::<U, 1, true, true>(unit, &self, dots, results),
                (Shape::WholeMin, _) => kernel::<U, 1, true, false>(unit, &self, dots, results),
                (Shape::Halves, _) => kernel::<U, 2, false, false>(unit, &self, dots, results),
                (Shape::HalvesMin, _) => kernel::<U, 2, true, false>(unit, &self, dots, results),
            }
        }
    }
}

/// The products of a step in their order, PARTS a block, begun one after the other.
struct Begun<'a, U> {
    unit: &'a U,
    step: &'a Step<'a>,
    /// Group and block of the next one.
    group: usize,
    block: usize,
    /// Those begun so far.
    count: usize,
}

impl<U: TileUnit> Begun<'_, U> {
    /// Begins those of the next block, where there is one.
    #[inline(always)]
    fn next<const PARTS: usize, const UNSIGNED: bool>(&mut self, dots: &mut Dots) {
        let Step { panel, rows, groups, blocks } = self.step;
        if self.group == groups.end {
            return;
        }
        let (a, b) = (&rows.codes[self.group * rows.blocks + self.block], &panel.codes[self.block]);
        for part in 0..PARTS {
            let slot = self.count % SLOTS;
            self.unit.dot::<UNSIGNED>(slot, part, &a.0, &b.0, &mut dots[slot]);
            self.count += 1;
        }
        self.block += 1;
        if self.block == blocks.end {
            (self.group, self.block) = (self.group + 1, blocks.start);
        }
    }
}

/// Adds the products of a step to `results`; a block has PARTS scales, and with MIN as many minima.
///
/// # Safety
///
/// The CPU has AVX-512; the step's panel and rows have its blocks and groups, with scales and minima for PARTS and MIN.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn kernel<U: TileUnit, const PARTS: usize, const MIN: bool, const UNSIGNED: bool>(
    unit: &U,
    step: &Step<'_>,
    dots: &mut Dots,
    results: &mut [Sums<f32>; GROUPS],
) {
    let Step { panel, rows, groups, blocks } = step;
    let mut begun = Begun { unit, step, group: groups.start, block: blocks.start, count: 0 };
    for _ in 1..SLOTS / PARTS {
        begun.next::<PARTS, UNSIGNED>(dots);
    }
    let mut slot = 0;
    for (group, results) in groups.clone().zip(results) {
        // SAFETY: rows of 16 floats.
        let mut acc: [__m512; ROWS] =
            std::array::from_fn(|row| unsafe { _mm512_load_ps(results.0[row].as_ptr()) });
        for block in blocks.clone() {
            begun.next::<PARTS, UNSIGNED>(dots);
            let dots: [&Sums<i32>; PARTS] = std::array::from_fn(|part| &dots[slot + part]);
            slot = (slot + PARTS) % SLOTS;
            // SAFETY: by the contract.
            unsafe {
                let lanes = |values: &[PanelLanes], part: usize| {
                    _mm512_load_ps(values.get_unchecked(PARTS * block + part).0.as_ptr())
                };
                let tile = group * rows.blocks + block;
                let row_scales = &rows.scales.get_unchecked(tile).0;
                let scales: [__m512; PARTS] = std::array::from_fn(|part| lanes(&panel.scales, part));
                each_row!(R => {
                    let dot = |part: usize| _mm512_cvtepi32_ps(_mm512_load_si512(dots[part].0[R].as_ptr().cast()));
                    let row_scale = _mm512_set1_ps(row_scales[R]);
                    acc[R] = if PARTS == 1 {
                        _mm512_fmadd_ps(dot(0), _mm512_mul_ps(scales[0], row_scale), acc[R])
                    } else {
                        let both = _mm512_fmadd_ps(dot(1), scales[1], _mm512_mul_ps(dot(0), scales[0]));
                        _mm512_fmadd_ps(both, row_scale, acc[R])
                    };
                });
                for part in 0..if MIN { PARTS } else { 0 } {
                    let min = lanes(&panel.mins, part);
                    let row_sums = &rows.sums.get_unchecked(PARTS * tile + part).0;
                    each_row!(R => acc[R] = _mm512_fmadd_ps(min, _mm512_set1_ps(row_sums[R]), acc[R]));
                }
            }
        }
        for (acc, result) in acc.iter().zip(&mut results.0) {
            // SAFETY: rows of 16 floats.
            unsafe { _mm512_store_ps(result.as_mut_ptr(), *acc) };
        }
    }
}
