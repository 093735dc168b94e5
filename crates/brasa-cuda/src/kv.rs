//! Pages of keys and values in device memory.
//!
//! Pages are allocated in slabs, each as many as a call asks for; a step names its pages by address, so growing moves nothing.
//! A page holds, for each cache of its group, the keys of each KV head and then the values of each, `[256][E]` elements a head;
//! q8 keeps a scale (f16) per 32 elements behind a head's elements, `[256][⌈E/32⌉]`.
#![expect(unsafe_code, reason = "copies within device memory")]

use std::any::Any;
use std::sync::Arc;

use brasa_graph::GroupId;
use brasa_graph::device::{DeviceError, KvPool, KvPoolSpec, KvType};
use brasa_graph::step::{PAGE_POSITIONS, PageId};

use crate::driver::DeviceMemory;
use crate::gpu::Gpu;
use crate::params::{CachePages, Ptr};

/// Pages on one GPU.
#[derive(Debug)]
pub struct CudaKvPool {
    gpu: Arc<Gpu>,
    spec: KvPoolSpec,
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    kv_heads: usize,
    head_dim: usize,
    /// Bytes of one head's keys, or values, in a page.
    head_bytes: usize,
    /// Bytes of a page.
    page_bytes: usize,
    /// Addresses of pages.
    pages: Vec<u64>,
    slabs: Vec<DeviceMemory>,
}

impl CudaKvPool {
    pub(crate) fn new(gpu: &Arc<Gpu>, spec: KvPoolSpec) -> Self {
        let group = |group: &brasa_graph::CacheGroup| {
            let (kv_heads, head_dim) = (group.spec.kv_heads, group.spec.head_dim);
            let head_bytes = PAGE_POSITIONS.saturating_mul(position_bytes(spec.dtype, head_dim));
            let heads = group.caches.len().saturating_mul(2).saturating_mul(kv_heads);
            Group {
                kv_heads,
                head_dim,
                head_bytes,
                page_bytes: heads.saturating_mul(head_bytes),
                pages: Vec::new(),
                slabs: Vec::new(),
            }
        };
        Self { gpu: Arc::clone(gpu), groups: spec.groups.iter().map(group).collect(), spec }
    }

    /// True where the pages are in the memory of `gpu`.
    pub(crate) fn is_on(&self, gpu: &Gpu) -> bool {
        Arc::ptr_eq(&self.gpu.context, &gpu.context)
    }

    /// The address of page `page` of group `group`.
    pub(crate) fn address(&self, group: usize, page: PageId) -> u64 {
        self.groups[group].pages[page.index()]
    }

    /// Cache number `place` of group `group`, whose pages a step names at `pages` and `starts`.
    pub(crate) fn cache(&self, group: usize, place: usize, pages: Ptr<u64>, starts: Ptr<u32>) -> CachePages {
        let Group { kv_heads, head_dim, head_bytes, .. } = self.groups[group];
        CachePages {
            pages,
            starts,
            offset_bytes: (place * 2 * kv_heads * head_bytes) as u64,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            head_bytes: head_bytes as u32,
        }
    }

    /// The number of the element type, as operations order their kernels: f32, f16, bf16, q8.
    pub(crate) fn type_number(&self) -> usize {
        match self.spec.dtype {
            KvType::F32 => 0,
            KvType::F16 => 1,
            KvType::BF16 => 2,
            KvType::Q8 => 3,
        }
    }

    /// Bytes of one position of one cache of group `group`, keys and values.
    pub(crate) fn position_bytes(&self, group: usize) -> u64 {
        let Group { kv_heads, head_bytes, .. } = self.groups[group];
        (2 * kv_heads * head_bytes / PAGE_POSITIONS) as u64
    }
}

impl KvPool for CudaKvPool {
    fn spec(&self) -> &KvPoolSpec {
        &self.spec
    }

    fn capacity(&self, group: GroupId) -> usize {
        self.groups.get(group.0 as usize).map_or(0, |group| group.pages.len())
    }

    fn reserve(&mut self, group: GroupId, pages: usize) -> Result<(), DeviceError> {
        let count = self.groups.len();
        let Some(group) = self.groups.get_mut(group.0 as usize) else {
            return Err(DeviceError::BadStep {
                what: format!("cache group {} of a pool with {count}", group.0),
            });
        };
        let more = pages.saturating_sub(group.pages.len());
        if more == 0 {
            return Ok(());
        }
        let what = format!("{more} KV pages");
        let bytes = more.checked_mul(group.page_bytes).filter(|&bytes| isize::try_from(bytes).is_ok());
        let refused = || DeviceError::OutOfMemory {
            bytes: (more as u64).saturating_mul(group.page_bytes as u64),
            what: what.clone(),
        };
        let bytes = bytes.ok_or_else(refused)?;
        group.pages.try_reserve(more).map_err(|_| DeviceError::OutOfMemory {
            bytes: (more as u64).saturating_mul(8),
            what: what.clone(),
        })?;
        let slab = self.gpu.allocate(bytes, &what)?;
        let page = |number: usize| slab.address() + (number * group.page_bytes) as u64;
        group.pages.extend((0..more).map(page));
        group.slabs.push(slab);
        Ok(())
    }

    fn copy_page(&mut self, group: GroupId, from: PageId, to: PageId) {
        let group = &self.groups[group.0 as usize];
        if from == to {
            return;
        }
        let (from, to) = (group.pages[from.index()], group.pages[to.index()]);
        // SAFETY: two different pages of this pool, `page_bytes` each.
        let copied = unsafe { self.gpu.stream.copy(to, from, group.page_bytes) };
        // A device that cannot copy fails the next step, which reports it.
        let _ = copied;
    }

    fn size_bytes(&self) -> u64 {
        self.groups.iter().map(|group| (group.page_bytes * group.pages.len()) as u64).sum()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Bytes of one position of one head.
fn position_bytes(dtype: KvType, head_dim: usize) -> usize {
    match dtype {
        KvType::F32 => head_dim.saturating_mul(4),
        KvType::F16 | KvType::BF16 => head_dim.saturating_mul(2),
        KvType::Q8 => head_dim.saturating_add(head_dim.div_ceil(32) * 2),
    }
}
