//! Sources of free pages: the pool grows within its budget, memory is fetched ahead, and kept texts are given up.

use brasa_graph::GroupId;
use brasa_graph::device::DeviceError;
use brasa_graph::step::{PAGE_POSITIONS, PageId};

use super::{KvStore, pages_of_all};
use crate::EngineError;

/// Bytes of memory that are fetched before the engine checks for new requests.
const PREFAULT_BYTES: u64 = 4 << 20;

impl KvStore {
    /// Sets how much memory [`prefault`](Self::prefault) fetches: up to `bytes`, but no more than texts of `positions` positions
    /// take.
    pub(crate) fn with_ready(mut self, bytes: u64, positions: usize) -> Self {
        self.ready = pages_of_all(bytes, &self.page_bytes[..self.cache_groups()])
            .min(positions.div_ceil(PAGE_POSITIONS));
        self
    }

    /// Fetches some memory of a page, in a group with too few free pages that are ready. Returns false if nothing is to be
    /// fetched or the budget is used up.
    pub(crate) fn prefault(&mut self) -> bool {
        (0..self.cache_groups())
            .any(|group| self.groups[group].ready() < self.ready && self.prefault_in(group))
    }

    /// Fetches memory after a step that wrote `rows` positions while `texts` texts are active, if fewer pages are ready than the
    /// texts may need next. Fetches slightly more than the step wrote. So the system's time is spread over many steps, instead of
    /// delaying one step that needs a whole new page.
    pub(crate) fn keep_up(&mut self, rows: usize, texts: usize) {
        let enough = self.ready.min(texts / 4 + 1);
        for group in 0..self.cache_groups() {
            if self.groups[group].ready() >= enough {
                continue;
            }
            let page = self.page_bytes[group];
            let piece = page.min(PREFAULT_BYTES);
            self.owed[group] += (rows as u64).saturating_mul(page) / PAGE_POSITIONS as u64 * 3 / 2;
            while self.owed[group] >= piece {
                self.owed[group] -= piece;
                if self.groups[group].ready() >= enough || !self.prefault_in(group) {
                    self.owed[group] = 0;
                    break;
                }
            }
        }
    }

    /// Fetches some memory of the next page of `group`; false if it has none and cannot grow.
    fn prefault_in(&mut self, group: usize) -> bool {
        let id = GroupId(group as u32);
        let exist = self.groups[group].total();
        if self.groups[group].untouched().is_none() && self.affordable(group) > 0 {
            if self.pool.reserve(id, exist + 1).is_err() {
                return false;
            }
            self.groups[group].grow(exist + 1);
        }
        let Some(page) = self.groups[group].untouched() else { return false };
        // A step may have taken the page that was begun.
        let begun = self.fetched.filter(|&(begun, _)| begun == (id, page)).map_or(0, |(_, bytes)| bytes);
        let end = (begun + PREFAULT_BYTES).min(self.page_bytes[group]);
        if !self.pool.prefault(id, page, begun..end) {
            return false;
        }
        self.fetched = Some(((id, page), end));
        if end == self.page_bytes[group] {
            self.groups[group].touch();
        }
        true
    }

    /// A free page of `group`. If there is none, the pool grows within the budget, then kept prefixes are given up.
    pub(super) fn take(&mut self, group: usize) -> Result<PageId, EngineError> {
        loop {
            if let Some(page) = self.groups[group].take() {
                return Ok(page);
            }
            let exist = self.groups[group].total();
            match self.grow(group) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(DeviceError::OutOfMemory { .. }) if exist > 0 => {}
                Err(error) => return Err(error.into()),
            }
            let is_state = self.state_group() == Some(group);
            let gave_up = if is_state { self.prefixes.give_up_states(&mut self.groups) } else { false };
            if !gave_up && !self.prefixes.give_up(&mut self.groups) {
                return Err(EngineError::CacheFull { pages: exist, budget_bytes: self.budget_bytes });
            }
        }
    }

    /// Takes a page of `group` that is free or for which the budget has room. Gives up no kept text; `None` if there is
    /// no such page.
    pub(super) fn take_spare(&mut self, group: usize) -> Option<PageId> {
        self.groups[group].take().or_else(|| match self.grow(group) {
            Ok(true) => self.groups[group].take(),
            _ => None,
        })
    }

    /// Adds pages to `group` if the budget has room for any; returns true if it has.
    fn grow(&mut self, group: usize) -> Result<bool, DeviceError> {
        let exist = self.groups[group].total();
        // Grown by a quarter, so that a long text does not copy or fault page by page.
        let more = self.affordable(group).min(exist / 4 + 1);
        if more > 0 {
            if self.state_group() == Some(group) {
                self.pool.reserve_state_pages(exist + more)?;
            } else {
                self.pool.reserve(GroupId(group as u32), exist + more)?;
            }
            self.groups[group].grow(exist + more);
        }
        Ok(more > 0)
    }

    /// Pages of `group` that the budget still has room for, beside those that are reserved for other groups.
    fn affordable(&self, group: usize) -> usize {
        let others = (0..self.groups.len()).filter(|&other| other != group);
        let kept = others.map(|other| {
            self.reserved[other].saturating_sub(self.groups[other].total()) as u64 * self.page_bytes[other]
        });
        let left = self.growth_bytes().saturating_sub(kept.sum());
        usize::try_from(left / self.page_bytes[group].max(1)).unwrap_or(usize::MAX)
    }

    /// Bytes that the budget leaves for pages that do not exist yet.
    pub(super) fn growth_bytes(&self) -> u64 {
        let exist: u64 =
            self.groups.iter().zip(&self.page_bytes).map(|(pages, bytes)| pages.total() as u64 * bytes).sum();
        self.budget_bytes.saturating_sub(exist)
    }
}
