//! NEON: the 16 rows of a tile as four **quads**, one vector each: in a vector the 32-bit lane is the row.
//!
//! Decoding passes a tile block by block, strictly forward, and multiplies the quads of a block one after the other
//! as they are unpacked. A panel is stored quad by quad, so that eight rows' sums of one quad stay in registers from
//! its first block to its last. How codes are multiplied is the business of [`dots`]; what becomes of the products is
//! the same for all.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

mod dots;
mod unpack;

use std::arch::aarch64::*;
use std::marker::PhantomData;

use super::super::layout::{Codes, LANES, Layout, Scales, Shape};
use super::super::scales::{BlockScales, Halves, Lanes};
use super::Panel;
use super::kinds::{Kind, with_kind, with_rows};
use super::panel::Blocks;
use crate::quantize::{BlockMeta, QuantizedRow};
use dots::{Dots, Work};

/// Rows of a vector.
const QUAD: usize = 4;
/// Vectors of a tile's rows.
const QUADS: usize = LANES / QUAD;
/// Vectors of a quad's codes of a block, one for each group of four inputs.
const GROUPS: usize = 8;
/// Bytes of a vector.
const VECTOR: usize = 16;

/// What a sum of products means.
pub(super) trait Meaning {
    const SHAPE: Shape;
    /// How many `Σa` are to be added to `Σ code·a`.
    const CORRECTION: i32;
}

/// Codes as [`unpack`] leaves them: around zero where they fill a byte, else from zero on.
struct Unpacked<K>(PhantomData<K>);

impl<K: Kind> Meaning for Unpacked<K> {
    const SHAPE: Shape = K::SHAPE;
    const CORRECTION: i32 = match (K::SHAPE.has_min(), unpack::centred(K::CODES)) {
        (false, true) | (true, false) => 0,
        (false, false) => -(1 << K::CODES.offset_shift()),
        (true, true) => 1 << K::CODES.offset_shift(),
    };
}

/// Codes of a panel: what they stand for, but for whole bytes with a minimum, which are around zero.
macro_rules! panels {
    ($($name:ident $shape:ident $correction:literal;)*) => {$(
        struct $name;
        impl Meaning for $name {
            const SHAPE: Shape = Shape::$shape;
            const CORRECTION: i32 = $correction;
        }
    )*};
}

panels! {
    Whole Whole 0;
    WholeMin WholeMin 0;
    WholeMinBytes WholeMin 128;
    PanelHalves Halves 0;
    PanelHalvesMin HalvesMin 0;
}

pub(super) fn multiply_tile<D: Dots>(
    dots: D,
    layout: &Layout,
    tile: &[u8],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    for (x, out) in x.chunks(4).zip(out.chunks_mut(4)) {
        with_kind!(layout, K => with_rows!(x.len(), R => {
            let work = TileWork::<K, R> { layout, tile, x, out, kind: PhantomData };
            // SAFETY: the proof; `super::multiply_tiles` checked all lengths.
            unsafe { dots.run(work) }
        }, 1 2 4));
    }
}

pub(super) fn multiply_panel<D: Dots>(
    dots: D,
    layout: &Layout,
    panel: &Panel,
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    if panel.first == 0 {
        out.fill([0.0; LANES]);
    }
    macro_rules! run {
        ($meaning:ident) => {
            with_rows!(x.len(), R => {
                let work = PanelWork::<$meaning, R> { panel, x, out, meaning: PhantomData };
                // SAFETY: the proof; `super::multiply_panel` checked all lengths.
                unsafe { dots.run(work) }
            }, 1 2 4 8)
        };
    }
    match (layout.shape, layout.codes) {
        (Shape::Whole, _) => run!(Whole),
        (Shape::WholeMin, Codes::Bits8) => run!(WholeMinBytes),
        (Shape::WholeMin, _) => run!(WholeMin),
        (Shape::Halves, _) => run!(PanelHalves),
        (Shape::HalvesMin, _) => run!(PanelHalvesMin),
    }
}

pub(super) fn fill_panel<D: Dots>(dots: D, layout: &Layout, tile: &[u8], panel: &mut Panel) {
    with_kind!(layout, K => {
        let work = FillWork::<K> { layout, tile, panel, kind: PhantomData };
        // SAFETY: the proof; `super::fill_panel` checked the tile and made room.
        unsafe { dots.run(work) }
    });
}

/// Products of `tile`, a tile of `layout`, with R rows.
struct TileWork<'a, 'x, K, const R: usize> {
    layout: &'a Layout,
    tile: &'a [u8],
    x: &'a [QuantizedRow<'x>],
    out: &'a mut [Lanes],
    kind: PhantomData<K>,
}

impl<K: Kind, const R: usize> Work for TileWork<'_, '_, K, R> {
    /// # Safety
    ///
    /// `x` and `out` have R rows, every row of `x` the blocks of `layout`, which is of kind K.
    #[inline(always)]
    unsafe fn run<D: Dots>(self) {
        let Self { layout, tile, x, out, .. } = self;
        // SAFETY: NEON is part of every instruction set of `Dots`.
        let mut acc = [[unsafe { vdupq_n_f32(0.0) }; QUADS]; R];
        let layout = &K::layout(layout);
        let mut unpacked = BlockScales::ZERO;
        for (block, packed) in Blocks::new(layout, tile, 0..layout.blocks) {
            packed.scales::<Widen>(layout.scales, &mut unpacked);
            for quad in 0..QUADS {
                // SAFETY: the block is of kind K, `unpacked` are its scales; rows have the block.
                unsafe {
                    let weights = unpack::quad::<K>(packed.planes.as_ptr().add(VECTOR * quad));
                    let scale = unpacked.scale.as_ptr().cast::<f32>().add(QUAD * quad);
                    let min = unpacked.min.as_ptr().cast::<f32>().add(QUAD * quad);
                    for row in 0..R {
                        let x = x.get_unchecked(row);
                        let meta = x.blocks.get_unchecked(block);
                        let start = corrections::<Unpacked<K>>(meta);
                        let dots = D::one_row::<Unpacked<K>>(start, &weights, activations(x, block));
                        let acc = &mut acc[row][quad];
                        *acc = add_scaled::<Unpacked<K>>(*acc, dots, scale, min, meta);
                    }
                }
            }
        }
        for (acc, out) in acc.iter().zip(out) {
            for (quad, acc) in acc.iter().enumerate() {
                // SAFETY: `out` is 16 floats.
                unsafe { vst1q_f32(out.as_mut_ptr().add(QUAD * quad), *acc) };
            }
        }
    }
}

/// Adds the products of a panel with R rows.
struct PanelWork<'a, 'x, M, const R: usize> {
    panel: &'a Panel,
    x: &'a [QuantizedRow<'x>],
    out: &'a mut [Lanes],
    meaning: PhantomData<M>,
}

impl<M: Meaning, const R: usize> Work for PanelWork<'_, '_, M, R> {
    /// # Safety
    ///
    /// `x` and `out` have R rows, every row of `x` the blocks of `panel`, which was filled for D and means M.
    #[inline(always)]
    unsafe fn run<D: Dots>(self) {
        let Self { panel, x, out, .. } = self;
        let per_block = M::SHAPE.scales_per_block();
        for quad in 0..QUADS {
            // SAFETY: a row of results is 16 floats; a panel's block is four times eight vectors, its scales and
            // minima are as many as the shape says; rows have the block.
            unsafe {
                let mut acc: [float32x4_t; R] =
                    std::array::from_fn(|row| vld1q_f32(out.get_unchecked(row).as_ptr().add(QUAD * quad)));
                for (at, codes) in panel.codes.iter().enumerate() {
                    let codes = codes.0.as_ptr().add(GROUPS * VECTOR * quad).cast::<i8>();
                    let weights = std::array::from_fn(|group| vld1q_s8(codes.add(VECTOR * group)));
                    let lane = at * per_block * LANES + QUAD * quad;
                    let scale = panel.scales.as_ptr().cast::<f32>().add(lane);
                    let min = panel.mins.as_ptr().cast::<f32>().wrapping_add(lane);
                    let block = panel.first + at;
                    if R == 1 {
                        let x = x.get_unchecked(0);
                        let dots = D::one_row_of_panel::<M>(&weights, activations(x, block));
                        let meta = x.blocks.get_unchecked(block);
                        acc[0] = add_scaled::<M>(acc[0], corrected::<M>(dots, meta), scale, min, meta);
                    }
                    for pair in 0..R / 2 {
                        let [x0, x1] = [x.get_unchecked(2 * pair), x.get_unchecked(2 * pair + 1)];
                        let both = [activations(x0, block), activations(x1, block)];
                        let dots = D::two_rows_of_panel::<M>(&weights, both);
                        for (row, x) in [x0, x1].into_iter().enumerate() {
                            let meta = x.blocks.get_unchecked(block);
                            let acc = &mut acc[2 * pair + row];
                            let dots = corrected::<M>(dots[row], meta);
                            *acc = add_scaled::<M>(*acc, dots, scale, min, meta);
                        }
                    }
                }
                for (acc, out) in acc.iter().zip(&mut *out) {
                    vst1q_f32(out.as_mut_ptr().add(QUAD * quad), *acc);
                }
            }
        }
    }
}

/// Unpacks what `panel` has room for of `tile`, a tile of `layout`.
struct FillWork<'a, K> {
    layout: &'a Layout,
    tile: &'a [u8],
    panel: &'a mut Panel,
    kind: PhantomData<K>,
}

impl<K: Kind> Work for FillWork<'_, K> {
    /// # Safety
    ///
    /// `layout` is of kind K.
    #[inline(always)]
    unsafe fn run<D: Dots>(self) {
        let Self { layout, tile, panel, .. } = self;
        let layout = &K::layout(layout);
        let mut unpacked = BlockScales::ZERO;
        for (block, packed) in Blocks::new(layout, tile, panel.blocks()) {
            let at = block - panel.first;
            packed.scales::<Widen>(layout.scales, &mut unpacked);
            panel.put_scales(K::SHAPE, at, &unpacked);
            let out = panel.codes[at].0.as_mut_ptr().cast::<i8>();
            // SAFETY: `packed` is a block of kind K, `out` is four times eight vectors.
            unsafe {
                for quad in 0..QUADS {
                    let mut weights = unpack::quad::<K>(packed.planes.as_ptr().add(VECTOR * quad));
                    if !K::SHAPE.has_min() && !unpack::centred(K::CODES) {
                        let offset = vdupq_n_s8(1 << K::CODES.offset_shift());
                        weights = weights.map(|codes| vsubq_s8(codes, offset));
                    }
                    for (group, codes) in D::arrange(weights).into_iter().enumerate() {
                        vst1q_s8(out.add(VECTOR * (GROUPS * quad + group)), codes);
                    }
                }
            }
        }
    }
}

/// The 32 codes of block `block` of a row.
///
/// # Safety
///
/// The row has the block.
#[inline(always)]
unsafe fn activations(x: &QuantizedRow<'_>, block: usize) -> [int8x16_t; 2] {
    // SAFETY: by the contract; NEON is part of every instruction set of `Dots`.
    unsafe {
        let codes = x.codes.as_ptr().add(2 * VECTOR * block);
        [vld1q_s8(codes), vld1q_s8(codes.add(VECTOR))]
    }
}

/// What is to be added to the products of a block, or of each half of it where these have their own scales.
#[inline(always)]
fn corrections<M: Meaning>(meta: &BlockMeta) -> [int32x4_t; 2] {
    let sums = match M::SHAPE {
        Shape::Whole | Shape::WholeMin => [meta.sum, 0],
        Shape::Halves | Shape::HalvesMin => meta.half_sums.map(i32::from),
    };
    // SAFETY: NEON is part of every instruction set of `Dots`.
    sums.map(|sum| unsafe { vdupq_n_s32(M::CORRECTION * sum) })
}

#[inline(always)]
fn corrected<M: Meaning>(dots: [int32x4_t; 2], meta: &BlockMeta) -> [int32x4_t; 2] {
    if M::CORRECTION == 0 {
        return dots;
    }
    let [first, second] = corrections::<M>(meta);
    // SAFETY: NEON is part of every instruction set of `Dots`.
    unsafe { [vaddq_s32(dots[0], first), vaddq_s32(dots[1], second)] }
}

/// Adds the products of a block to a quad's sums of one row; see [`super`] for the order.
///
/// # Safety
///
/// `scale` and `min` point to a quad of the scales and minima of a block; those of a second half are one tile's
/// lanes behind. `dots` are those of the block, or of its halves, as M says.
#[inline(always)]
unsafe fn add_scaled<M: Meaning>(
    acc: float32x4_t,
    dots: [int32x4_t; 2],
    scale: *const f32,
    min: *const f32,
    meta: &BlockMeta,
) -> float32x4_t {
    // SAFETY: by the contract; NEON is part of every instruction set of `Dots`.
    unsafe {
        match M::SHAPE {
            Shape::Whole | Shape::WholeMin => {
                let factor = vmulq_n_f32(vld1q_f32(scale), meta.scale);
                let acc = vfmaq_f32(acc, vcvtq_f32_s32(dots[0]), factor);
                if M::SHAPE.has_min() { vfmaq_n_f32(acc, vld1q_f32(min), meta.scaled_sum) } else { acc }
            }
            Shape::Halves | Shape::HalvesMin => {
                let both = vmulq_f32(vcvtq_f32_s32(dots[0]), vld1q_f32(scale));
                let both = vfmaq_f32(both, vcvtq_f32_s32(dots[1]), vld1q_f32(scale.add(LANES)));
                let acc = vfmaq_n_f32(acc, both, meta.scale);
                if M::SHAPE.has_min() {
                    let [first, second] = meta.half_sums.map(|sum| meta.scale * f32::from(sum));
                    let acc = vfmaq_n_f32(acc, vld1q_f32(min), first);
                    vfmaq_n_f32(acc, vld1q_f32(min.add(LANES)), second)
                } else {
                    acc
                }
            }
        }
    }
}

/// Conversion by instructions that every instruction set of [`Dots`] has.
struct Widen;

impl Halves for Widen {
    #[inline(always)]
    fn widen(bytes: &[u8; 2 * LANES]) -> Lanes {
        let mut lanes = [0.0; LANES];
        for (out, halves) in
            lanes.as_chunks_mut::<QUAD>().0.iter_mut().zip(bytes.as_chunks::<{ 2 * QUAD }>().0)
        {
            // SAFETY: NEON is there; four halves are read, four floats written.
            unsafe {
                let halves = vreinterpret_f16_u8(vld1_u8(halves.as_ptr()));
                vst1q_f32(out.as_mut_ptr(), vcvt_f32_f16(halves));
            }
        }
        lanes
    }
}
