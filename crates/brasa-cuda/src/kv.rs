//! Pages of keys and values in device memory.
//!
//! Pages are allocated in slabs, each as many as a call asks for; a step names its pages by address, so growing moves
//! nothing. A page lies in memory as the contract's canonical layout says ([`brasa_graph::page`]): for each cache of
//! its group, the keys of each KV head and then the values of each, `[256][E]` elements a head; q8 keeps a scale (f16)
//! per 32 elements behind a head's elements, `[256][⌈E/32⌉]`. Values that are the first elements of keys have no place
//! of their own: kernels read the keys. One thing differs from the canonical layout: pieces of eight halves are
//! permuted within a position, as tensor cores want them (`kernels/plain/kv.cuh`). They are put in order when a page is
//! read or written.
#![expect(unsafe_code, reason = "copies within device memory")]

use std::any::Any;
use std::sync::Arc;

use brasa_graph::device::{DeviceError, KvPool, KvPoolSpec, KvType};
use brasa_graph::page::{HeadBlock, PageLayout};
use brasa_graph::state::check_state_page;
use brasa_graph::step::{PAGE_POSITIONS, PageId};
use brasa_graph::{GroupId, ValueWidth};

use crate::driver::DeviceMemory;
use crate::gpu::Gpu;
use crate::params::{CachePages, Ptr};

/// Pages on one GPU.
#[derive(Debug)]
pub struct CudaKvPool {
    gpu: Arc<Gpu>,
    spec: KvPoolSpec,
    groups: Vec<Group>,
    /// State pages.
    states: Slabs,
}

#[derive(Debug)]
struct Group {
    layout: PageLayout,
    /// Bytes of a page.
    page_bytes: usize,
    slabs: Slabs,
}

/// Pages of one size, and the slabs of memory that hold them.
#[derive(Debug, Default)]
struct Slabs {
    /// Addresses of pages.
    pages: Vec<u64>,
    slabs: Vec<DeviceMemory>,
}

impl Slabs {
    /// Adds a slab of pages of zeros, so that there are at least `count` pages; `what` names the pages in an error.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Lost`]: no page was added.
    fn grow(&mut self, gpu: &Gpu, count: usize, page_bytes: usize, what: &str) -> Result<(), DeviceError> {
        let more = count.saturating_sub(self.pages.len());
        if more == 0 {
            return Ok(());
        }
        let what = format!("{more} {what}");
        let refused = |each: usize| DeviceError::OutOfMemory {
            bytes: (more as u64).saturating_mul(each as u64),
            what: what.clone(),
        };
        let bytes = more.checked_mul(page_bytes).filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or_else(|| refused(page_bytes))?;
        self.pages.try_reserve(more).map_err(|_| refused(size_of::<u64>()))?;
        let slab = gpu.allocate(bytes, &what)?;
        // Kernels may read positions behind the last, whose weight is 0: they hold finite numbers.
        // SAFETY: the slab is that large.
        unsafe { gpu.stream.clear(slab.address(), bytes) }.map_err(|error| gpu.error(error))?;
        self.pages.extend((0..more).map(|number| slab.address() + (number * page_bytes) as u64));
        self.slabs.push(slab);
        Ok(())
    }
}

impl CudaKvPool {
    pub(crate) fn new(gpu: &Arc<Gpu>, spec: KvPoolSpec) -> Self {
        let group = |group: &brasa_graph::CacheGroup| {
            let layout = PageLayout::new(group, spec.dtype);
            Group { layout, page_bytes: layout.size_bytes(), slabs: Slabs::default() }
        };
        let groups = spec.groups.iter().map(group).collect();
        Self { gpu: Arc::clone(gpu), groups, spec, states: Slabs::default() }
    }

    /// True if the pages are in the memory of `gpu`.
    pub(crate) fn is_on(&self, gpu: &Gpu) -> bool {
        Arc::ptr_eq(&self.gpu.context, &gpu.context)
    }

    /// The address of page `page` of group `group`; 0 for a page that does not exist, which a block table may name where no row looks.
    pub(crate) fn address(&self, group: usize, page: PageId) -> u64 {
        self.groups[group].slabs.pages.get(page.index()).copied().unwrap_or(0)
    }

    /// Cache number `place` of group `group`, whose pages a step names at `pages` and `starts`.
    pub(crate) fn cache(&self, group: usize, place: usize, pages: Ptr<u64>, starts: Ptr<u32>) -> CachePages {
        let Group { layout, .. } = self.groups[group];
        let (keys, values) = (layout.keys(), layout.values());
        let (values, values_bytes) = match layout.value {
            ValueWidth::Own(_) => (values, layout.values_offset(0, 0)),
            ValueWidth::PrefixOfKey(_) => (keys, 0),
        };
        CachePages {
            pages,
            starts,
            offset_bytes: layout.keys_offset(place, 0) as u64,
            kv_heads: layout.kv_heads as u32,
            head_dim: keys.width as u32,
            head_bytes: keys.size_bytes() as u32,
            values_bytes: values_bytes as u32,
            value_bytes: values.size_bytes() as u32,
            value_row: values.width as u32,
        }
    }

    /// True if there are state pages.
    pub(crate) fn has_states(&self) -> bool {
        !self.spec.states.is_empty()
    }

    /// The address of a state page; 0 for none.
    pub(crate) fn state_address(&self, page: Option<PageId>) -> u64 {
        page.and_then(|page| self.states.pages.get(page.index())).copied().unwrap_or(0)
    }

    /// Bytes of one position of one cache of group `group`, keys and values.
    pub(crate) fn position_bytes(&self, group: usize) -> u64 {
        (self.groups[group].layout.cache_bytes() / PAGE_POSITIONS) as u64
    }
}

impl KvPool for CudaKvPool {
    fn spec(&self) -> &KvPoolSpec {
        &self.spec
    }

    fn capacity(&self, group: GroupId) -> usize {
        self.groups.get(group.0 as usize).map_or(0, |group| group.slabs.pages.len())
    }

    fn reserve(&mut self, group: GroupId, pages: usize) -> Result<(), DeviceError> {
        PageLayout::of(&self.spec, group)?;
        let Group { slabs, page_bytes, .. } = &mut self.groups[group.0 as usize];
        slabs.grow(&self.gpu, pages, *page_bytes, "KV pages")
    }

    fn page_bytes(&self, group: GroupId) -> u64 {
        self.groups.get(group.0 as usize).map_or(0, |group| group.page_bytes as u64)
    }

    fn copy_page(
        &mut self,
        group: GroupId,
        from: PageId,
        to: PageId,
        _positions: usize,
    ) -> Result<(), DeviceError> {
        PageLayout::of_page(self, group, from)?;
        PageLayout::of_page(self, group, to)?;
        if from == to {
            return Ok(());
        }
        let group = &self.groups[group.0 as usize];
        let (from, to) = (group.slabs.pages[from.index()], group.slabs.pages[to.index()]);
        // SAFETY: two different pages of this pool, `page_bytes` each.
        let copied = unsafe { self.gpu.stream.copy(to, from, group.page_bytes) };
        copied.map_err(|error| self.gpu.error(error))
    }

    fn read_page(&self, group: GroupId, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        PageLayout::of_bytes(self, group, page, bytes.len())?;
        // SAFETY: a page of this pool, which has that many bytes.
        let copied = unsafe { self.gpu.stream.download(bytes, self.address(group.0 as usize, page)) };
        copied.map_err(|error| self.gpu.error(error))?;
        permute_pieces(self.groups[group.0 as usize].layout, bytes);
        Ok(())
    }

    fn write_page(&mut self, group: GroupId, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        PageLayout::of_bytes(self, group, page, bytes.len())?;
        let address = self.address(group.0 as usize, page);
        let mut bytes = bytes.to_vec();
        permute_pieces(self.groups[group.0 as usize].layout, &mut bytes);
        // SAFETY: a page of this pool, which has that many bytes; `bytes` outlives the wait.
        let copied = unsafe { self.gpu.stream.upload(address, &bytes) };
        copied.and_then(|()| self.gpu.stream.synchronize()).map_err(|error| self.gpu.error(error))
    }

    fn state_pages(&self) -> usize {
        self.states.pages.len()
    }

    fn reserve_state_pages(&mut self, pages: usize) -> Result<(), DeviceError> {
        self.states.grow(&self.gpu, pages, self.spec.states.page_bytes(), "state pages")
    }

    fn state_page_bytes(&self) -> u64 {
        self.spec.states.page_bytes() as u64
    }

    fn read_state_page(&self, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        check_state_page(self, page, bytes.len())?;
        // SAFETY: a page of this pool, which has that many bytes.
        let copied = unsafe { self.gpu.stream.download(bytes, self.states.pages[page.index()]) };
        copied.map_err(|error| self.gpu.error(error))
    }

    fn write_state_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        check_state_page(self, page, bytes.len())?;
        // SAFETY: a page of this pool, which has that many bytes; `bytes` outlives the wait.
        let copied = unsafe { self.gpu.stream.upload(self.states.pages[page.index()], bytes) };
        copied.and_then(|()| self.gpu.stream.synchronize()).map_err(|error| self.gpu.error(error))
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Swaps the pieces of eight halves of each position of a page, from the canonical order to the device's or back: piece *c* of position
/// *p* and piece *c* ^ (*p* mod S), S being the largest power of two up to 8 that divides the number of pieces.
fn permute_pieces(layout: PageLayout, bytes: &mut [u8]) {
    for cache in bytes.chunks_exact_mut(layout.cache_bytes().max(1)) {
        let (keys, values) = cache.split_at_mut(layout.values_offset(0, 0));
        permute_block(layout.keys(), keys);
        permute_block(layout.values(), values);
    }
}

/// Swaps the pieces of eight halves in head blocks: the keys of all heads of one cache, or their values.
fn permute_block(HeadBlock { dtype, width }: HeadBlock, bytes: &mut [u8]) {
    if !matches!(dtype, KvType::F16 | KvType::BF16) || width == 0 || !width.is_multiple_of(8) {
        return;
    }
    let span = (1 << (width / 8).trailing_zeros()).min(8);
    // Heads are 256 positions each, so positions count on from head to head.
    for (position, slot) in bytes.chunks_exact_mut(width * 2).enumerate() {
        let (pieces, _) = slot.as_chunks_mut::<16>();
        for piece in 0..pieces.len() {
            let other = piece ^ (position % span);
            if piece < other {
                pieces.swap(piece, other);
            }
        }
    }
}
