//! Reading a packed strip block by block, strictly forward.

use std::ops::Range;

use super::formats::{Kind, Scales, Shape, with_kind};
use super::layout::{LANES, Lanes, Layout, SUPER_BLOCKS, WIDE_BLOCK_BYTES};
use super::planes::{self, WideBlock};
use super::scales::{self, BlockScales, Portable, WidenF16};
use crate::prefetch::PrefetchPolicy;

/// The spans of a strip, from the one of a given block on. Prefetches what it hands out.
pub(super) struct Spans<'a> {
    policy: PrefetchPolicy,
    heads: &'a [u8],
    /// Spans that are still to come.
    left: &'a [u8],
    /// Number of the next block.
    block: usize,
    /// Number of the first block that is not wanted.
    end: usize,
    /// Sizes that the layout gives.
    span: usize,
    span_bytes: usize,
    scale_bytes: usize,
    block_bytes: usize,
}

/// Blocks of a span that are still to come, with their numbers.
pub(super) struct Span<'a> {
    policy: PrefetchPolicy,
    head: &'a [u8],
    stored: &'a [u8],
    /// Codes of the blocks that are still to come.
    left: &'a [u8],
    block_bytes: usize,
    first: usize,
    at: usize,
}

/// A block in its packed form.
#[derive(Clone, Copy)]
pub(super) struct PackedBlock<'a> {
    head: &'a [u8],
    span: &'a [u8],
    at: usize,
    /// The codes.
    pub planes: &'a [u8],
}

impl<'a> Spans<'a> {
    /// Spans that hold `blocks` of a strip of `layout`; the first block begins a span.
    #[inline(always)]
    pub fn new(layout: &Layout, strip: &'a [u8], blocks: Range<usize>, policy: PrefetchPolicy) -> Self {
        let (span, span_bytes) = (layout.span(), layout.span_bytes());
        debug_assert!(blocks.start.is_multiple_of(span), "block {} within a span", blocks.start);
        let (heads, spans) = strip.split_at(layout.head_bytes());
        Self {
            policy,
            heads,
            left: &spans[(blocks.start / span * span_bytes).min(spans.len())..],
            block: blocks.start,
            end: blocks.end,
            span,
            span_bytes,
            scale_bytes: layout.scale_bytes(),
            block_bytes: layout.block_bytes(),
        }
    }
}

impl<'a> Iterator for Spans<'a> {
    type Item = Span<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Span<'a>> {
        if self.block >= self.end || self.left.is_empty() {
            return None;
        }
        // The last span may be shorter, but for spans of one block, whose length is then a constant.
        let bytes = if self.span == 1 { self.span_bytes } else { self.span_bytes.min(self.left.len()) };
        let (stored, left) = self.left.split_at(bytes);
        self.policy.prefetch(stored.as_ptr(), self.scale_bytes);
        let span = Span {
            policy: self.policy,
            head: self.heads.get(self.block / SUPER_BLOCKS * 2 * LANES..).unwrap_or_default(),
            stored,
            left: &stored[self.scale_bytes..],
            block_bytes: self.block_bytes,
            first: self.block,
            at: 0,
        };
        (self.left, self.block) = (left, self.block + self.span);
        Some(span)
    }
}

impl<'a> Iterator for Span<'a> {
    type Item = (usize, PackedBlock<'a>);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let (planes, left) = self.left.split_at_checked(self.block_bytes)?;
        self.left = left;
        self.policy.prefetch(planes.as_ptr(), planes.len());
        let Self { head, stored: span, at, .. } = *self;
        self.at = at + 1;
        Some((self.first + at, PackedBlock { head, span, at, planes }))
    }
}

impl<'a> PackedBlock<'a> {
    /// Block `block` of a strip of `layout`.
    ///
    /// For loops over all blocks that several rows meet: a loop of spans around one of their blocks, many of which have two, costs
    /// a fifth of such a kernel's time on a Zen 5.
    #[inline(always)]
    pub fn of_strip(layout: &Layout, strip: &'a [u8], block: usize) -> Self {
        // A power of two for every kind of scales: divided so, the compiler need not know it.
        let shift = layout.span().trailing_zeros();
        let (number, at) = (block >> shift, block & (layout.span() - 1));
        let span = &strip[layout.head_bytes() + number * layout.span_bytes()..];
        let planes = &span[layout.scale_bytes() + at * layout.block_bytes()..][..layout.block_bytes()];
        let head = if layout.head_bytes() > 0 { &strip[block / SUPER_BLOCKS * 2 * LANES..] } else { &[] };
        Self { head, span, at, planes }
    }
}

impl PackedBlock<'_> {
    /// Writes the scales of the block, which is of kind K, to `out`, with the processor's instruction for f16.
    #[inline(always)]
    pub fn scales<K: Kind>(&self, widen: impl WidenF16, scales: Scales, out: &mut BlockScales) {
        scales::of_block::<K>(widen, scales, self.head, self.span, self.at, out);
    }

    /// Writes the scales of the block to `out`, in plain Rust.
    pub fn portable_scales(&self, layout: &Layout, out: &mut BlockScales) {
        with_kind!(layout, K => self.scales::<K>(Portable, layout.scales, out));
    }
}

/// Consecutive blocks of a strip, unpacked to bytes and f32 scales.
///
/// Scratch memory of one thread, reused from strip to strip.
#[derive(Default)]
pub(super) struct Panel {
    /// Number of the first block.
    pub first: usize,
    /// Codes by block, in the order of the kernels that filled the panel.
    pub codes: Vec<PanelBlock>,
    /// Scales by block, or by half block.
    pub scales: Vec<PanelLanes>,
    /// Minima by block, or by half block; empty if the shape has none.
    pub mins: Vec<PanelLanes>,
    /// True if the codes' offset was subtracted from them, which makes them signed.
    pub centred: bool,
}

/// Codes of a block, on cache lines of their own.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct PanelBlock(pub WideBlock);

/// Scales or minima of a block, on a cache line of their own.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct PanelLanes(pub Lanes);

impl PanelBlock {
    pub const ZERO: Self = Self([0; WIDE_BLOCK_BYTES]);
}

impl Panel {
    /// Makes room for `blocks` of a strip of `layout`.
    pub fn reserve(&mut self, layout: &Layout, blocks: &Range<usize>, centred: bool) {
        (self.first, self.centred) = (blocks.start, centred);
        self.codes.resize(blocks.len(), PanelBlock::ZERO);
        let zero = PanelLanes([0.0; LANES]);
        self.scales.resize(blocks.len() * layout.shape.scales_per_block(), zero);
        self.mins.resize(blocks.len() * layout.shape.mins_per_block(), zero);
    }

    /// Checks what kernels rely on: blocks within a strip of `layout`, and scales and minima for each.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    pub fn check(&self, layout: &Layout) {
        let (scales, mins) = (layout.shape.scales_per_block(), layout.shape.mins_per_block());
        let expected = (self.codes.len() * scales, self.codes.len() * mins);
        assert_eq!((self.scales.len(), self.mins.len()), expected, "scales and minima of a panel");
        assert!(self.blocks().end <= layout.blocks, "blocks of a panel");
    }

    /// Numbers of the blocks in the strip.
    pub fn blocks(&self) -> Range<usize> {
        self.first..self.first + self.codes.len()
    }

    /// Unpacks the reserved blocks in plain Rust.
    pub fn fill(&mut self, layout: &Layout, strip: &[u8]) {
        let mut unpacked = BlockScales::ZERO;
        for (block, packed) in Spans::new(layout, strip, self.blocks(), PrefetchPolicy::Never).flatten() {
            let at = block - self.first;
            planes::unpack(layout.codes, packed.planes, &mut self.codes[at].0);
            packed.portable_scales(layout, &mut unpacked);
            self.put_scales(layout.shape, at, &unpacked);
        }
    }

    /// Keeps the scales of block `block` of the panel.
    #[inline(always)]
    pub fn put_scales(&mut self, shape: Shape, block: usize, unpacked: &BlockScales) {
        let count = shape.scales_per_block();
        for (out, scale) in self.scales[block * count..][..count].iter_mut().zip(&unpacked.scale) {
            out.0 = *scale;
        }
        if shape.has_min() {
            for (out, min) in self.mins[block * count..][..count].iter_mut().zip(&unpacked.min) {
                out.0 = *min;
            }
        }
    }
}
