//! Common parts of the loops on int8 tiles: rows of activations in the order of tiles, and the scaling of a tile's sums.
//!
//! A product of tiles gives the exact sums of a block, or of its halves; AVX-512 scales and adds them as everywhere. That
//! is three instructions per row and block at least, 24 cycles of two pipes for 16 rows, against eight `vpdpbusd` before
//! them without tiles. From the load of a tile to sums that a vector can read it is over a hundred cycles, so up to four
//! products are in the making while the sums of an earlier one are scaled.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::formats::Shape;
use super::super::layout::{BLOCK, LANES, Lanes, Layout};
use crate::quantize::QuantizedRow;
use crate::tiles::{AmxInt8, Codes, EmulatedInt8, Int8MatrixUnit, ROWS, SLOTS, Sums, Tiles, Weights};

/// Some blocks of rows of activations in groups of 16, in the order of tiles. Rows missing from the last group are zero.
///
/// Scratch memory of one thread, reused from pass to pass.
#[derive(Default)]
pub(in super::super) struct RowTiles {
    /// Blocks of a row.
    pub blocks: usize,
    /// Codes by group and block.
    codes: Vec<CodeTile>,
    /// Scales of 16 rows, by group and block.
    scales: Vec<RowLanes>,
    /// Factors of minima of 16 rows, by group, block and minimum.
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
    pub fn gather<'a>(
        &mut self,
        shape: Shape,
        rows: usize,
        blocks: &Range<usize>,
        row: impl Fn(usize) -> QuantizedRow<'a>,
    ) {
        self.blocks = blocks.len();
        let tiles = rows.div_ceil(ROWS) * self.blocks;
        let minima = shape.mins_per_block();
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

    /// The codes of a block of the 16 rows of group `group`.
    #[inline(always)]
    pub fn codes_of(&self, group: usize, block: usize) -> &Codes {
        &self.codes[group * self.blocks + block].0
    }

    /// Checks what kernels rely on: the number of groups, scales and factors of minima for weights of `layout`.
    ///
    /// # Panics
    ///
    /// If they are not there.
    pub fn check(&self, layout: &Layout, groups: Range<usize>) {
        assert!(groups.end * self.blocks <= self.codes.len(), "groups {groups:?} of rows");
        let expected = (self.codes.len(), self.codes.len() * layout.shape.mins_per_block());
        assert_eq!((self.scales.len(), self.sums.len()), expected, "scales and sums of rows for minima");
    }
}

/// The matrix unit of this thread, set up for products of int8.
pub(in super::super) enum Unit {
    Amx(AmxInt8),
    Emulated(EmulatedInt8),
}

impl Unit {
    /// Sets the thread's tiles up for products of `rows` rows and weights of `layout`.
    pub fn new(tiles: Tiles, layout: &Layout, rows: usize) -> Self {
        let parts = layout.shape.scales_per_block();
        match tiles {
            Tiles::Amx(amx) => Self::Amx(amx.int8(parts, rows)),
            Tiles::Emulated => Self::Emulated(EmulatedInt8 { parts }),
        }
    }
}

impl Int8MatrixUnit for Unit {
    #[inline(always)]
    fn dot<const UNSIGNED: bool>(&self, slot: usize, part: usize, a: &Codes, b: &Weights, c: &mut Sums<i32>) {
        match self {
            Self::Amx(unit) => unit.dot::<UNSIGNED>(slot, part, a, b, c),
            Self::Emulated(unit) => unit.dot::<UNSIGNED>(slot, part, a, b, c),
        }
    }
}

/// Products under way.
pub(in super::super) type Dots = [Sums<i32>; SLOTS];

/// No products yet.
pub(in super::super) const NO_DOTS: Dots = [Sums([[0; LANES]; ROWS]); SLOTS];

/// The sums of a block, or of its halves, with their scales and minima.
///
/// Arrays have the first and the last part of the block: two halves, or twice the whole.
pub(in super::super) struct BlockSums<'a> {
    /// Parts of the block that have scales of their own.
    pub parts: usize,
    pub dots: [&'a Sums<i32>; 2],
    pub scales: [&'a Lanes; 2],
    pub mins: Option<[&'a Lanes; 2]>,
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

impl BlockSums<'_> {
    /// Scales the sums of the first N rows and adds them to `acc`. `tile` is the number of the tile of activations.
    ///
    /// # Safety
    ///
    /// The CPU has AVX-512; `rows` have this tile, with a scale, and factors for each part's minimum if there are minima.
    #[inline(always)]
    pub unsafe fn add<const N: usize>(self, rows: &RowTiles, tile: usize, acc: &mut [__m512; ROWS]) {
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
