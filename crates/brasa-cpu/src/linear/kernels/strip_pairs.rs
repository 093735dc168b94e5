//! Four rows of int8 activations times two strips of codes at a time, in AVX-512.
//!
//! A group of four activations is loaded once for both strips, and the eight sums that it goes into do not wait for one another:
//! a processor that begins two products a cycle and ends them four cycles later is kept busy. A Zen 5 (1,070 GOP/s) makes 800 GOP/s
//! of Q4_0 so and 705 with eight rows and one strip, whose sums of a row are a chain of eight products.
//!
//! Only for strips that lie in a cache: one row after the other, two strips that stream from memory side by side came at five sixths of
//! the speed of one.
//!
//! Order and roundings are those of [`codes`](super::codes), so results are the same bits.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; vector loads need no alignment"
)]
#![allow(clippy::needless_pass_by_value, reason = "what the kernel is given lies in registers")]
#![allow(clippy::needless_range_loop, reason = "sums are named by constants, else they would live in memory")]

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use super::super::blocks::{PackedBlock, Panel};
use super::super::formats::{Kind, Meaning, with_kind, with_panel_kind};
use super::super::layout::{LANES, Lanes, Layout, WIDE_BLOCK_BYTES};
use super::super::scales::BlockScales;
use super::codes::{add_scaled, corrections, group};
use super::vectors::correction;
use super::{PAIR_ROWS, Turn};
use crate::isa::Avx512;
use crate::prefetch::{LINE_BYTES, PrefetchPolicy, second_cache_lines};
use crate::quantize::{BLOCK, QuantizedRow};
use crate::simd::read;

/// Rows of a call of the kernel.
const ROWS: usize = PAIR_ROWS;
/// Strips of a call of the kernel.
const STRIPS: usize = 2;

/// Sums by row and strip.
type Results = [[__m512; STRIPS]; ROWS];

/// Writes the products of packed strips, an even number, with `x.len()` rows, a multiple of [`ROWS`]: for each strip those of all rows.
///
/// Lengths were checked: strips are whole, every row has the blocks of `layout`, and `out` has all rows for each strip.
pub(super) fn multiply_strips(
    proof: Avx512,
    layout: &Layout,
    strips: &[u8],
    x: &[QuantizedRow<'_>],
    turn: Turn,
    out: &mut [Lanes],
) {
    let pair_bytes = STRIPS * layout.strip_bytes();
    for (pair, out) in strips.chunks_exact(pair_bytes).zip(out.chunks_exact_mut(STRIPS * x.len())) {
        let (first, second) = pair.split_at(layout.strip_bytes());
        let (of_first, of_second) = out.split_at_mut(x.len());
        let outs = of_first.chunks_exact_mut(ROWS).zip(of_second.chunks_exact_mut(ROWS));
        for (number, (x, (of_first, of_second))) in x.chunks_exact(ROWS).zip(outs).enumerate() {
            let ahead =
                Ahead::in_pass(turn.first / ROWS + number, turn.of.div_ceil(ROWS), layout, strips.len());
            // SAFETY: the proof; strips of this kind, four rows with their blocks and results.
            with_kind!(layout, K => unsafe {
                let strips = [first, second];
                let source = Planes { layout, strips, ahead, kind: PhantomData::<K> };
                let correction = const { correction(K::CODES.offset(), K::SHAPE.has_min(), false) };
                kernel(proof, source, 0..layout.blocks, correction, x, false, [of_first, of_second]);
            });
        }
    }
}

/// Adds to `out` the products of two panels of the same blocks with four rows: for each panel those of all rows. Overwrites `out` if the
/// panels are the first of their strips.
///
/// Lengths were checked: the panels fit `layout`, every row has its blocks, and `out` has all rows for each panel.
pub(super) fn multiply_panels(
    proof: Avx512,
    layout: &Layout,
    panels: &[Panel; STRIPS],
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let (of_first, of_second) = out.split_at_mut(ROWS);
    let correction = correction(layout.codes.offset(), layout.shape.has_min(), false);
    let blocks = panels[0].blocks();
    // SAFETY: the proof; panels of this meaning, four rows with their blocks and results.
    with_panel_kind!(layout, M => unsafe {
        let source = Panels { panels, meaning: PhantomData::<M> };
        let goes_on = blocks.start > 0;
        kernel(proof, source, blocks, correction, x, goes_on, [of_first, of_second]);
    });
}

/// Locates the blocks of two strips in memory. All methods are `#[inline(always)]`.
trait Source {
    type Meaning: Meaning;

    /// A block of both strips, whose scales may be written to `unpacked`.
    ///
    /// # Safety
    ///
    /// There is such a block.
    unsafe fn block(
        &self,
        proof: Avx512,
        block: usize,
        unpacked: &mut [BlockScales; STRIPS],
    ) -> [Block; STRIPS];

    /// The codes of group G.
    ///
    /// # Safety
    ///
    /// The block is of this source.
    unsafe fn codes<const G: usize>(proof: Avx512, block: Block) -> __m512i;
}

/// A block of a strip.
#[derive(Clone, Copy)]
struct Block {
    codes: *const u8,
    /// The block's scales, whose number the shape gives. The scales of the second half of the inputs follow [`LANES`] later; minima
    /// are laid out alike.
    scale: *const f32,
    min: *const f32,
}

/// The share of the next run of strips that one pass over a pair of strips prefetches. It keeps memory busy throughout, so that the
/// first rows of the next run need not wait.
#[derive(Clone, Copy)]
struct Ahead {
    /// Bytes from a block's codes to the part of the next run that this pass prefetches.
    distance: usize,
    len: usize,
}

impl Ahead {
    fn in_pass(pass: usize, passes: usize, layout: &Layout, run_bytes: usize) -> Self {
        if PrefetchPolicy::for_rows(ROWS) == PrefetchPolicy::Never {
            return Self { distance: 0, len: 0 };
        }
        // The line before a block's codes has its scales, if it is the first of a span.
        let lines = layout.block_bytes() / LINE_BYTES + 1;
        let [from, to] = [pass, pass + 1].map(|pass| lines * pass / passes * LINE_BYTES);
        Self { distance: run_bytes + from - LINE_BYTES, len: to - from }
    }

    #[inline(always)]
    fn ask(self, codes: *const u8) {
        second_cache_lines(codes.wrapping_add(self.distance), self.len);
    }
}

/// Blocks as they are packed, unpacked on the way.
struct Planes<'a, K> {
    layout: &'a Layout,
    strips: [&'a [u8]; STRIPS],
    ahead: Ahead,
    kind: PhantomData<K>,
}

impl<K: Kind> Source for Planes<'_, K> {
    type Meaning = K;

    #[inline(always)]
    unsafe fn block(
        &self,
        proof: Avx512,
        block: usize,
        unpacked: &mut [BlockScales; STRIPS],
    ) -> [Block; STRIPS] {
        let [first, second] = unpacked;
        [
            self.of_strip(proof, self.strips[0], block, first),
            self.of_strip(proof, self.strips[1], block, second),
        ]
    }

    #[inline(always)]
    unsafe fn codes<const G: usize>(proof: Avx512, block: Block) -> __m512i {
        // SAFETY: a block of kind K.
        unsafe { group::<_, K, G>(proof, block.codes, false) }
    }
}

impl<K: Kind> Planes<'_, K> {
    #[inline(always)]
    fn of_strip(&self, proof: Avx512, strip: &[u8], block: usize, unpacked: &mut BlockScales) -> Block {
        // Here, within the compiled kernel, strides are constants.
        let layout = self.layout.known::<K>();
        let packed = PackedBlock::of_strip(&layout, strip, block);
        self.ahead.ask(packed.planes.as_ptr());
        packed.scales::<K>(proof, layout.scales, unpacked);
        let (scale, min) = (unpacked.scale.as_ptr().cast(), unpacked.min.as_ptr().cast());
        Block { codes: packed.planes.as_ptr(), scale, min }
    }
}

/// Blocks of panels.
struct Panels<'a, M> {
    panels: &'a [Panel; STRIPS],
    meaning: PhantomData<M>,
}

impl<M: Meaning> Source for Panels<'_, M> {
    type Meaning = M;

    #[inline(always)]
    unsafe fn block(&self, _: Avx512, block: usize, _: &mut [BlockScales; STRIPS]) -> [Block; STRIPS] {
        let at = block - self.panels[0].first;
        [Self::of_panel(&self.panels[0], at), Self::of_panel(&self.panels[1], at)]
    }

    #[inline(always)]
    unsafe fn codes<const G: usize>(_: Avx512, block: Block) -> __m512i {
        // SAFETY: a block is eight vectors.
        unsafe { read(block.codes.add(WIDE_BLOCK_BYTES / 8 * G).cast()) }
    }
}

impl<M: Meaning> Panels<'_, M> {
    #[inline(always)]
    fn of_panel(panel: &Panel, at: usize) -> Block {
        let first = at * M::SHAPE.scales_per_block() * LANES;
        Block {
            codes: panel.codes.as_ptr().cast::<u8>().wrapping_add(WIDE_BLOCK_BYTES * at),
            scale: panel.scales.as_ptr().cast::<f32>().wrapping_add(first),
            min: panel.mins.as_ptr().cast::<f32>().wrapping_add(first),
        }
    }
}

/// Writes the products of some blocks of two strips with four rows to `out`, by strip; adds them to what is there if it `goes_on`.
///
/// # Safety
///
/// The source has the blocks, as have the four rows of `x`; `out` has four rows for each strip.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn kernel<S: Source>(
    proof: Avx512,
    source: S,
    blocks: Range<usize>,
    correction: i32,
    x: &[QuantizedRow<'_>],
    goes_on: bool,
    out: [&mut [Lanes]; STRIPS],
) {
    let mut acc: Results = [[_mm512_setzero_ps(); STRIPS]; ROWS];
    if goes_on {
        for row in 0..ROWS {
            for strip in 0..STRIPS {
                // SAFETY: the lanes of a strip are one vector.
                acc[row][strip] = unsafe { _mm512_loadu_ps(out[strip][row].as_ptr()) };
            }
        }
    }
    let mut unpacked = [BlockScales::ZERO, BlockScales::ZERO];
    for block in blocks {
        let mut sums = [[[_mm512_setzero_si512(); 2]; STRIPS]; ROWS];
        // SAFETY: by the contract.
        unsafe {
            let both = source.block(proof, block, &mut unpacked);
            for row in 0..ROWS {
                let meta = x.get_unchecked(row).blocks.get_unchecked(block);
                let start = corrections::<S::Meaning>(meta, correction);
                for strip in 0..STRIPS {
                    sums[row][strip] = [_mm512_set1_epi32(start[0]), _mm512_set1_epi32(start[1])];
                }
            }
            macro_rules! add {
                ($($group:literal)*) => {$({
                    let half = if const { S::Meaning::SHAPE.has_halves() } { $group / 4 } else { 0 };
                    let codes = [S::codes::<$group>(proof, both[0]), S::codes::<$group>(proof, both[1])];
                    for row in 0..ROWS {
                        let x = x.get_unchecked(row).codes.as_ptr().add(BLOCK * block).cast::<i32>();
                        let x = _mm512_set1_epi32(read(x.add($group)));
                        for strip in 0..STRIPS {
                            let sum = &mut sums[row][strip][half];
                            *sum = _mm512_dpbusd_epi32(*sum, codes[strip], x);
                        }
                    }
                })*};
            }
            // Two groups of four bits lie in one vector.
            add!(0 4 1 5 2 6 3 7);
            for row in 0..ROWS {
                let meta = x.get_unchecked(row).blocks.get_unchecked(block);
                for strip in 0..STRIPS {
                    let (Block { scale, min, .. }, sums) = (both[strip], sums[row][strip]);
                    let sum = &mut acc[row][strip];
                    *sum = add_scaled::<Avx512, S::Meaning>(proof, *sum, sums, scale, min, meta);
                }
            }
        }
    }
    for row in 0..ROWS {
        for strip in 0..STRIPS {
            // SAFETY: the lanes of a strip are one vector.
            unsafe { _mm512_storeu_ps(out[strip][row].as_mut_ptr(), acc[row][strip]) };
        }
    }
}
