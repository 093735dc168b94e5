//! Pages of keys and values as bytes, in one layout for all devices.
//!
//! A device lays its pages out in the order in which its kernels read them. Snapshots of sessions, and sequences that move from
//! one device to another, need an order common to all devices: [`KvPool::read_page`] and [`KvPool::write_page`] use the
//! **canonical layout**. A page is a row of *head blocks*, without padding:
//!
//! - each cache of the group, in the order of [`CacheGroup::caches`], has the keys of each KV
//!   head and then the values of each KV head. Values that are the first elements of keys have no blocks;
//! - a head block is `[256][E]` elements: slot after slot, E elements each, little-endian. E is the width of a key in a
//!   block of keys, and the width of a value in a block of values. f32, f16 and bf16 elements are their bits; q8
//!   elements are int8 codes;
//! - a head block of q8 ends with `[256][⌈E/32⌉]` scales, f16: one for each 32 elements of a slot (the last may stand for
//!   fewer). A code stands for `scale · code`.
//!
//! Reading and writing copy bits and convert nothing, so a page that was read, stored and written again is unchanged. A text that
//! goes on from the page draws the same tokens.
//!
//! Index *i* of a text lies in slot `i % 256` of entry `i / 256` of its block table, in every group. So too with a sliding
//! window: the entry of a released page is `None` and has no bytes, and the remaining pages are whole. Slots that no row has
//! written have arbitrary contents, such as those of earlier texts; [`PageLayout::clear_from`] zeroes them before a page leaves
//! the process.

use crate::device::{DeviceError, KvPool, KvPoolSpec, KvType};
use crate::step::{PAGE_POSITIONS, PageId};
use crate::{CacheGroup, CacheSpec, GroupId, ValueWidth};

/// Number of elements that share a scale in q8.
pub const SCALE_ELEMENTS: usize = 32;

impl KvType {
    /// Bytes of an element, without scales.
    pub const fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8 => 1,
        }
    }

    /// Number of scales of one key or value of `width` elements; 0 for types other than q8.
    pub const fn scales(self, width: usize) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 0,
            Self::Q8 => width.div_ceil(SCALE_ELEMENTS),
        }
    }
}

/// The canonical layout of the pages of one cache group (see the [module](self)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// The element type.
    pub dtype: KvType,
    /// Number of caches of the group.
    pub caches: usize,
    /// KV heads of each cache.
    pub kv_heads: usize,
    /// Elements of a head's key.
    pub key_dim: usize,
    /// Width of a head's value, and whether values are stored beside keys.
    pub value: ValueWidth,
}

/// The layout of a head block: the keys, or the stored values, of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadBlock {
    /// The element type.
    pub dtype: KvType,
    /// Elements of a slot: of one key, or of one stored value.
    pub width: usize,
}

impl HeadBlock {
    /// Bytes of one slot's elements, without scales.
    pub const fn slot_bytes(self) -> usize {
        self.width.saturating_mul(self.dtype.element_bytes())
    }

    /// Bytes of one slot's scales.
    pub const fn scales_bytes(self) -> usize {
        self.dtype.scales(self.width).saturating_mul(2)
    }

    /// Bytes of the block.
    pub const fn size_bytes(self) -> usize {
        self.slot_bytes().saturating_add(self.scales_bytes()).saturating_mul(PAGE_POSITIONS)
    }

    /// Zeroes all slots from `slot` on; `block` is a whole head block.
    fn clear_from(self, slot: usize, block: &mut [u8]) {
        let (elements, scales) = block.split_at_mut(PAGE_POSITIONS * self.slot_bytes());
        elements[slot * self.slot_bytes()..].fill(0);
        scales[slot * self.scales_bytes()..].fill(0);
    }
}

impl PageLayout {
    /// The layout of the pages of `group`, whose elements are of type `dtype`.
    pub fn new(group: &CacheGroup, dtype: KvType) -> Self {
        let CacheSpec { kv_heads, key_dim, value, .. } = group.spec;
        Self { dtype, caches: group.caches.len(), kv_heads, key_dim, value }
    }

    /// The layout of the pages of group number `group` of a pool.
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownGroup`].
    pub fn of(spec: &KvPoolSpec, group: GroupId) -> Result<Self, DeviceError> {
        let groups = spec.groups.len();
        let unknown = DeviceError::UnknownGroup { group: group.0, groups };
        spec.groups.get(group.0 as usize).map(|group| Self::new(group, spec.dtype)).ok_or(unknown)
    }

    /// The layout of `page`, which must exist in `pool`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownGroup`], [`DeviceError::UnknownPage`].
    pub fn of_page(pool: &dyn KvPool, group: GroupId, page: PageId) -> Result<Self, DeviceError> {
        let layout = Self::of(pool.spec(), group)?;
        let (page, pages) = (page.index(), pool.capacity(group));
        if page < pages { Ok(layout) } else { Err(DeviceError::UnknownPage { group: group.0, page, pages }) }
    }

    /// The layout of `page`, which must exist in `pool` and have `bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownGroup`], [`DeviceError::UnknownPage`], [`DeviceError::PageBytes`].
    pub fn of_bytes(
        pool: &dyn KvPool,
        group: GroupId,
        page: PageId,
        bytes: usize,
    ) -> Result<Self, DeviceError> {
        let layout = Self::of_page(pool, group, page)?;
        let expected = layout.size_bytes();
        if bytes == expected {
            Ok(layout)
        } else {
            Err(DeviceError::PageBytes { group: group.0, found: bytes, expected })
        }
    }

    /// Bytes of a page.
    pub const fn size_bytes(self) -> usize {
        self.caches.saturating_mul(self.cache_bytes())
    }

    /// Bytes of one cache's part of a page.
    pub const fn cache_bytes(self) -> usize {
        let head_bytes = self.keys().size_bytes().saturating_add(self.values().size_bytes());
        self.kv_heads.saturating_mul(head_bytes)
    }

    /// The layout of one head's block of keys.
    pub const fn keys(self) -> HeadBlock {
        HeadBlock { dtype: self.dtype, width: self.key_dim }
    }

    /// The layout of one head's block of values; without elements if values are the first elements of keys.
    pub const fn values(self) -> HeadBlock {
        HeadBlock { dtype: self.dtype, width: self.value.stored() }
    }

    /// Offset in bytes, within a page, of the keys of KV head `head` of cache number `cache`.
    pub const fn keys_offset(self, cache: usize, head: usize) -> usize {
        cache * self.cache_bytes() + head * self.keys().size_bytes()
    }

    /// Offset in bytes, within a page, of the stored values of KV head `head` of cache number `cache`.
    pub const fn values_offset(self, cache: usize, head: usize) -> usize {
        self.keys_offset(cache, self.kv_heads) + head * self.values().size_bytes()
    }

    /// Zeroes the slots from `slot` on, as for the end of a text's last page in a snapshot. `page` is a whole page.
    pub fn clear_from(self, slot: usize, page: &mut [u8]) {
        let slot = slot.min(PAGE_POSITIONS);
        for cache in 0..self.caches {
            for head in 0..self.kv_heads {
                for (block, start) in [
                    (self.keys(), self.keys_offset(cache, head)),
                    (self.values(), self.values_offset(cache, head)),
                ] {
                    block.clear_from(slot, &mut page[start..start + block.size_bytes()]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_keeps_the_slots_of_its_text() {
        for (value, widths) in [
            (ValueWidth::Own(40), &[40, 40, 40, 40, 40, 40][..]),
            (ValueWidth::Own(33), &[40, 40, 40, 33, 33, 33]),
            (ValueWidth::PrefixOfKey(32), &[40, 40, 40]),
        ] {
            let layout = PageLayout { dtype: KvType::Q8, caches: 2, kv_heads: 3, key_dim: 40, value };
            let block_bytes = |width: usize| 256 * (width + 2 * 2);
            assert_eq!(layout.cache_bytes(), widths.iter().map(|&width| block_bytes(width)).sum::<usize>());
            assert_eq!(layout.size_bytes(), 2 * layout.cache_bytes());
            let mut page = vec![7; layout.size_bytes()];
            layout.clear_from(200, &mut page);
            let mut rest = &page[..];
            for &width in &[widths, widths].concat() {
                let (block, behind) = rest.split_at(block_bytes(width));
                let (elements, scales) = block.split_at(256 * width);
                for (bytes, kept) in [(elements, 200 * width), (scales, 200 * 2 * 2)] {
                    assert!(bytes[..kept].iter().all(|&byte| byte == 7));
                    assert!(bytes[kept..].iter().all(|&byte| byte == 0));
                }
                rest = behind;
            }
            let mut whole = vec![7; layout.size_bytes()];
            layout.clear_from(256, &mut whole);
            assert!(whole.iter().all(|&byte| byte == 7));
        }
    }
}
