//! The layout of keys and values within a page.
//!
//! A page of a group holds, for each of its caches and KV heads, a **key tile** and a **value tile** of 256
//! positions. Both have the order in which attention reads them, once per step:
//!
//! - keys in blocks of 16 positions; a block is `[E][16]`: a vector holds one element of 16 positions, so scores of 16
//!   positions grow without horizontal sums;
//! - values `[256][V]`, V rounded up to 16: a vector holds 16 elements of one position. Values that are the first elements of
//!   keys have no tile: attention transposes the keys as it reads them.
//!
//! Q8 keeps a scale (f16) per 32 elements. Key blocks end with `[⌈E/32⌉][16]` scales and value tiles with `[⌈V/32⌉][256]`,
//! so both are read as vectors of 16 positions.

use std::ops::Range;

use brasa_graph::ValueWidth;
use brasa_graph::device::KvType;
pub(crate) use brasa_graph::page::SCALE_ELEMENTS;
use brasa_graph::step::PAGE_POSITIONS;

use crate::simd::LANES;

/// Number of key blocks in a page.
pub(crate) const BLOCKS: usize = PAGE_POSITIONS / LANES;

/// The layout of the tiles of one cache group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileLayout {
    /// The element type.
    pub dtype: KvType,
    /// Elements of a head's key, E.
    pub key_dim: usize,
    /// Elements of a head's value, V, and whether they are stored beside the key.
    pub value: ValueWidth,
}

impl TileLayout {
    /// Bytes of an element, without scales.
    pub(crate) const fn element_bytes(self) -> usize {
        self.dtype.element_bytes()
    }

    /// Number of scales of a position's key.
    pub(crate) const fn key_scales(self) -> usize {
        self.dtype.scales(self.key_dim)
    }

    /// Number of scales of a position's stored value.
    pub(crate) const fn value_scales(self) -> usize {
        self.dtype.scales(self.value.stored())
    }

    /// The stride of stored values: V rounded up to whole vectors.
    pub(crate) const fn value_width(self) -> usize {
        self.value.stored().next_multiple_of(LANES)
    }

    /// Bytes of a block of 16 positions of keys.
    pub(crate) const fn key_block_bytes(self) -> usize {
        LANES * (self.key_dim * self.element_bytes() + self.key_scales() * 2)
    }

    /// Bytes of the keys of a page.
    pub(crate) const fn key_tile_bytes(self) -> usize {
        (BLOCKS * self.key_block_bytes()).next_multiple_of(64)
    }

    /// Bytes before the scales of the values of a page.
    pub(crate) const fn value_scales_bytes(self) -> usize {
        PAGE_POSITIONS * self.value_width() * self.element_bytes()
    }

    /// Bytes of the values of a page.
    pub(crate) const fn value_tile_bytes(self) -> usize {
        (self.value_scales_bytes() + PAGE_POSITIONS * self.value_scales() * 2).next_multiple_of(64)
    }

    /// Bytes of both tiles of a head.
    pub(crate) const fn head_bytes(self) -> usize {
        self.key_tile_bytes() + self.value_tile_bytes()
    }

    /// Byte ranges of a head's tiles for the first `positions` positions: keys in whole blocks, values, and the scales of values.
    pub(crate) fn first_positions(self, positions: usize) -> impl Iterator<Item = Range<usize>> {
        let keys = positions.div_ceil(LANES) * self.key_block_bytes();
        let values = self.key_tile_bytes();
        let values = values..values + positions * self.value_width() * self.element_bytes();
        let scales = (0..self.value_scales()).map(move |block| {
            let start = self.key_tile_bytes() + self.value_scales_bytes() + block * PAGE_POSITIONS * 2;
            start..start + positions * 2
        });
        [0..keys, values].into_iter().chain(scales)
    }
}
