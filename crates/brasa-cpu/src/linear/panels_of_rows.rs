//! Rows of a weight in f32, as the second factor of a product is packed: panels of L neighbouring columns, row by row.
//!
//! The products are those with the other side of a weight, `x = y · W`. Packed strips hold 16 rows column by column, so squares of 16
//! rows and 16 columns are turned.

use std::ops::Range;

use super::blocks::PackedBlock;
use super::float_layout::FloatLayout;
use super::formats::Float;
use super::layout::{BLOCK, LANES, Layout, WIDE_BLOCK_BYTES};
use super::planes;
use super::scales::BlockScales;
use crate::Isa;
use crate::matrix::PanelRows;
use crate::simd::{Kernel, Simd, vectorize};

/// A square of a weight: 16 columns, each of 16 rows; or turned.
type Square = [[f32; LANES]; LANES];

/// Writes some of the rows `lanes` of a packed strip of floats, which are rows `at` and following of the panels.
pub(super) fn fill_from_floats<const L: usize>(
    isa: Isa,
    (layout, strip): (&FloatLayout, &[u8]),
    (lanes, columns): (&Range<usize>, &Range<usize>),
    at: usize,
    to: &mut PanelRows<'_, L>,
) {
    vectorize(isa, OfFloats { layout, strip, lanes, columns, at, to });
}

/// Like [`fill_from_floats`], of codes. Columns begin with a block.
pub(super) fn fill_from_codes<const L: usize>(
    (layout, strip): (&Layout, &[u8]),
    (lanes, columns): (&Range<usize>, &Range<usize>),
    at: usize,
    to: &mut PanelRows<'_, L>,
) {
    let halves = layout.shape.scales_per_block();
    let offset = if layout.shape.has_min() { 0 } else { i32::from(layout.codes.offset()) };
    let (mut unpacked, mut wide) = (BlockScales::ZERO, [0; WIDE_BLOCK_BYTES]);
    for block in columns.start / BLOCK..columns.end.div_ceil(BLOCK) {
        let packed = PackedBlock::of_strip(layout, strip, block);
        packed.portable_scales(layout, &mut unpacked);
        planes::unpack(layout.codes, packed.planes, &mut wide);
        let first = block * BLOCK - columns.start;
        for lane in lanes.clone() {
            let mut row = [0.0; BLOCK];
            for (group, out) in row.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let half = group * 4 * halves / BLOCK;
                let (scale, min) = (unpacked.scale[half][lane], unpacked.min[half][lane]);
                let codes = &wide[(group * LANES + lane) * 4..][..4];
                for (out, &code) in out.iter_mut().zip(codes) {
                    *out = scale * (i32::from(code) - offset) as f32;
                    if layout.shape.has_min() {
                        *out += min;
                    }
                }
            }
            let row = &row[..BLOCK.min(columns.end - columns.start - first)];
            to.put(at + lane - lanes.start, first, row);
        }
    }
}

struct OfFloats<'a, 'p, const L: usize> {
    layout: &'a FloatLayout,
    strip: &'a [u8],
    lanes: &'a Range<usize>,
    columns: &'a Range<usize>,
    at: usize,
    to: &'a mut PanelRows<'p, L>,
}

impl<const L: usize> Kernel for OfFloats<'_, '_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { layout, strip, lanes, columns, at, to } = self;
        let (mut square, mut turned) = ([[0.0; LANES]; LANES], [[0.0; LANES]; LANES]);
        for first in columns.clone().step_by(LANES) {
            let some = first..columns.end.min(first + LANES);
            read_columns(simd, layout, strip, some.clone(), &mut square);
            simd.transpose(&square.each_ref(), &mut turned);
            for (row, turned) in (at..).zip(&turned[lanes.clone()]) {
                to.put(row, first - columns.start, &turned[..some.len()]);
            }
        }
    }
}

/// Reads up to 16 columns of a strip.
#[inline(always)]
fn read_columns<S: Simd>(
    simd: S,
    layout: &FloatLayout,
    strip: &[u8],
    columns: Range<usize>,
    square: &mut Square,
) {
    let stored = |column: usize, bytes: usize| &strip[column * LANES * bytes..][..LANES * bytes];
    match layout.float {
        Float::F32 => {
            for (column, to) in columns.zip(square) {
                for (to, stored) in to.iter_mut().zip(stored(column, 4).as_chunks::<4>().0) {
                    *to = f32::from_le_bytes(*stored);
                }
            }
        }
        Float::F16 => {
            for (column, to) in columns.zip(square) {
                let bits: &[[u16; LANES]] = bytemuck::cast_slice(stored(column, 2));
                simd.store(simd.load_f16(&bits[0]), to);
            }
        }
        // Lines of pairs: the first of a pair is the lower half of a word.
        Float::BF16 => {
            for (column, to) in columns.zip(square) {
                let line = stored(column / 2, 4).as_chunks::<4>().0;
                for (to, stored) in to.iter_mut().zip(line) {
                    let pair = u32::from_le_bytes(*stored);
                    *to = f32::from_bits(if column % 2 == 0 { pair << 16 } else { pair & 0xffff_0000 });
                }
            }
        }
    }
}
