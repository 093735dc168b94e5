//! Products of codes with int8 activations, written once over [`Dots`] and [`Vectors`].
//!
//! For each output, block after block of 32 inputs: the dot product of codes is an exact integer; it is then
//! scaled and added in f32. The order of these additions is that of the blocks, whatever the number of rows,
//! threads or lanes, and every instruction set does the same multiplications, so all give the same bits:
//!
//! - one scale: `acc = fma(f32(Σ(q − offset)·a), s·sa, acc)`;
//! - and a minimum: then `acc = fma(m, sa·Σa, acc)`;
//! - two scales: `t = fma(f32(dot₁), s₁, f32(dot₀)·s₀)`, `acc = fma(t, sa, acc)`, and with minima
//!   `acc = fma(m₁, sa·Σ₁a, fma(m₀, sa·Σ₀a, acc))`.
//!
//! A few rows multiply bit planes as they are unpacked; weights stream by, strictly forward. Many rows multiply **panels**:
//! a panel is stored part by part, so that the rows' sums of one part stay in registers from its first block to its last.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::needless_range_loop, reason = "sums are named by constants, else they would live in memory")]

use std::array;
use std::marker::PhantomData;

use super::super::blocks::{PackedBlock, Panel, Spans};
use super::super::formats::{Codes as Stored, Kind, Meaning, Width, with_kind, with_panel_kind};
use super::super::layout::{LANES, Lanes, Layout};
use super::super::scales::BlockScales;
use super::vectors::{Codes, Dots, Sums, Vectors, Work, correction, eight};
use crate::prefetch::PrefetchPolicy;
use crate::quantize::{BLOCK, BlockMeta, QuantizedRow};

/// Bytes from one vector of a plane to the next.
const PLANE_BYTES: usize = 64;

/// Evaluates the expression with constant `$rows` equal to `$len`, one of 1, 2, 4 and 8 and at most `$most`.
macro_rules! with_rows {
    ($len:expr, $most:expr, $rows:ident => $value:expr) => {
        with_rows!(@ $len, $most, $rows, $value, 1 2 4 8)
    };
    (@ $len:expr, $most:expr, $rows:ident, $value:expr, $($count:literal)*) => {
        match $len {
            $($count if const { $count <= $most } => {
                const $rows: usize = $count;
                $value
            })*
            len => unreachable!("a kernel call of {len} rows"),
        }
    };
}

/// Writes the products of consecutive packed strips with `x.len()` rows, 1, 2, 4 or 8: for each strip those of all rows.
///
/// Lengths were checked: strips are whole, every row has the blocks of `layout`, and `out` has all rows for each strip.
pub(super) fn multiply_strips<D: Dots>(
    dots: D,
    layout: &Layout,
    strips: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let few = |strips: &[u8], x: &[QuantizedRow<'_>], out: &mut [Lanes]| {
        with_kind!(layout, K => with_rows!(x.len(), D::PLANE_ROWS, R => {
            dots.run(OfPlanes::<K, R> { layout, strips, x, out, kind: PhantomData });
        }));
    };
    if x.len() <= D::PLANE_ROWS {
        return few(strips, x, out);
    }
    for (strip, out) in strips.chunks_exact(layout.strip_bytes()).zip(out.chunks_exact_mut(x.len())) {
        for (x, out) in x.chunks(D::PLANE_ROWS).zip(out.chunks_mut(D::PLANE_ROWS)) {
            few(strip, x, out);
        }
    }
}

/// Adds to `out` the products of the blocks of a panel with `x.len()` rows, 1, 2, 4 or 8. Overwrites `out` if the panel is the first.
///
/// Lengths were checked: the panel fits `layout`, every row has the blocks of `layout`, and `out` has all rows.
pub(super) fn multiply_panel<D: Dots>(
    dots: D,
    layout: &Layout,
    panel: &Panel,
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let correction = correction(layout.codes.offset(), layout.shape.has_min(), panel.centred);
    for (x, out) in x.chunks(D::PANEL_ROWS).zip(out.chunks_mut(D::PANEL_ROWS)) {
        with_panel_kind!(layout, M => with_rows!(x.len(), D::PANEL_ROWS, R => {
            dots.run(OfPanels::<M, R> { panel, correction, x, out, meaning: PhantomData });
        }));
    }
}

/// Unpacks what `panel` has room for of `strip`, a strip of `layout`: for [`multiply_panel`], or for tiles.
pub(super) fn fill_panel<D: Dots, const FOR_TILES: bool>(
    dots: D,
    layout: &Layout,
    strip: &[u8],
    panel: &mut Panel,
) {
    with_kind!(layout, K => dots.run(Filling::<K, FOR_TILES> { layout, strip, panel, kind: PhantomData }));
}

/// True if panels of `layout` are centred for D.
pub(super) fn centres_panels<D: Dots>(_: D, layout: &Layout) -> bool {
    with_panel_kind!(layout, M => const { D::CENTRING }.of_panels::<M>())
}

/// Products of strips with R rows.
struct OfPlanes<'a, 'x, K, const R: usize> {
    layout: &'a Layout,
    strips: &'a [u8],
    x: &'a [QuantizedRow<'x>],
    out: &'a mut [Lanes],
    kind: PhantomData<K>,
}

impl<K: Kind, const R: usize> Work for OfPlanes<'_, '_, K, R> {
    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        let Self { strips, x, out, .. } = self;
        let (layout, v) = (&self.layout.known::<K>(), dots.vectors());
        let centred = const { D::CENTRING.of_planes::<K>() };
        let correction =
            const { correction(K::CODES.offset(), K::SHAPE.has_min(), D::CENTRING.of_planes::<K>()) };
        let policy = PrefetchPolicy::for_rows(if D::V::PARTS == 1 { R } else { 1 });
        let distances = policy.distances();
        let mut unpacked = BlockScales::ZERO;
        for (strip, out) in strips.chunks_exact(layout.strip_bytes()).zip(out.chunks_exact_mut(R)) {
            let mut acc = [v.zero_parts(); R];
            if const { D::V::PARTS == 1 && R > 1 } {
                for block in 0..layout.blocks {
                    let packed = PackedBlock::of_strip(layout, strip, block);
                    distances.prefetch(packed.planes.as_ptr(), packed.planes.len());
                    packed.scales::<K>(v, layout.scales, &mut unpacked);
                    // SAFETY: the block is of kind K, its scales are unpacked; rows have the block.
                    unsafe { add_block::<D, K, R>(dots, &packed, &unpacked, x, block, correction, &mut acc) };
                }
            } else {
                for span in Spans::new(layout, strip, 0..layout.blocks, policy) {
                    for (block, packed) in span {
                        if const { D::TWO_PARTS_OF_A_ROW && R == 1 } {
                            // SAFETY: the block is of kind K, its scales are unpacked; the row has the block.
                            unsafe {
                                let x = x.get_unchecked(0);
                                let meta = x.blocks.get_unchecked(block);
                                let start = corrections::<K>(meta, correction);
                                let codes = x.codes.as_ptr().add(BLOCK * block);
                                let sums =
                                    dots.dots_of_parts::<K>(start, packed.planes.as_ptr(), codes, centred);
                                // Unpacked as late as they are needed: there are few registers.
                                packed.scales::<K>(v, layout.scales, &mut unpacked);
                                for part in 0..2 {
                                    let lane = D::V::OUTPUTS * part;
                                    let scale = unpacked.scale.as_ptr().cast::<f32>().add(lane);
                                    let min = unpacked.min.as_ptr().cast::<f32>().add(lane);
                                    acc[0][part] =
                                        add_scaled::<D, K>(dots, acc[0][part], sums[part], scale, min, meta);
                                }
                            }
                            continue;
                        }
                        packed.scales::<K>(v, layout.scales, &mut unpacked);
                        // SAFETY: the block is of kind K, its scales are unpacked; rows have the block.
                        unsafe {
                            add_block::<D, K, R>(dots, &packed, &unpacked, x, block, correction, &mut acc);
                        }
                    }
                }
            }
            for (acc, out) in acc.iter().zip(out) {
                for part in 0..D::V::PARTS {
                    // SAFETY: `out` is the lanes of all parts.
                    unsafe { v.store(acc[part], out.as_mut_ptr().add(D::V::OUTPUTS * part)) };
                }
            }
        }
    }
}

/// Adds the products of a block with R rows to the sums of all parts.
///
/// # Safety
///
/// The block is of kind K, number `block` of its strip, and `unpacked` has its scales; `x` has R rows of all blocks.
#[inline(always)]
unsafe fn add_block<D: Dots, K: Kind, const R: usize>(
    dots: D,
    packed: &PackedBlock<'_>,
    unpacked: &BlockScales,
    x: &[QuantizedRow<'_>],
    block: usize,
    correction: i32,
    acc: &mut [<D::V as Vectors>::Parts; R],
) {
    for part in 0..D::V::PARTS {
        // SAFETY: by the contract; a part of the planes and of the scales.
        unsafe {
            let planes = packed.planes.as_ptr().add(D::V::BYTES * part);
            let weights = unpack::<D, K>(dots, planes, const { D::CENTRING.of_planes::<K>() });
            let lane = D::V::OUTPUTS * part;
            let scale = unpacked.scale.as_ptr().cast::<f32>().add(lane);
            let min = unpacked.min.as_ptr().cast::<f32>().add(lane);
            for row in 0..R {
                let x = x.get_unchecked(row);
                let meta = x.blocks.get_unchecked(block);
                let start = corrections::<K>(meta, correction);
                let sums = dots.dots::<K, R>(start, &weights, x.codes.as_ptr().add(BLOCK * block));
                acc[row][part] = add_scaled::<D, K>(dots, acc[row][part], sums, scale, min, meta);
            }
        }
    }
}

/// Products of a panel with R rows.
struct OfPanels<'a, 'x, M, const R: usize> {
    panel: &'a Panel,
    correction: i32,
    x: &'a [QuantizedRow<'x>],
    out: &'a mut [Lanes],
    meaning: PhantomData<M>,
}

impl<M: Meaning, const R: usize> Work for OfPanels<'_, '_, M, R> {
    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        let Self { panel, x, out, .. } = self;
        let v = dots.vectors();
        // Codes mean what they are if they are centred and there is no minimum, or neither.
        let correction =
            if const { D::CENTRING.of_panels::<M>() != M::SHAPE.has_min() } { 0 } else { self.correction };
        let scales_bytes = M::SHAPE.scales_per_block() * LANES;
        for part in 0..D::V::PARTS {
            let lane = D::V::OUTPUTS * part;
            let mut acc = [v.splat(0.0); R];
            if panel.first > 0 {
                for (acc, out) in acc.iter_mut().zip(&*out) {
                    // SAFETY: a row of results is the lanes of all parts.
                    *acc = unsafe { v.load(out.as_ptr().add(lane)) };
                }
            }
            for (at, codes) in panel.codes.iter().enumerate() {
                let block = panel.first + at;
                // SAFETY: a panel's block is eight vectors for each part; its scales and minima are as many as the shape says;
                // rows have the block.
                unsafe {
                    let codes = codes.0.as_ptr().add(8 * D::V::BYTES * part);
                    let scale = panel.scales.as_ptr().cast::<f32>().add(at * scales_bytes + lane);
                    let min = panel.mins.as_ptr().cast::<f32>().wrapping_add(at * scales_bytes + lane);
                    if const { D::BYTES_BY_GROUPS && matches!(M::WIDTH, Width::Eight) && R > 1 } {
                        let metas: [&BlockMeta; R] =
                            array::from_fn(|row| x.get_unchecked(row).blocks.get_unchecked(block));
                        let starts = metas.map(|meta| corrections::<M>(meta, correction));
                        let activations =
                            array::from_fn(|row| x.get_unchecked(row).codes.as_ptr().add(BLOCK * block));
                        let sums = dots.panel_dots_of_rows::<M, R>(starts, codes, activations);
                        for row in 0..R {
                            acc[row] = add_scaled::<D, M>(dots, acc[row], sums[row], scale, min, metas[row]);
                        }
                        continue;
                    }
                    let weights = eight!(G => v.load_codes(codes.add(D::V::BYTES * G)));
                    if const { D::PAIRS && R > 1 } {
                        for pair in 0..R / 2 {
                            let (first, second) = (x.get_unchecked(2 * pair), x.get_unchecked(2 * pair + 1));
                            let metas =
                                [first.blocks.get_unchecked(block), second.blocks.get_unchecked(block)];
                            let starts = [
                                corrections::<M>(metas[0], correction),
                                corrections::<M>(metas[1], correction),
                            ];
                            let codes = [
                                first.codes.as_ptr().add(BLOCK * block),
                                second.codes.as_ptr().add(BLOCK * block),
                            ];
                            let [first, second] = dots.panel_dots_of_pair::<M>(starts, &weights, codes);
                            let sums = &mut acc[2 * pair..];
                            sums[0] = add_scaled::<D, M>(dots, sums[0], first, scale, min, metas[0]);
                            sums[1] = add_scaled::<D, M>(dots, sums[1], second, scale, min, metas[1]);
                        }
                    } else {
                        for row in 0..R {
                            let x = x.get_unchecked(row);
                            let meta = x.blocks.get_unchecked(block);
                            let start = corrections::<M>(meta, correction);
                            let sums =
                                dots.panel_dots::<M, R>(start, &weights, x.codes.as_ptr().add(BLOCK * block));
                            acc[row] = add_scaled::<D, M>(dots, acc[row], sums, scale, min, meta);
                        }
                    }
                }
            }
            for (acc, out) in acc.iter().zip(&mut *out) {
                // SAFETY: a row of results is the lanes of all parts.
                unsafe { v.store(*acc, out.as_mut_ptr().add(lane)) };
            }
        }
    }
}

/// Unpacking of a strip into a panel.
struct Filling<'a, K, const FOR_TILES: bool> {
    layout: &'a Layout,
    strip: &'a [u8],
    panel: &'a mut Panel,
    kind: PhantomData<K>,
}

impl<K: Kind, const FOR_TILES: bool> Work for Filling<'_, K, FOR_TILES> {
    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        let Self { strip, panel, .. } = self;
        let (layout, v) = (&self.layout.known::<K>(), dots.vectors());
        let centred = const { if FOR_TILES { !K::SHAPE.has_min() } else { D::CENTRING.of_panels::<K>() } };
        let policy = PrefetchPolicy::for_rows(if D::V::PARTS == 1 { 8 } else { 1 });
        let mut unpacked = BlockScales::ZERO;
        for span in Spans::new(layout, strip, panel.blocks(), policy) {
            for (block, packed) in span {
                let at = block - panel.first;
                packed.scales::<K>(v, layout.scales, &mut unpacked);
                panel.put_scales(K::SHAPE, at, &unpacked);
                let to = panel.codes[at].0.as_mut_ptr();
                for part in 0..D::V::PARTS {
                    // SAFETY: the block is of kind K; a panel's block is eight vectors for each part.
                    unsafe {
                        let weights =
                            unpack::<D, K>(dots, packed.planes.as_ptr().add(D::V::BYTES * part), centred);
                        for (group, codes) in dots.arrange(weights).into_iter().enumerate() {
                            v.store_codes(codes, to.add(D::V::BYTES * (8 * part + group)));
                        }
                    }
                }
            }
        }
    }
}

/// The eight vectors of a part of a block, a byte per code, centred or from zero on.
///
/// # Safety
///
/// `planes` points to a packed block of kind K, or to another part of its first vector.
#[inline(always)]
pub(in super::super) unsafe fn unpack<D: Dots, K: Kind>(
    dots: D,
    planes: *const u8,
    centred: bool,
) -> [Codes<D>; 8] {
    // SAFETY: by the contract.
    unsafe { eight!(G => group::<D::V, K, G>(dots.vectors(), planes, centred)) }
}

/// Group G of a part of a block. [`layout`](super::super::layout) says where its bits are.
///
/// # Safety
///
/// `planes` points to a packed block of kind K, or to another part of its first vector.
#[inline(always)]
pub(super) unsafe fn group<V: Vectors, K: Kind, const G: usize>(
    v: V,
    planes: *const u8,
    centred: bool,
) -> V::Codes {
    // SAFETY: by the contract.
    unsafe {
        macro_rules! nibble {
            ($first:expr) => {
                v.bits(v.load_codes(planes.add(PLANE_BYTES * ($first + G % 4))), G / 4 * 4, 0, 15)
            };
        }
        macro_rules! pair {
            ($vector:expr, $to:expr) => {
                v.bits(v.load_codes(planes.add(PLANE_BYTES * $vector)), G % 4 * 2, $to, 3)
            };
        }
        // Not a match, of which every arm would be compiled eight times for every format.
        macro_rules! stored {
            ($codes:ident) => {
                const { matches!(K::CODES, Stored::$codes) }
            };
        }
        let codes = if stored!(Bits8) {
            v.load_codes(planes.add(PLANE_BYTES * G))
        } else if stored!(Bits4) {
            nibble!(0)
        } else if const { matches!(K::CODES, Stored::Table4(_)) } {
            let tables = const { [&K::CODES.table(false), &K::CODES.table(true)] };
            return v.look_up(tables[usize::from(centred)], nibble!(0));
        } else if stored!(Bits5) {
            v.or(v.bits(v.load_codes(planes), G, 4, 1), nibble!(1))
        } else if stored!(Bits6) {
            v.or(pair!(G / 4 * 5, 4), nibble!(1))
        } else if stored!(Bits2) {
            pair!(G / 4, 0)
        } else if stored!(Bits3) {
            v.or(v.bits(v.load_codes(planes), G, 2, 1), pair!(1 + G / 4, 0))
        } else {
            unreachable!("codes without an arm: {:?}", K::CODES)
        };
        if centred { v.minus(codes, K::CODES.offset()) } else { codes }
    }
}

/// Terms that are added to the products of a block, or of each half of it.
#[inline(always)]
pub(super) fn corrections<M: Meaning>(meta: &BlockMeta, correction: i32) -> [i32; 2] {
    if const { M::SHAPE.has_halves() } {
        let [first, second] = meta.half_sums;
        [correction * i32::from(first), correction * i32::from(second)]
    } else {
        [correction * meta.sum, 0]
    }
}

/// Adds the products of a block to a part's sums of one row, in the order that this file documents.
///
/// # Safety
///
/// `scale` and `min` point to a part of the scales and minima of a block; those of a second half are [`LANES`] behind.
#[inline(always)]
pub(super) unsafe fn add_scaled<D: Dots, M: Meaning>(
    dots: D,
    acc: <D::V as Vectors>::Floats,
    [first, second]: Sums<D>,
    scale: *const f32,
    min: *const f32,
    meta: &BlockMeta,
) -> <D::V as Vectors>::Floats {
    let v = dots.vectors();
    // SAFETY: by the contract.
    unsafe {
        if const { M::SHAPE.has_halves() } {
            let both = v.mul(v.floats(first), v.load(scale));
            let both = v.mul_add(v.floats(second), v.load(scale.add(LANES)), both);
            let acc = v.mul_add(both, v.splat(meta.scale), acc);
            if const { !M::SHAPE.has_min() } {
                return acc;
            }
            let [first, second] = meta.half_sums;
            let acc = v.mul_add(v.load(min), v.splat(meta.scale * f32::from(first)), acc);
            v.mul_add(v.load(min.add(LANES)), v.splat(meta.scale * f32::from(second)), acc)
        } else {
            let factor = v.mul(v.load(scale), v.splat(meta.scale));
            let acc = v.mul_add(v.floats(first), factor, acc);
            if const { !M::SHAPE.has_min() } {
                acc
            } else {
                v.mul_add(v.load(min), v.splat(meta.scaled_sum), acc)
            }
        }
    }
}
