//! Device memory of sequences: pages of keys and values, and pages of recurrent states.

use std::any::Any;
use std::ops::Range;

use super::error::DeviceError;
use crate::step::PageId;
use crate::{CacheGroup, Graph, GroupId, StateLayout};

/// Element type of cached keys and values.
///
/// A `match` over this enum is exhaustive on purpose: a new type does not compile until every device reads and writes it, or
/// refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvType {
    /// 32-bit float.
    F32,
    /// IEEE half.
    #[default]
    F16,
    /// bfloat16.
    BF16,
    /// int8 with a scale per 32 elements of a head (the last may have fewer): `scale = max|x|/127`, rounded to f16, and codes
    /// `round(x · 127/max|x|)`, half away from zero, which stand for `scale · code`.
    Q8,
}

impl KvType {
    /// Every type, the most exact first.
    pub const ALL: &[Self] = &[Self::F32, Self::F16, Self::BF16, Self::Q8];
}

/// The contents of a [`KvPool`]: cache groups, the element type of keys and values, and recurrent states.
#[derive(Clone, Debug)]
pub struct KvPoolSpec {
    /// Cache groups of the graph, in order.
    pub groups: Vec<CacheGroup>,
    /// Element type of keys and values.
    pub dtype: KvType,
    /// Layout of the graph's recurrent states, which are always f32.
    pub states: StateLayout,
}

impl KvPoolSpec {
    /// The specification of a pool for the caches and states of `graph`, with keys and values of type `dtype`.
    pub fn of(graph: &Graph, dtype: KvType) -> Self {
        Self { groups: graph.cache_groups(), dtype, states: graph.state_layout() }
    }

    /// The specification of a pool for a graph that has neither caches nor states.
    pub fn empty() -> Self {
        Self { groups: Vec::new(), dtype: KvType::F32, states: StateLayout::default() }
    }
}

/// Device memory of sequences: pages of keys and values for each cache group, and pages of recurrent states.
///
/// The engine decides which sequence holds which page.
pub trait KvPool: Send {
    /// The specification that the pool was made with.
    fn spec(&self) -> &KvPoolSpec;

    /// Pages that exist in `group`; 0 for a group that does not exist.
    fn capacity(&self, group: GroupId) -> usize;

    /// Grows `group` to at least `pages` pages; existing pages keep their contents.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`], [`DeviceError::UnknownGroup`]. Nothing has changed then.
    fn reserve(&mut self, group: GroupId, pages: usize) -> Result<(), DeviceError>;

    /// Bytes that one page of `group` takes on this device, the padding of its layout included; 0 for a group that does not
    /// exist.
    fn page_bytes(&self, group: GroupId) -> u64;

    /// Fetches `bytes` of a page's memory, for devices where memory comes with the first write and a step would wait for it. The
    /// page's contents do not change. Returns false if nothing is left to fetch.
    fn prefault(&mut self, _group: GroupId, _page: PageId, _bytes: Range<u64>) -> bool {
        false
    }

    /// Copies the first `positions` positions of a page within a group, all of them if the page has fewer (copy-on-write of a
    /// shared partial page). Later positions of `to` are unspecified: they keep their contents or get those of `from`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownGroup`], [`DeviceError::UnknownPage`]: nothing was copied. [`DeviceError::Lost`].
    fn copy_page(
        &mut self,
        group: GroupId,
        from: PageId,
        to: PageId,
        positions: usize,
    ) -> Result<(), DeviceError>;

    /// Copies a page to `bytes`, in the [canonical layout](mod@crate::page).
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownGroup`], [`DeviceError::UnknownPage`], [`DeviceError::PageBytes`]: nothing was copied.
    /// [`DeviceError::Lost`].
    fn read_page(&self, group: GroupId, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Overwrites a page with `bytes`, in the [canonical layout](mod@crate::page).
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownGroup`], [`DeviceError::UnknownPage`], [`DeviceError::PageBytes`]: nothing was written.
    /// [`DeviceError::Lost`].
    fn write_page(&mut self, group: GroupId, page: PageId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Number of state pages that exist.
    fn state_pages(&self) -> usize;

    /// Grows the number of state pages to at least `pages`; existing pages keep their contents.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`]. Nothing has changed then.
    fn reserve_state_pages(&mut self, pages: usize) -> Result<(), DeviceError>;

    /// Bytes that one state page takes on this device; 0 for a graph without recurrent states.
    fn state_page_bytes(&self) -> u64;

    /// Copies a state page to `bytes`, in the layout of the pool's [`StateLayout`], as little-endian f32.
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownStatePage`], [`DeviceError::StatePageBytes`]: nothing was copied. [`DeviceError::Lost`].
    fn read_state_page(&self, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Overwrites a state page with `bytes`, in the layout of the pool's [`StateLayout`], as little-endian f32.
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownStatePage`], [`DeviceError::StatePageBytes`]: nothing was written. [`DeviceError::Lost`].
    fn write_state_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Bytes that all pages of all groups and all state pages take on this device.
    fn size_bytes(&self) -> u64 {
        let groups = (0..self.spec().groups.len()).map(|group| GroupId(group as u32));
        let kv: u64 =
            groups.map(|group| self.page_bytes(group).saturating_mul(self.capacity(group) as u64)).sum();
        kv.saturating_add(self.state_page_bytes().saturating_mul(self.state_pages() as u64))
    }

    /// The pool as its own type, for the device that made it.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}
