//! Paged keys and values, kept in the canonical layout.

use std::any::Any;

use crate::device::{DeviceError, KvPool, KvPoolSpec};
use crate::page::{HeadBlock, PageLayout};
use crate::shift::KeyRotation;
use crate::state::check_state_page;
use crate::step::{PAGE_POSITIONS, PageId, Step};
use crate::{CacheId, Graph, GroupId, StateId, ValueWidth};

use super::Kv;
use super::kv_codec::{decode, encode};

/// Pages of the reference device, kept in the [canonical layout](mod@crate::page).
pub struct ReferencePool {
    spec: KvPoolSpec,
    groups: Vec<Group>,
    /// State pages: each holds all recurrent states, as [`StateLayout`](crate::StateLayout) places them.
    states: Vec<Vec<f32>>,
}

struct Group {
    layout: PageLayout,
    pages: Vec<Vec<u8>>,
}

impl ReferencePool {
    /// An empty pool.
    pub fn new(spec: KvPoolSpec) -> Self {
        let group = |group| Group { layout: PageLayout::new(group, spec.dtype), pages: Vec::new() };
        let groups = spec.groups.iter().map(group).collect();
        Self { spec, groups, states: Vec::new() }
    }

    /// The keys and values that `step` reads and writes.
    pub(crate) fn bind<'a>(&'a mut self, graph: &Graph, step: &'a Step) -> PagedKv<'a> {
        let places = (0..graph.caches.len()).map(|cache| graph.cache_place(CacheId(cache as u32))).collect();
        PagedKv { pool: self, places, step }
    }

    /// Rotates the keys of one cache in a page by `angles`, cosine and sine of each pair.
    pub(super) fn turn(
        &mut self,
        group: GroupId,
        place: usize,
        page: PageId,
        rotation: &KeyRotation,
        angles: &[(f32, f32)],
    ) {
        let Group { layout, pages } = &mut self.groups[group.0 as usize];
        let mut key = vec![0.0; layout.key_dim];
        for head in 0..layout.kv_heads {
            let start = layout.keys_offset(place, head);
            for slot in 0..PAGE_POSITIONS {
                let (elements, scales) = slot_mut(layout.keys(), &mut pages[page.index()][start..], slot);
                decode(layout.dtype, elements, scales, &mut key);
                for (pair, (cos, sin)) in angles.iter().enumerate() {
                    let (first, second) = rotation.elements(pair);
                    let (a, b) = (key[first], key[second]);
                    key[first] = a * cos - b * sin;
                    key[second] = a * sin + b * cos;
                }
                encode(layout.dtype, &key, elements, scales);
            }
        }
    }
}

impl KvPool for ReferencePool {
    fn spec(&self) -> &KvPoolSpec {
        &self.spec
    }

    fn capacity(&self, group: GroupId) -> usize {
        self.groups.get(group.0 as usize).map_or(0, |group| group.pages.len())
    }

    fn reserve(&mut self, group: GroupId, pages: usize) -> Result<(), DeviceError> {
        let page_bytes = PageLayout::of(&self.spec, group)?.size_bytes();
        let Group { pages: known, .. } = &mut self.groups[group.0 as usize];
        let missing = pages.saturating_sub(known.len());
        let refuse = || DeviceError::OutOfMemory {
            bytes: (missing as u64).saturating_mul(page_bytes as u64),
            what: format!("{missing} KV pages of group {}", group.0),
        };
        let mut added: Vec<Vec<u8>> = Vec::new();
        added.try_reserve_exact(missing).map_err(|_| refuse())?;
        for _ in 0..missing {
            let mut page = Vec::new();
            page.try_reserve_exact(page_bytes).map_err(|_| refuse())?;
            page.resize(page_bytes, 0);
            added.push(page);
        }
        known.append(&mut added);
        Ok(())
    }

    fn page_bytes(&self, group: GroupId) -> u64 {
        self.groups.get(group.0 as usize).map_or(0, |group| group.layout.size_bytes() as u64)
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
        let pages = &mut self.groups[group.0 as usize].pages;
        // A page that is copied to itself is a copy already.
        if let Ok([from, to]) = pages.get_disjoint_mut([from.index(), to.index()]) {
            to.copy_from_slice(from);
        }
        Ok(())
    }

    fn read_page(&self, group: GroupId, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        PageLayout::of_bytes(self, group, page, bytes.len())?;
        bytes.copy_from_slice(&self.groups[group.0 as usize].pages[page.index()]);
        Ok(())
    }

    fn write_page(&mut self, group: GroupId, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        PageLayout::of_bytes(self, group, page, bytes.len())?;
        self.groups[group.0 as usize].pages[page.index()].copy_from_slice(bytes);
        Ok(())
    }

    fn state_pages(&self) -> usize {
        self.states.len()
    }

    fn reserve_state_pages(&mut self, pages: usize) -> Result<(), DeviceError> {
        let (layout, missing) = (&self.spec.states, pages.saturating_sub(self.states.len()));
        let refuse = || DeviceError::OutOfMemory {
            bytes: (missing as u64).saturating_mul(layout.page_bytes() as u64),
            what: format!("{missing} state pages"),
        };
        let mut added: Vec<Vec<f32>> = Vec::new();
        added.try_reserve_exact(missing).map_err(|_| refuse())?;
        for _ in 0..missing {
            let mut page = Vec::new();
            page.try_reserve_exact(layout.page_elements()).map_err(|_| refuse())?;
            page.resize(layout.page_elements(), 0.0);
            added.push(page);
        }
        self.states.append(&mut added);
        Ok(())
    }

    fn state_page_bytes(&self) -> u64 {
        self.spec.states.page_bytes() as u64
    }

    fn read_state_page(&self, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        check_state_page(self, page, bytes.len())?;
        for (bytes, x) in bytes.chunks_exact_mut(4).zip(&self.states[page.index()]) {
            bytes.copy_from_slice(&x.to_le_bytes());
        }
        Ok(())
    }

    fn write_state_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        check_state_page(self, page, bytes.len())?;
        let (words, _) = bytes.as_chunks();
        for (x, &word) in self.states[page.index()].iter_mut().zip(words) {
            *x = f32::from_le_bytes(word);
        }
        Ok(())
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// The elements and the scales, as bytes, of slot number `slot` of the head block at the start of `bytes`.
fn slot_mut(layout: HeadBlock, bytes: &mut [u8], slot: usize) -> (&mut [u8], &mut [u8]) {
    let (slot_bytes, scales_bytes) = (layout.slot_bytes(), layout.scales_bytes());
    let block = &mut bytes[..layout.size_bytes()];
    let (elements, scales) = block.split_at_mut(PAGE_POSITIONS * slot_bytes);
    (&mut elements[slot * slot_bytes..][..slot_bytes], &mut scales[slot * scales_bytes..][..scales_bytes])
}

/// Like [`slot_mut`], for reading.
fn slot(layout: HeadBlock, bytes: &[u8], slot: usize) -> (&[u8], &[u8]) {
    let (slot_bytes, scales_bytes) = (layout.slot_bytes(), layout.scales_bytes());
    let block = &bytes[..layout.size_bytes()];
    let (elements, scales) = block.split_at(PAGE_POSITIONS * slot_bytes);
    (&elements[slot * slot_bytes..][..slot_bytes], &scales[slot * scales_bytes..][..scales_bytes])
}

/// The keys and values of a pool, by the block tables of one step.
pub(crate) struct PagedKv<'a> {
    pool: &'a mut ReferencePool,
    places: Vec<(GroupId, usize)>,
    step: &'a Step,
}

impl PagedKv<'_> {
    /// Place of one position of a cache: group, page, and the cache's place in the page.
    fn locate(&self, cache: CacheId, segment: usize, index: usize) -> (usize, usize, usize) {
        let (group, place) = self.places[cache.0 as usize];
        let group = group.0 as usize;
        let page = self.step.segments[segment].pages[group][index / PAGE_POSITIONS]
            .expect("the step's pages have been checked");
        (group, page.index(), place)
    }
}

impl Kv<f32> for PagedKv<'_> {
    fn write(&mut self, cache: CacheId, segment: usize, index: usize, k: &[f32], v: &[f32]) {
        let (group, page, place) = self.locate(cache, segment, index);
        let Group { layout, pages } = &mut self.pool.groups[group];
        let mut write = |block: HeadBlock, start: usize, x: &[f32]| {
            let (elements, scales) = slot_mut(block, &mut pages[page][start..], index % PAGE_POSITIONS);
            encode(layout.dtype, x, elements, scales);
        };
        for (head, k) in k.chunks_exact(layout.key_dim).enumerate() {
            write(layout.keys(), layout.keys_offset(place, head), k);
        }
        for (head, v) in v.chunks_exact(layout.value.stored().max(1)).enumerate() {
            write(layout.values(), layout.values_offset(place, head), v);
        }
    }

    fn position_elements(&self, cache: CacheId) -> [usize; 2] {
        let (group, _) = self.places[cache.0 as usize];
        let PageLayout { kv_heads, key_dim, value, .. } = self.pool.groups[group.0 as usize].layout;
        [kv_heads * key_dim, kv_heads * value.dim()]
    }

    fn read(&self, cache: CacheId, segment: usize, index: usize, k: &mut [f32], v: &mut [f32]) {
        let (group, page, place) = self.locate(cache, segment, index);
        let Group { layout, pages } = &self.pool.groups[group];
        let read = |block: HeadBlock, start: usize, x: &mut [f32]| {
            let (elements, scales) = slot(block, &pages[page][start..], index % PAGE_POSITIONS);
            decode(layout.dtype, elements, scales, x);
        };
        let heads = k.chunks_exact_mut(layout.key_dim).zip(v.chunks_exact_mut(layout.value.dim()));
        for (head, (k, v)) in heads.enumerate() {
            read(layout.keys(), layout.keys_offset(place, head), k);
            match layout.value {
                ValueWidth::Own(_) => read(layout.values(), layout.values_offset(place, head), v),
                ValueWidth::PrefixOfKey(width) => v.copy_from_slice(&k[..width]),
            }
        }
    }

    fn state(&self, state: StateId, segment: usize, elements: usize) -> Vec<f32> {
        match self.step.segments[segment].states.from {
            Some(page) => self.pool.states[page.index()][self.pool.spec.states.place(state)].to_vec(),
            None => vec![0.0; elements],
        }
    }

    fn set_states(&mut self, state: StateId, segment: usize, after: &[Vec<f32>]) {
        let place = self.pool.spec.states.place(state);
        for &(row, page) in &self.step.segments[segment].states.to {
            self.pool.states[page.index()][place.clone()].copy_from_slice(&after[row as usize]);
        }
    }
}
