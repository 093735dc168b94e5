//! Paged keys and values, kept as the floats that their element type can hold.

use std::any::Any;

use crate::device::{DeviceError, KvPool, KvPoolSpec, KvType};
use crate::shift::KeyRotation;
use crate::step::{PAGE_POSITIONS, PageId, Step};
use crate::{CacheId, CacheSpec, Graph, GroupId};

use super::Kv;

impl KvType {
    /// What one head's key or value reads back as, once it was stored.
    ///
    /// `Q8`: blocks of 32 elements (the last may be shorter), each `q = round(x · 127/max|x|)`, half away from zero,
    /// and the scale `max|x|/127` rounded to f16; read back as `scale · q`.
    pub fn round_trip(self, head: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::F16 => head.iter_mut().for_each(|x| *x = half::f16::from_f32(*x).to_f32()),
            Self::BF16 => head.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32()),
            Self::Q8 => head.chunks_mut(32).for_each(q8_round_trip),
        }
    }
}

fn q8_round_trip(block: &mut [f32]) {
    let max = block.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let scale = half::f16::from_f32(max / 127.0).to_f32();
    let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
    for x in block {
        *x = (*x * inverse).round() * scale;
    }
}

/// Pages of the reference device.
pub struct ReferencePool {
    spec: KvPoolSpec,
    /// By group, by page: `[cache][K, V][G][256][E]`.
    pages: Vec<Vec<Vec<f32>>>,
}

impl ReferencePool {
    /// An empty pool.
    pub fn new(spec: KvPoolSpec) -> Self {
        Self { pages: vec![Vec::new(); spec.groups.len()], spec }
    }

    /// The keys and values that `step` sees.
    pub(crate) fn bind<'a>(&'a mut self, graph: &Graph, step: &'a Step) -> PagedKv<'a> {
        let places = (0..graph.caches.len()).map(|cache| graph.cache_place(CacheId(cache as u32))).collect();
        PagedKv { pool: self, places, step }
    }

    /// Turns the keys of one cache in a page.
    pub(super) fn turn(
        &mut self,
        group: GroupId,
        place: usize,
        page: PageId,
        rotation: &KeyRotation,
        angles: &[(f32, f32)],
    ) {
        let CacheSpec { kv_heads, head_dim, .. } = self.spec.groups[group.0 as usize].spec;
        let elements = kv_heads * PAGE_POSITIONS * head_dim;
        let page = &mut self.pages[group.0 as usize][page.index()];
        for key in page[place * 2 * elements..][..elements].chunks_exact_mut(head_dim) {
            for (pair, (cos, sin)) in angles.iter().enumerate() {
                let (first, second) = rotation.elements(pair);
                let (a, b) = (key[first], key[second]);
                key[first] = a * cos - b * sin;
                key[second] = a * sin + b * cos;
            }
            self.spec.dtype.round_trip(key);
        }
    }

    fn page_elements(&self, group: usize) -> usize {
        let CacheSpec { kv_heads, head_dim, .. } = self.spec.groups[group].spec;
        self.spec.groups[group].caches.len() * 2 * kv_heads * PAGE_POSITIONS * head_dim
    }
}

impl KvPool for ReferencePool {
    fn spec(&self) -> &KvPoolSpec {
        &self.spec
    }

    fn capacity(&self, group: GroupId) -> usize {
        self.pages[group.0 as usize].len()
    }

    fn reserve(&mut self, group: GroupId, pages: usize) -> Result<(), DeviceError> {
        let (index, elements) = (group.0 as usize, self.page_elements(group.0 as usize));
        let missing = pages.saturating_sub(self.pages[index].len());
        let refuse = || DeviceError::OutOfMemory {
            bytes: (missing as u64).saturating_mul(elements as u64 * 4),
            what: format!("{missing} KV pages of group {}", group.0),
        };
        let mut added: Vec<Vec<f32>> = Vec::new();
        added.try_reserve_exact(missing).map_err(|_| refuse())?;
        for _ in 0..missing {
            let mut page = Vec::new();
            page.try_reserve_exact(elements).map_err(|_| refuse())?;
            page.resize(elements, 0.0);
            added.push(page);
        }
        self.pages[index].append(&mut added);
        Ok(())
    }

    fn copy_page(&mut self, group: GroupId, from: PageId, to: PageId) {
        let pages = &mut self.pages[group.0 as usize];
        let copied = pages[from.index()].clone();
        pages[to.index()] = copied;
    }

    fn size_bytes(&self) -> u64 {
        self.pages.iter().flatten().map(|page| page.len() as u64 * 4).sum()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// A pool seen through one step's block tables.
pub(crate) struct PagedKv<'a> {
    pool: &'a mut ReferencePool,
    places: Vec<(GroupId, usize)>,
    step: &'a Step,
}

impl PagedKv<'_> {
    /// Where one position lives: group, page, and the offset of its first head's key.
    fn locate(&self, cache: CacheId, segment: usize, index: usize) -> (usize, usize, usize) {
        let (group, place) = self.places[cache.0 as usize];
        let group = group.0 as usize;
        let page = self.step.segments[segment].pages[group][index / PAGE_POSITIONS]
            .expect("the step's pages have been checked");
        let CacheSpec { kv_heads, head_dim, .. } = self.pool.spec.groups[group].spec;
        let cache_elements = 2 * kv_heads * PAGE_POSITIONS * head_dim;
        (group, page.index(), place * cache_elements + index % PAGE_POSITIONS * head_dim)
    }
}

impl Kv for PagedKv<'_> {
    fn write(&mut self, cache: CacheId, segment: usize, index: usize, k: &[f32], v: &[f32]) {
        let (group, page, start) = self.locate(cache, segment, index);
        let head_dim = self.pool.spec.groups[group].spec.head_dim;
        let dtype = self.pool.spec.dtype;
        let page = &mut self.pool.pages[group][page];
        for (head, values) in k.chunks_exact(head_dim).chain(v.chunks_exact(head_dim)).enumerate() {
            let stored = &mut page[start + head * PAGE_POSITIONS * head_dim..][..head_dim];
            stored.copy_from_slice(values);
            dtype.round_trip(stored);
        }
    }

    fn position_elements(&self, cache: CacheId) -> usize {
        let (group, _) = self.places[cache.0 as usize];
        let spec = self.pool.spec.groups[group.0 as usize].spec;
        spec.kv_heads * spec.head_dim
    }

    fn read(&self, cache: CacheId, segment: usize, index: usize, k: &mut [f32], v: &mut [f32]) {
        let (group, page, start) = self.locate(cache, segment, index);
        let head_dim = self.pool.spec.groups[group].spec.head_dim;
        let page = &self.pool.pages[group][page];
        for (head, out) in k.chunks_exact_mut(head_dim).chain(v.chunks_exact_mut(head_dim)).enumerate() {
            out.copy_from_slice(&page[start + head * PAGE_POSITIONS * head_dim..][..head_dim]);
        }
    }
}
