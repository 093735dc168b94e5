//! Many rows times unpacked codes on tiles of int8: 16 rows of activations times the 16 outputs of a panel, block by block.
//!
//! A block of the result is [`GROUPS`] times 16 rows by [`PANELS`] times 16 outputs. Its sums stay in the first cache, and
//! so do [`SLICE_BLOCKS`] blocks of its operands, 18 and 9 KiB, while every group meets every panel: the second cache
//! has to give 432 bytes for a product, where whole rows times one panel took 1.3 KiB.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::blocks::{Panel, PanelLanes};
use super::super::formats::{Shape, Width};
use super::super::kernels;
use super::super::kernels::tiles::{BlockSums, Dots, NO_DOTS, RowTiles, Unit};
use super::super::layout::{LANES, Lanes, Layout};
use super::super::ranges::parts;
use super::panels::{PANEL_BLOCKS, PASS_ROWS};
use super::{Products, strip_run};
use crate::isa::Avx512;
use crate::tiles::{Int8MatrixUnit, ROWS, SLOTS, Sums, Tiles};

/// Groups of 16 rows of a block of the result.
const GROUPS: usize = 4;
/// Panels of a block of the result.
const PANELS: usize = 2;
/// Blocks of inputs that go by together.
const SLICE_BLOCKS: usize = 8;

/// Sums by panel and group: row of activations by output.
type Results = [[Sums<f32>; GROUPS]; PANELS];

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(in super::super) struct Scratch {
    panels: [Panel; PANELS],
    pub rows: RowTiles,
}

/// Writes the wanted products.
pub(in super::super) fn multiply(
    proof: Avx512,
    tiles: Tiles,
    wanted: &Products<'_>,
    layout: &Layout,
    weights: &[u8],
    scratch: &mut Scratch,
) {
    let Scratch { panels, rows: row_tiles } = scratch;
    // SAFETY: one at a time.
    let y = |row: usize, strip: usize| unsafe { wanted.results(row, strip..strip + 1) };
    let unit = Unit::new(tiles, layout, ROWS);
    let mut dots = NO_DOTS;
    for pass in parts(0..wanted.rows(), PASS_ROWS) {
        for blocks in parts(0..layout.blocks, PANEL_BLOCKS) {
            row_tiles.gather(layout.shape, pass.len(), &blocks, |row| wanted.int8_row(pass.start + row));
            for strips in parts(wanted.strips.clone(), PANELS) {
                let panels = &mut panels[..strips.len()];
                for (panel, strip) in panels.iter_mut().zip(strips.clone()) {
                    let packed = strip_run(weights, layout.strip_bytes(), &(strip..strip + 1));
                    kernels::fill_panel_for_tiles(proof, layout, packed, &blocks, panel);
                }
                for rows in parts(0..pass.len(), GROUPS * LANES) {
                    let groups = rows.start / LANES..rows.end.div_ceil(LANES);
                    let rows = pass.start + rows.start..pass.start + rows.end;
                    let mut results: Results = [[Sums([[0.0; LANES]; LANES]); GROUPS]; PANELS];
                    if blocks.start > 0 {
                        for (strip, results) in strips.clone().zip(&mut results) {
                            for (row, result) in
                                rows.clone().zip(results.iter_mut().flat_map(|sums| &mut sums.0))
                            {
                                let y = y(row, strip);
                                result[..y.len()].copy_from_slice(y);
                            }
                        }
                    }
                    add_products(proof, &unit, layout, panels, row_tiles, &groups, &mut dots, &mut results);
                    for (strip, results) in strips.clone().zip(&results) {
                        for (row, result) in rows.clone().zip(results.iter().flat_map(|sums| &sums.0)) {
                            let y = y(row, strip);
                            y.copy_from_slice(&result[..y.len()]);
                        }
                    }
                }
            }
        }
    }
}

/// Adds to the results the products of all blocks of `panels` with the rows of `groups`, which must have the same blocks.
fn add_products(
    proof: Avx512,
    unit: &Unit,
    layout: &Layout,
    panels: &[Panel],
    rows: &RowTiles,
    groups: &Range<usize>,
    dots: &mut Dots,
    results: &mut Results,
) {
    assert!(panels.len() <= PANELS && groups.len() <= GROUPS, "{} panels, groups {groups:?}", panels.len());
    for panel in panels {
        panel.check(layout);
        assert_eq!(panel.codes.len(), rows.blocks, "blocks of a panel and of rows");
        assert_eq!(panel.centred, !layout.shape.has_min(), "codes of a panel are centred");
    }
    rows.check(layout, groups.clone());
    for blocks in parts(0..rows.blocks, SLICE_BLOCKS) {
        for (panel, results) in panels.iter().zip(&mut *results) {
            let slice = Slice { panel, rows, groups: groups.clone(), blocks: blocks.clone() };
            match unit {
                Unit::Amx(unit) => slice.multiply(proof, unit, layout, dots, results),
                Unit::Emulated(unit) => slice.multiply(proof, unit, layout, dots, results),
            }
        }
    }
}

/// Some blocks of a panel times some groups of rows. Panel and rows have these blocks and groups, with the scales and minima of
/// their layout.
struct Slice<'a> {
    panel: &'a Panel,
    rows: &'a RowTiles,
    groups: Range<usize>,
    blocks: Range<usize>,
}

impl Slice<'_> {
    fn multiply<U: Int8MatrixUnit>(
        self,
        _: Avx512,
        unit: &U,
        layout: &Layout,
        dots: &mut Dots,
        results: &mut [Sums<f32>; GROUPS],
    ) {
        // SAFETY: the proof; the caller has checked the fields, and the shape is the layout's.
        unsafe {
            match (layout.shape, layout.codes.width()) {
                (Shape::Whole, _) => kernel::<U, 1, false, false>(unit, &self, dots, results),
                (Shape::Halves, _) => kernel::<U, 2, false, false>(unit, &self, dots, results),
                (Shape::WholeMin, Width::Eight) => kernel::<U, 1, true, true>(unit, &self, dots, results),
                (Shape::HalvesMin, Width::Eight) => kernel::<U, 2, true, true>(unit, &self, dots, results),
                (Shape::WholeMin, Width::UpTo5 | Width::Six) => {
                    kernel::<U, 1, true, false>(unit, &self, dots, results);
                }
                (Shape::HalvesMin, Width::UpTo5 | Width::Six) => {
                    kernel::<U, 2, true, false>(unit, &self, dots, results);
                }
            }
        }
    }
}

/// The products of a slice in their order, PARTS a block, begun one after the other.
struct Begun<'a, U> {
    unit: &'a U,
    slice: &'a Slice<'a>,
    /// Group and block of the next product.
    group: usize,
    block: usize,
    /// Products begun so far.
    count: usize,
}

impl<U: Int8MatrixUnit> Begun<'_, U> {
    /// Begins the products of the next block, if there is one.
    #[inline(always)]
    fn next<const PARTS: usize, const UNSIGNED: bool>(&mut self, dots: &mut Dots) {
        let Slice { panel, rows, groups, blocks } = self.slice;
        if self.group == groups.end {
            return;
        }
        let (a, b) = (rows.codes_of(self.group, self.block), &panel.codes[self.block]);
        for part in 0..PARTS {
            let slot = self.count % SLOTS;
            self.unit.dot::<UNSIGNED>(slot, part, a, &b.0, &mut dots[slot]);
            self.count += 1;
        }
        self.block += 1;
        if self.block == blocks.end {
            (self.group, self.block) = (self.group + 1, blocks.start);
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

/// Adds the products of a slice to `results`; a block has PARTS scales, and with MIN as many minima.
///
/// # Safety
///
/// The CPU has AVX-512; panel and rows have the slice's blocks and groups, with scales and minima for PARTS and MIN.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn kernel<U: Int8MatrixUnit, const PARTS: usize, const MIN: bool, const UNSIGNED: bool>(
    unit: &U,
    slice: &Slice<'_>,
    dots: &mut Dots,
    results: &mut [Sums<f32>; GROUPS],
) {
    let Slice { panel, rows, groups, blocks } = slice;
    let mut begun = Begun { unit, slice, group: groups.start, block: blocks.start, count: 0 };
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
