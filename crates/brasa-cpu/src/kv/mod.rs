//! Pages of keys and values.
//!
//! Every page is one allocation, so a growing pool moves nothing and an untouched page costs nothing. The engine knows the
//! owners of pages. Within a step, rows write disjoint slots, which is checked before the step begins, and attention reads
//! after a barrier.
#![expect(unsafe_code, reason = "hands pages to threads that write disjoint slots")]

mod canonical;
pub(crate) mod layout;
mod read;
mod rotate;
mod states;
mod write;

pub(crate) use read::{CacheReader, ValueScales};
pub(crate) use states::StateColumns;

use std::any::Any;
use std::ops::Range;

use brasa_graph::device::{DeviceError, KvPool, KvPoolSpec};
use brasa_graph::page::PageLayout;
use brasa_graph::state::check_state_page;
use brasa_graph::step::{PAGE_POSITIONS, PageId};
use brasa_graph::{CacheSpec, GroupId};

use crate::memory::{Element, Memory};
use crate::simd::LANES;
use layout::TileLayout;
use states::States;

/// A pool of pages of keys and values in this machine's memory.
#[derive(Debug)]
pub struct CpuKvPool {
    spec: KvPoolSpec,
    groups: Vec<Group>,
    states: States,
}

#[derive(Debug)]
struct Group {
    layout: TileLayout,
    /// KV heads.
    heads: usize,
    page_bytes: usize,
    pages: Vec<Memory>,
}

impl CpuKvPool {
    pub(crate) fn new(spec: KvPoolSpec) -> Self {
        let groups = spec
            .groups
            .iter()
            .map(|group| {
                let CacheSpec { kv_heads: heads, key_dim, value, .. } = group.spec;
                let layout = TileLayout { dtype: spec.dtype, key_dim, value };
                let page_bytes = group.caches.len() * heads * layout.head_bytes();
                Group { layout, heads, page_bytes, pages: Vec::new() }
            })
            .collect();
        Self { groups, states: States::new(spec.states.clone()), spec }
    }

    /// Shares the pages with the threads of one run.
    pub(crate) fn share(&mut self) -> SharedKv<'_> {
        SharedKv { groups: &self.groups, states: &self.states }
    }
}

impl KvPool for CpuKvPool {
    fn spec(&self) -> &KvPoolSpec {
        &self.spec
    }

    fn capacity(&self, group: GroupId) -> usize {
        self.groups.get(group.0 as usize).map_or(0, |group| group.pages.len())
    }

    fn reserve(&mut self, group: GroupId, pages: usize) -> Result<(), DeviceError> {
        PageLayout::of(&self.spec, group)?;
        let Group { pages: known, page_bytes, .. } = &mut self.groups[group.0 as usize];
        add_pages(known, pages, *page_bytes, "KV pages")
    }

    fn page_bytes(&self, group: GroupId) -> u64 {
        self.groups.get(group.0 as usize).map_or(0, |group| group.page_bytes as u64)
    }

    fn prefault(&mut self, group: GroupId, page: PageId, bytes: Range<u64>) -> bool {
        let page = self.groups.get_mut(group.0 as usize).and_then(|group| group.pages.get_mut(page.index()));
        let Some(page) = page else { return false };
        let place =
            |byte: u64| usize::try_from(byte).map_or(page.len_bytes(), |byte| byte.min(page.len_bytes()));
        page.touch(place(bytes.start)..place(bytes.end));
        true
    }

    fn copy_page(
        &mut self,
        group: GroupId,
        from: PageId,
        to: PageId,
        positions: usize,
    ) -> Result<(), DeviceError> {
        PageLayout::of_page(self, group, from)?;
        PageLayout::of_page(self, group, to)?;
        let Group { layout, pages, .. } = &mut self.groups[group.0 as usize];
        // A page that is copied to itself is a copy already.
        if let Ok([from, to]) = pages.get_disjoint_mut([from.index(), to.index()]) {
            let heads = from.all_mut::<u8>().chunks_exact(layout.head_bytes());
            for (from, to) in heads.zip(to.all_mut::<u8>().chunks_exact_mut(layout.head_bytes())) {
                for bytes in layout.first_positions(positions.min(PAGE_POSITIONS)) {
                    to[bytes.clone()].copy_from_slice(&from[bytes]);
                }
            }
        }
        Ok(())
    }

    fn read_page(&self, group: GroupId, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let layout = PageLayout::of_bytes(self, group, page, bytes.len())?;
        let page = &self.groups[group.0 as usize].pages[page.index()];
        // SAFETY: threads write pages while `share` borrows the pool mutably, so not now.
        canonical::read(layout, unsafe { page.get(0..page.len_bytes()) }, bytes);
        Ok(())
    }

    fn write_page(&mut self, group: GroupId, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        let layout = PageLayout::of_bytes(self, group, page, bytes.len())?;
        let page = &mut self.groups[group.0 as usize].pages[page.index()];
        canonical::write(layout, page.all_mut(), bytes);
        Ok(())
    }

    fn state_pages(&self) -> usize {
        self.states.pages.len()
    }

    fn reserve_state_pages(&mut self, pages: usize) -> Result<(), DeviceError> {
        self.states.reserve(pages)
    }

    fn state_page_bytes(&self) -> u64 {
        self.states.layout.page_bytes() as u64
    }

    fn read_state_page(&self, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        check_state_page(self, page, bytes.len())?;
        self.states.read(page, bytes);
        Ok(())
    }

    fn write_state_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        check_state_page(self, page, bytes.len())?;
        self.states.write(page, bytes);
        Ok(())
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Adds pages of zeros until there are `count`; `what` names the pages in an error.
///
/// # Errors
///
/// [`DeviceError::OutOfMemory`]: no page was added.
fn add_pages(
    pages: &mut Vec<Memory>,
    count: usize,
    page_bytes: usize,
    what: &str,
) -> Result<(), DeviceError> {
    let before = pages.len();
    let more = count.saturating_sub(before);
    let refused = || DeviceError::OutOfMemory {
        bytes: (more as u64).saturating_mul(page_bytes as u64),
        what: format!("{more} {what}"),
    };
    pages.try_reserve(more).map_err(|_| refused())?;
    for _ in 0..more {
        let Some(page) = Memory::zeroed(page_bytes) else {
            pages.truncate(before);
            return Err(refused());
        };
        pages.push(page);
    }
    Ok(())
}

/// A pool while the threads of one run share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedKv<'a> {
    groups: &'a [Group],
    states: &'a States,
}

/// Pages for the keys and values of the rows of a step, which no cache keeps. Operations use the same, one after the other.
#[derive(Debug, Default)]
pub(crate) struct RowPages {
    size: RowPagesSize,
    pages: Vec<Memory>,
}

/// A number of pages, and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowPagesSize {
    /// Pages.
    pub pages: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
}

impl RowPagesSize {
    /// A size that is enough for both.
    pub(crate) fn max(self, other: Self) -> Self {
        let Self { pages, page_bytes } = self;
        Self { pages: pages.max(other.pages), page_bytes: page_bytes.max(other.page_bytes) }
    }

    /// Bytes of all pages.
    pub(crate) fn bytes(self) -> usize {
        self.pages * self.page_bytes
    }
}

impl RowPages {
    /// Makes room for what a step needs.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`] if the memory cannot be had.
    pub(crate) fn reserve(&mut self, needed: RowPagesSize) -> Result<(), DeviceError> {
        if needed.page_bytes > self.size.page_bytes {
            self.pages.clear();
            self.size = RowPagesSize { pages: 0, page_bytes: needed.page_bytes };
        }
        while self.pages.len() < needed.pages {
            let page = Memory::zeroed(self.size.page_bytes).ok_or_else(|| DeviceError::OutOfMemory {
                bytes: needed.bytes() as u64,
                what: "keys and values of the rows of a step".into(),
            })?;
            self.pages.push(page);
            self.size.pages += 1;
        }
        Ok(())
    }

    /// Bytes that are reserved.
    pub(crate) fn bytes(&self) -> usize {
        self.size.bytes()
    }

    /// Shares the pages with the threads of one run.
    pub(crate) fn share(&mut self) -> SharedRowPages<'_> {
        SharedRowPages { pages: &self.pages }
    }
}

/// [`RowPages`] while the threads of one run share them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedRowPages<'a> {
    pages: &'a [Memory],
}

impl<'a> SharedRowPages<'a> {
    /// The pages as those of one cache.
    pub(crate) fn view(self, layout: TileLayout, heads: usize) -> CacheView<'a> {
        CacheView { layout, pages: self.pages, offset: 0, heads }
    }
}

/// The pages of one cache, and their layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheView<'a> {
    pub layout: TileLayout,
    pages: &'a [Memory],
    /// Bytes of a page before this cache.
    offset: usize,
    heads: usize,
}

impl<'a> SharedKv<'a> {
    /// Cache number `place` of group `group`.
    pub(crate) fn cache(self, group: usize, place: usize) -> CacheView<'a> {
        let group = &self.groups[group];
        CacheView {
            layout: group.layout,
            pages: &group.pages,
            offset: place * group.heads * group.layout.head_bytes(),
            heads: group.heads,
        }
    }

    /// Bytes of one position of a cache of group `group`, keys and values.
    pub(crate) fn position_bytes(self, group: usize) -> usize {
        let group = &self.groups[group];
        group.heads * group.layout.head_bytes() / PAGE_POSITIONS
    }
}

impl<'a> CacheView<'a> {
    /// `len` elements of the tiles of `head` in `page`, beginning `offset_bytes` after their start.
    ///
    /// # Safety
    ///
    /// No thread writes the elements while the result lives.
    pub(crate) unsafe fn get<T: Element>(
        &self,
        page: u32,
        head: usize,
        offset_bytes: usize,
        len: usize,
    ) -> &'a [T] {
        let start = self.start::<T>(head, offset_bytes, len);
        // SAFETY: not written meanwhile by the caller's promise.
        unsafe { self.pages[page as usize].get(start..start + len) }
    }

    /// `len` elements of the tiles of `head` in `page` for writing, beginning `offset_bytes` after their start.
    ///
    /// # Safety
    ///
    /// No other view reads or writes the elements while the result lives.
    unsafe fn get_mut<T: Element>(
        &self,
        page: u32,
        head: usize,
        offset_bytes: usize,
        len: usize,
    ) -> &'a mut [T] {
        let start = self.start::<T>(head, offset_bytes, len);
        // SAFETY: exclusive by the caller's promise.
        unsafe { self.pages[page as usize].get_mut(start..start + len) }
    }

    /// Writes `elements` 16 places apart, which is one position of a key block.
    ///
    /// # Safety
    ///
    /// Nothing else reads or writes these places meanwhile.
    unsafe fn scatter<T: Element>(&self, page: u32, head: usize, offset_bytes: usize, elements: &[T]) {
        let start = self.start::<T>(head, offset_bytes, (elements.len() - 1) * LANES + 1);
        // SAFETY: exclusive by the caller's promise.
        unsafe { self.pages[page as usize].scatter(start, LANES, elements) };
    }

    fn start<T>(&self, head: usize, offset_bytes: usize, len: usize) -> usize {
        let bytes = offset_bytes + len * size_of::<T>();
        assert!(
            head < self.heads
                && bytes <= self.layout.head_bytes()
                && offset_bytes.is_multiple_of(size_of::<T>()),
            "{bytes} bytes of head {head} of {:?}",
            self.layout
        );
        (self.offset + head * self.layout.head_bytes() + offset_bytes) / size_of::<T>()
    }
}
