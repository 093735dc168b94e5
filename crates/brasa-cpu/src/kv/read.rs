//! Reads the tiles of a cache, during an operation that writes no cache.

use brasa_graph::step::PAGE_POSITIONS;

use super::CacheView;
use super::layout::{BLOCKS, TileLayout};
use crate::memory::Element;
use crate::simd::LANES;

/// A cache that is not written meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheReader<'a>(CacheView<'a>);

impl<'a> CacheView<'a> {
    /// Opens the cache for reading.
    ///
    /// # Safety
    ///
    /// No thread writes the cache before the last use of the result and of slices from it.
    pub(crate) unsafe fn reader(self) -> CacheReader<'a> {
        CacheReader(self)
    }
}

impl<'a> CacheReader<'a> {
    /// The layout of its tiles.
    pub(crate) fn layout(&self) -> TileLayout {
        self.0.layout
    }

    /// Keys of all positions, with their scales: blocks of 16 positions, [`TileLayout::key_block_bytes`] each.
    #[inline(always)]
    pub(crate) fn keys<T: Element>(&self, page: u32, head: usize) -> &'a [[T; LANES]] {
        let len = BLOCKS * self.0.layout.key_block_bytes() / size_of::<T>();
        // SAFETY: not written meanwhile, by the contract of `reader`.
        unsafe { self.0.get(page, head, 0, len) }.as_chunks().0
    }

    /// Scales of the keys of 16 positions: for each 32 elements, a vector of 16 positions.
    #[inline(always)]
    pub(crate) fn key_scales(&self, page: u32, head: usize, block: usize) -> &'a [[u16; LANES]] {
        let layout = self.0.layout;
        let offset = block * layout.key_block_bytes() + LANES * layout.key_dim * layout.element_bytes();
        // SAFETY: not written meanwhile, by the contract of `reader`.
        unsafe { self.0.get(page, head, offset, layout.key_scales() * LANES) }.as_chunks().0
    }

    /// Values of all positions of a page, `[256][value_width / 16][16]`; empty if values are the first elements of
    /// keys.
    #[inline(always)]
    pub(crate) fn values<T: Element>(&self, page: u32, head: usize) -> &'a [[T; LANES]] {
        let layout = self.0.layout;
        let len = PAGE_POSITIONS * layout.value_width();
        // SAFETY: not written meanwhile, by the contract of `reader`.
        unsafe { self.0.get(page, head, layout.key_tile_bytes(), len) }.as_chunks().0
    }

    /// Scales of the values of all positions of a page. If values are the first elements of keys, these are the scales
    /// of the keys.
    #[inline(always)]
    pub(crate) fn value_scales(&self, page: u32, head: usize) -> ValueScales<'a> {
        let layout = self.0.layout;
        if layout.value.is_prefix() {
            // The scales of keys lie behind the elements of each block of keys.
            let (block_stride, first) = (layout.key_block_bytes() / 2, LANES * layout.key_dim / 2);
            // SAFETY: not written meanwhile, by the contract of `reader`.
            let scales = unsafe { self.0.get(page, head, 0, BLOCKS * block_stride) };
            return ValueScales { scales, first, group_stride: LANES, block_stride };
        }
        let offset = layout.key_tile_bytes() + layout.value_scales_bytes();
        // SAFETY: not written meanwhile, by the contract of `reader`.
        let scales = unsafe { self.0.get(page, head, offset, PAGE_POSITIONS * layout.value_scales()) };
        ValueScales { scales, first: 0, group_stride: PAGE_POSITIONS, block_stride: LANES }
    }
}

/// The scales, f16, of the values of a page: one for each position and 32 elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueScales<'a> {
    scales: &'a [u16],
    /// Place of the first scale. `group_stride` leads to the scales of the next 32 elements, `block_stride` to those of
    /// the next 16 positions.
    first: usize,
    group_stride: usize,
    block_stride: usize,
}

impl<'a> ValueScales<'a> {
    /// Scales of the 32 elements from 32 · `group` on, at the 16 positions from 16 · `block` on.
    #[inline(always)]
    pub(crate) fn at(self, group: usize, block: usize) -> &'a [u16; LANES] {
        let start = self.first + group * self.group_stride + block * self.block_stride;
        self.scales[start..].first_chunk().expect("a scale for each value")
    }
}
