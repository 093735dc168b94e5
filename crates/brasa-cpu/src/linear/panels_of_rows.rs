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
use crate::linear::PackedLinear;
use crate::matrix::{PanelRows, Panels};
use crate::simd::{Kernel, Simd, vectorize};

/// The transpose of a weight as a factor of products: sums run over the weight's rows.
pub(crate) struct OtherSide<'a> {
    pub weight: &'a PackedLinear,
    /// Memory for a row of the weight.
    pub row: &'a mut [f32],
}

impl Panels for OtherSide<'_> {
    fn fill<const L: usize>(
        &mut self,
        isa: Isa,
        columns: &Range<usize>,
        inner: &Range<usize>,
        to: &mut PanelRows<'_, L>,
    ) {
        self.weight.fill_panels(isa, inner, columns, self.row, to);
    }
}

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

/// Fills the panels like [`fill_from_floats`], but from codes. Columns begin with a block.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use brasa_graph::WeightPart;
    use brasa_graph::device::Precision;
    use brasa_graph::testing::{Noise, formats, random_tensor};

    use crate::Team;
    use crate::linear::Packer;
    use crate::matrix::{INNER, PackedPanels};

    use super::*;

    fn check<const L: usize>(
        isa: Isa,
        weight: &PackedLinear,
        inner: &Range<usize>,
        columns: &Range<usize>,
        what: &str,
    ) {
        let mut row = vec![0.0; weight.k()];
        let panels = PackedPanels::<L>::of(isa, &mut OtherSide { weight, row: &mut row }, columns, inner);
        for (at, number) in inner.clone().enumerate() {
            weight.decode_row(number, &mut row);
            for (lane, column) in columns.clone().enumerate() {
                let (found, expected) = (panels.element(at, lane), row[column]);
                assert_eq!(
                    found.to_bits(),
                    expected.to_bits(),
                    "{what}: {number}, {column} of {inner:?} × {columns:?}"
                );
            }
            for lane in columns.len()..columns.len().next_multiple_of(L) {
                assert_eq!(panels.element(at, lane).to_bits(), 0, "{what}: padding {lane} of row {number}");
            }
        }
    }

    /// Two stacked parts, the second of which begins within a strip's number of rows.
    #[test]
    fn panels_hold_what_rows_decode_to() {
        let (mut noise, team) = (Noise::new(3), Team::new(1).unwrap());
        for format in formats() {
            let block = format.block_len();
            for k in if block == 1 { vec![3, 31, 64, 83] } else { vec![block, 3 * block] } {
                let parts: Vec<_> =
                    [21, 40].map(|n| WeightPart::whole(random_tensor(format, n, k, &mut noise))).into();
                for precision in [Precision::Fast, Precision::Reference] {
                    let weight = PackedLinear::new("w", &parts, precision, &Packer::new(&team)).unwrap();
                    for (isa, first) in Isa::available().into_iter().flat_map(|isa| [(isa, 0), (isa, 32)]) {
                        let what = format!("{} {format} {precision:?}", isa.name());
                        for inner in [0..61, 5..30, 16..17, 20..61] {
                            assert!(inner.len() <= INNER);
                            let columns = first.min(k / 32 * 32)..k;
                            check::<16>(isa, &weight, &inner, &columns, &what);
                            check::<32>(isa, &weight, &inner, &columns, &what);
                        }
                    }
                }
            }
        }
    }
}
