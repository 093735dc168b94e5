//! Costs of a text's keys and values on a device, in bytes.

use brasa_graph::device::KvPool;
use brasa_graph::step::PAGE_POSITIONS;
use brasa_graph::{CacheGroup, GroupId};

use crate::held_states::STATE_PAGES_PER_TEXT;
use crate::outlook::most_pages;

/// The number of pages that a text of a given length needs, and their bytes on the device of a pool.
#[derive(Clone, Debug)]
pub struct PageCosts {
    groups: Vec<CacheGroup>,
    /// Bytes of a page of each cache group. For a model with recurrent states, one more entry has the bytes of a state
    /// page.
    page_bytes: Vec<u64>,
    /// Most rows that are computed in one step.
    chunk: usize,
}

impl PageCosts {
    /// The costs of texts in `pool` that are computed in chunks of up to `chunk` rows.
    pub fn new(pool: &dyn KvPool, chunk: usize) -> Self {
        let groups = pool.spec().groups.clone();
        let caches = (0..groups.len()).map(|group| pool.page_bytes(GroupId(group as u32)));
        let states = (!pool.spec().states.is_empty()).then(|| pool.state_page_bytes());
        Self { groups, page_bytes: caches.chain(states).collect(), chunk }
    }

    /// Most bytes that the pages of a text of `positions` positions take on the device. A sliding window keeps no more than its own pages.
    pub fn bytes(&self, positions: usize) -> u64 {
        let pages = self.pages(positions).into_iter();
        let bytes = pages.zip(&self.page_bytes).map(|(pages, bytes)| bytes.saturating_mul(pages as u64));
        bytes.fold(0, u64::saturating_add)
    }

    /// Positions of the longest text, in whole pages, that `budget_bytes` hold, up to the page in which `positions` ends.
    pub fn longest(&self, budget_bytes: u64, positions: usize) -> usize {
        let (mut fits, mut beyond) = (0, positions.div_ceil(PAGE_POSITIONS) + 1);
        while fits + 1 < beyond {
            let middle = usize::midpoint(fits, beyond);
            let holds = self.bytes(middle * PAGE_POSITIONS) <= budget_bytes;
            *(if holds { &mut fits } else { &mut beyond }) = middle;
        }
        fits * PAGE_POSITIONS
    }

    /// Most pages of each cache group that a text of `positions` positions holds. For a model with recurrent states,
    /// one more entry has the number of state pages.
    pub(crate) fn pages(&self, positions: usize) -> Vec<usize> {
        let caches = self.groups.iter().map(|group| most_pages(group, positions, self.chunk));
        let states = (self.page_bytes.len() > self.groups.len()).then_some(if positions > 0 {
            STATE_PAGES_PER_TEXT
        } else {
            0
        });
        caches.chain(states).collect()
    }

    /// Bytes of a page of each group.
    pub(crate) fn page_bytes(&self) -> &[u64] {
        &self.page_bytes
    }
}
