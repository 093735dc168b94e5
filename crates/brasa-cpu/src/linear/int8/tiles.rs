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
use super::super::scales::Lanes;
use super::Panel;
use super::panel::PanelLanes;
use crate::isa::Avx512;
use crate::quantize::QuantizedRow;
use crate::tiles::{AmxInt8, Codes, EmulatedInt8, Int8MatrixUnit, ROWS, SLOTS, Sums, Tiles, Weights};

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

impl RowTiles {
    /// Blocks of a row.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The codes of the first 16 rows.
    #[inline(always)]
    pub(super) fn codes_of(&self, block: usize) -> &Codes {
        &self.codes[block].0
    }

    /// What kernels rely on: there are these groups, with scales and minima for weights of `layout`.
    pub(super) fn check(&self, layout: &Layout, groups: Range<usize>) {
        assert!(groups.end * self.blocks <= self.codes.len(), "groups {groups:?} of rows");
        let minima = self.codes.len() * minima_per_block(layout.shape);
        assert_eq!(
            (self.scales.len(), self.sums.len()),
            (self.codes.len(), minima),
            "scales and sums of rows for minima"
        );
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

/// What multiplies on this thread.
pub(super) enum Unit {
    Amx(AmxInt8),
    Emulated(EmulatedInt8),
}

impl Unit {
    /// Sets the thread's tiles up for products of `rows` rows and weights of `layout`.
    pub(super) fn new(tiles: Tiles, layout: &Layout, rows: usize) -> Self {
        let parts = layout.shape.scales_per_block();
        match tiles {
            Tiles::Amx(amx) => Self::Amx(amx.int8(parts, rows)),
            Tiles::Emulated => Self::Emulated(EmulatedInt8 { parts }),
        }
    }
}

impl Int8MatrixUnit for Unit {
    #[inline(always)]
    fn dot<const UNSIGNED: bool>(&self, slot: usize, half: usize, a: &Codes, b: &Weights, c: &mut Sums<i32>) {
        match self {
            Self::Amx(unit) => unit.dot::<UNSIGNED>(slot, half, a, b, c),
            Self::Emulated(unit) => unit.dot::<UNSIGNED>(slot, half, a, b, c),
        }
    }
}

/// Products under way.
pub(super) type Dots = [Sums<i32>; SLOTS];

impl TileProducts {
    /// Sets the thread's tiles up.
    pub(in super::super) fn new(proof: Avx512, tiles: Tiles, layout: &Layout) -> Self {
        let unit = Unit::new(tiles, layout, ROWS);
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
        rows.check(&self.layout, groups.clone());
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
    fn multiply<U: Int8MatrixUnit>(
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

impl<U: Int8MatrixUnit> Begun<'_, U> {
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

/// The sums of a block, or of its halves, and what they are scaled with: of two parts, or twice the one there is.
pub(super) struct BlockSums<'a> {
    pub parts: usize,
    pub dots: [&'a Sums<i32>; 2],
    pub scales: [&'a Lanes; 2],
    pub mins: Option<[&'a Lanes; 2]>,
}

impl BlockSums<'_> {
    /// Adds them to those of the first N rows; `tile` is the number of the tile of activations that they were made of.
    ///
    /// # Safety
    ///
    /// The CPU has AVX-512; `rows` have this tile, with a scale, and sums for each part's minimum where there are minima.
    #[inline(always)]
    pub(super) unsafe fn add<const N: usize>(self, rows: &RowTiles, tile: usize, acc: &mut [__m512; ROWS]) {
        let Self { parts, dots, scales, mins } = self;
        // SAFETY: by the contract; lanes are 16 floats, a row of sums is 16 integers.
        unsafe {
            let vector = |lanes: &Lanes| _mm512_loadu_ps(lanes.as_ptr());
            let row_scales = &rows.scales.get_unchecked(tile).0;
            let scales = scales.map(vector);
            each_row!(R => if R < N {
                let dot = |part: usize| _mm512_cvtepi32_ps(_mm512_load_si512(dots[part].0[R].as_ptr().cast()));
                let row_scale = _mm512_set1_ps(row_scales[R]);
                acc[R] = if parts == 1 {
                    _mm512_fmadd_ps(dot(0), _mm512_mul_ps(scales[0], row_scale), acc[R])
                } else {
                    let both = _mm512_fmadd_ps(dot(1), scales[1], _mm512_mul_ps(dot(0), scales[0]));
                    _mm512_fmadd_ps(both, row_scale, acc[R])
                };
            });
            let Some(mins) = mins else { return };
            for (part, min) in mins.into_iter().enumerate().take(parts) {
                let min = vector(min);
                let row_sums = &rows.sums.get_unchecked(parts * tile + part).0;
                each_row!(R => if R < N {
                    acc[R] = _mm512_fmadd_ps(min, _mm512_set1_ps(row_sums[R]), acc[R]);
                });
            }
        }
    }
}

/// The lanes of the first and the last part of a block.
///
/// # Safety
///
/// There are PARTS lanes for every block up to this one.
#[inline(always)]
unsafe fn both<const PARTS: usize>(lanes: &[PanelLanes], block: usize) -> [&Lanes; 2] {
    // SAFETY: by the contract.
    [0, PARTS - 1].map(|part| unsafe { &lanes.get_unchecked(PARTS * block + part).0 })
}

/// Adds the products of a step to `results`; a block has PARTS scales, and with MIN as many minima.
///
/// # Safety
///
/// The CPU has AVX-512; the step's panel and rows have its blocks and groups, with scales and minima for PARTS and MIN.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn kernel<U: Int8MatrixUnit, const PARTS: usize, const MIN: bool, const UNSIGNED: bool>(
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
            let sums = BlockSums {
                parts: PARTS,
                dots: [&dots[slot], &dots[slot + PARTS - 1]],
                // SAFETY: by the contract.
                scales: unsafe { both::<PARTS>(&panel.scales, block) },
                // SAFETY: by the contract.
                mins: MIN.then(|| unsafe { both::<PARTS>(&panel.mins, block) }),
            };
            slot = (slot + PARTS) % SLOTS;
            // SAFETY: by the contract.
            unsafe { sums.add::<ROWS>(rows, group * rows.blocks + block, &mut acc) };
        }
        for (acc, result) in acc.iter().zip(&mut results.0) {
            // SAFETY: rows of 16 floats.
            unsafe { _mm512_store_ps(result.as_mut_ptr(), *acc) };
        }
    }
}
