//! A tile unpacked to bytes and f32 scales.

use std::ops::Range;

use super::super::layout::{LANES, Layout, SUPER_BLOCKS, Scales, Shape, WIDE_BLOCK_BYTES};
use super::super::planes::{self, WideBlock};
use super::super::scales::{self, BlockScales, Halves, Lanes, Portable};
use crate::prefetch::PrefetchPolicy;

/// Consecutive blocks of a tile, unpacked: scratch memory of one thread, reused from tile to tile.
#[derive(Default)]
pub(in super::super) struct Panel {
    /// Number of the first block.
    pub(super) first: usize,
    /// By block.
    pub(super) codes: Vec<PanelBlock>,
    /// By block or half block, as the shape says.
    pub(super) scales: Vec<PanelLanes>,
    /// As `scales`; empty where there are no minima.
    pub(super) mins: Vec<PanelLanes>,
    /// What was subtracted from the codes, which makes them signed.
    pub(super) offset: u8,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct PanelBlock(pub WideBlock);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct PanelLanes(pub Lanes);

impl Shape {
    /// Scales of a block.
    pub(in super::super) const fn scales_per_block(self) -> usize {
        match self {
            Self::Whole | Self::WholeMin => 1,
            Self::Halves | Self::HalvesMin => 2,
        }
    }

    pub(in super::super) const fn has_min(self) -> bool {
        matches!(self, Self::WholeMin | Self::HalvesMin)
    }
}

impl Panel {
    /// Makes room for `blocks` of a tile of `layout`, from whose codes `offset` is to be subtracted.
    pub(super) fn reserve(&mut self, layout: &Layout, blocks: &Range<usize>, offset: u8) {
        self.first = blocks.start;
        self.offset = offset;
        let scales = blocks.len() * layout.shape.scales_per_block();
        self.codes.resize(blocks.len(), PanelBlock([0; WIDE_BLOCK_BYTES]));
        self.scales.resize(scales, PanelLanes([0.0; LANES]));
        self.mins.resize(if layout.shape.has_min() { scales } else { 0 }, PanelLanes([0.0; LANES]));
    }

    /// What the kernels rely on: as many scales as blocks, all of them within a tile of `layout`.
    pub(super) fn check(&self, layout: &Layout) {
        let scales = self.codes.len() * layout.shape.scales_per_block();
        let mins = if layout.shape.has_min() { scales } else { 0 };
        assert_eq!((self.scales.len(), self.mins.len()), (scales, mins), "scales and minima of a panel");
        assert!(self.first + self.codes.len() <= layout.blocks, "blocks of a panel");
    }

    /// Blocks from the first to the last.
    pub(super) fn blocks(&self) -> Range<usize> {
        self.first..self.first + self.codes.len()
    }

    /// Unpacks the blocks that there is room for.
    pub(super) fn fill(&mut self, layout: &Layout, tile: &[u8]) {
        let mut unpacked = BlockScales::ZERO;
        for_each_block(layout, tile, self.blocks(), PrefetchPolicy::Never, |block, packed| {
            let at = block - self.first;
            planes::unpack(layout.codes, packed.planes, &mut self.codes[at].0);
            packed.scales::<Portable>(layout.scales, &mut unpacked);
            self.put_scales(layout.shape, at, &unpacked);
        });
    }

    /// Keeps the scales of block `block` of the panel.
    #[inline(always)]
    pub(super) fn put_scales(&mut self, shape: Shape, block: usize, unpacked: &BlockScales) {
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

/// A block as it is packed.
#[derive(Clone, Copy)]
pub(in super::super) struct PackedBlock<'a> {
    head: &'a [u8],
    span: &'a [u8],
    at: usize,
    /// Its codes.
    pub planes: &'a [u8],
}

impl PackedBlock<'_> {
    /// Its scales; `kind` is the layout's, where it is known at compile time.
    #[inline(always)]
    pub(in super::super) fn scales<H: Halves>(&self, kind: Scales, out: &mut BlockScales) {
        scales::of_block::<H>(kind, self.head, self.span, self.at, out);
    }
}

/// Visits some blocks of a tile in order, with their numbers; the first begins a span. Asks `ahead`.
#[inline(always)]
pub(in super::super) fn for_each_block<'a>(
    layout: &Layout,
    tile: &'a [u8],
    blocks: Range<usize>,
    ahead: PrefetchPolicy,
    mut each: impl FnMut(usize, PackedBlock<'a>),
) {
    let (heads, spans) = tile.split_at(layout.head_bytes());
    let mut block = blocks.start;
    debug_assert!(block.is_multiple_of(layout.span()), "block {block} within a span of {}", layout.span());
    let spans = spans.chunks(layout.span_bytes()).skip(block / layout.span());
    for span in spans.take(blocks.len().div_ceil(layout.span())) {
        let head = heads.get(block / SUPER_BLOCKS * 2 * LANES..).unwrap_or_default();
        let planes = span[layout.scale_bytes()..].chunks_exact(layout.codes.block_bytes());
        ahead.prefetch(span.as_ptr(), layout.scale_bytes());
        for (at, planes) in planes.enumerate() {
            ahead.prefetch(planes.as_ptr(), planes.len());
            each(block, PackedBlock { head, span, at, planes });
            block += 1;
        }
    }
}

/// Some blocks of a tile in order, with their numbers; the first begins a span.
///
/// What [`for_each_block`] visits, for kernels that cannot be closures: a closure has only the instructions that are
/// enabled where it is written.
#[cfg(target_arch = "aarch64")]
pub(super) struct Blocks<'a> {
    layout: &'a Layout,
    tile: &'a [u8],
    numbers: Range<usize>,
    /// Place of the next block in its span.
    at: usize,
    /// The span, and what follows.
    span: &'a [u8],
    /// The codes that follow.
    planes: &'a [u8],
}

#[cfg(target_arch = "aarch64")]
impl<'a> Blocks<'a> {
    #[inline(always)]
    pub(super) fn new(layout: &'a Layout, tile: &'a [u8], numbers: Range<usize>) -> Self {
        let at = numbers.start % layout.span();
        debug_assert!(at == 0, "block {} within a span of {}", numbers.start, layout.span());
        let span = &tile[layout.scale_offset_bytes(numbers.start).min(tile.len())..];
        Self { layout, tile, numbers, at, span, planes: &[] }
    }
}

#[cfg(target_arch = "aarch64")]
impl<'a> Iterator for Blocks<'a> {
    type Item = (usize, PackedBlock<'a>);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let block = self.numbers.next()?;
        if self.at == self.layout.span() {
            (self.at, self.span) = (0, self.planes);
        }
        if self.at == 0 {
            self.planes = &self.span[self.layout.scale_bytes()..];
        }
        let (planes, rest) = self.planes.split_at(self.layout.codes.block_bytes());
        self.planes = rest;
        let head = self.tile.get(block / SUPER_BLOCKS * 2 * LANES..).unwrap_or_default();
        let at = self.at;
        self.at += 1;
        Some((block, PackedBlock { head, span: self.span, at, planes }))
    }
}
