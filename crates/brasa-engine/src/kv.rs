//! The pages that hold the keys and values of sequences, within a budget of bytes.

mod growth;
mod sharing;
mod states;

use std::ops::Range;

use brasa_graph::GroupId;
use brasa_graph::device::{DeviceError, KvPool};
use brasa_graph::step::{BlockTable, PAGE_POSITIONS, PageId, SequenceId};

use crate::held_states::{STATE_PAGES_PER_TEXT, interval_pages};
use crate::outlook::Outlook;
use crate::page_costs::PageCosts;
use crate::pages::Pages;
use crate::prefix::Prefixes;
use crate::sequence::{Sequence, oldest_page};
use crate::{CacheScope, EngineError, EngineStats};

/// The pool of KV pages, the number of holders of each page, and the budget.
pub(crate) struct KvStore {
    pool: Box<dyn KvPool>,
    /// The pages of each cache group and, for a model with recurrent states, the state pages as one more group.
    groups: Vec<Pages>,
    /// Distance between two lengths of a text whose states are kept, in pages of 256 tokens.
    interval_pages: usize,
    /// Number of further state pages that a text needs in chains, beside those for plain steps.
    spares: usize,
    /// Bytes that a page of each group takes on the device.
    page_bytes: Vec<u64>,
    /// Most bytes of pages of all groups.
    budget_bytes: u64,
    /// Pages of each group that are reserved for the longest text that the budget can hold. Pages never move between groups, so
    /// no other group may grow into this reserve.
    reserved: Vec<usize>,
    /// Number of free pages of each group whose memory is to be fetched ahead.
    ready: usize,
    /// The page whose memory is being fetched, and the bytes of it that have been.
    fetched: Option<((GroupId, PageId), u64)>,
    /// Bytes of each group that are still to be fetched after steps.
    owed: Vec<u64>,
    /// The kept beginnings of texts that have ended.
    prefixes: Prefixes,
    next_id: u64,
}

impl KvStore {
    /// A store over an empty pool that grows to `budget_bytes` of pages, and keeps `prefix_bytes` of them for texts that
    /// begin alike. Texts have up to `context` positions and are computed in chunks of up to `chunk` rows.
    pub(crate) fn new(
        pool: Box<dyn KvPool>,
        budget_bytes: u64,
        prefix_bytes: u64,
        context: usize,
        chunk: usize,
    ) -> Self {
        let costs = PageCosts::new(&*pool, chunk);
        let reserved = costs.pages(costs.longest(budget_bytes, context));
        let page_bytes = costs.page_bytes().to_vec();
        let groups = page_bytes.iter().map(|_| Pages::default()).collect();
        let interval_pages = interval_pages(pool.state_page_bytes(), &page_bytes[..pool.spec().groups.len()]);
        let prefixes = Prefixes::new(prefix_bytes, &page_bytes, pool.spec().groups.len(), interval_pages);
        let owed = vec![0; page_bytes.len()];
        Self {
            pool,
            groups,
            interval_pages,
            spares: 1,
            page_bytes,
            budget_bytes,
            reserved,
            ready: 0,
            fetched: None,
            owed,
            prefixes,
            next_id: 0,
        }
    }

    /// Sets the number of further state pages that each text needs in chains, beside those for plain steps; at least 1.
    pub(crate) fn with_spare_state_pages(mut self, spares: usize) -> Self {
        self.spares = spares.max(1);
        self
    }

    /// Number of cache groups.
    pub(super) fn cache_groups(&self) -> usize {
        self.pool.spec().groups.len()
    }

    /// The pool, for a program to run on.
    pub(crate) fn pool(&mut self) -> &mut dyn KvPool {
        &mut *self.pool
    }

    /// An empty sequence in `scope`.
    pub(crate) fn empty(&mut self, scope: CacheScope) -> Sequence {
        let tables = vec![BlockTable::new(); self.cache_groups()];
        Sequence {
            id: self.new_id(),
            scope,
            tokens: Vec::new(),
            tables,
            states: Box::default(),
            shifted_from: None,
            may_return_to: None,
            private: false,
        }
    }

    fn new_id(&mut self) -> SequenceId {
        self.next_id += 1;
        SequenceId(self.next_id)
    }

    /// Makes the next `rows` positions of `sequence` writable: their pages exist and have no other holder. Releases pages beyond
    /// these positions.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`]. The sequence's keys and values are unchanged.
    pub(crate) fn prepare(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), EngineError> {
        self.prepare_states(sequence)?;
        self.prepare_more(sequence, rows)
    }

    /// Like [`prepare`](Self::prepare), for a sequence whose next step is composed already. Leaves state pages as they
    /// are.
    ///
    /// # Errors
    ///
    /// Errors of [`prepare`](Self::prepare).
    pub(crate) fn prepare_more(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), EngineError> {
        let length = sequence.tokens.len();
        let pages = (length + rows).div_ceil(PAGE_POSITIONS);
        for group in 0..self.cache_groups() {
            self.own(sequence, group, length / PAGE_POSITIONS)?;
            while sequence.tables[group].len() < pages {
                let page = self.take(group)?;
                sequence.tables[group].push(Some(page));
            }
            for page in sequence.tables[group].drain(pages..).flatten() {
                self.groups[group].release(page);
            }
        }
        Ok(())
    }

    /// Records that the keys and values of `tokens` have been written, and releases pages that no later row of
    /// the sequence sees.
    pub(crate) fn commit(&mut self, sequence: &mut Sequence, tokens: &[u32]) {
        self.commit_states(sequence, sequence.tokens.len(), tokens.len());
        sequence.tokens.extend_from_slice(tokens);
        let stays = sequence.may_return_to.unwrap_or(usize::MAX).min(sequence.tokens.len());
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let Some(window) = self.pool.spec().groups[group].spec.window else { continue };
            let unseen = stays.saturating_sub(window) / PAGE_POSITIONS;
            for entry in &mut table[..unseen] {
                if let Some(page) = entry.take() {
                    self.groups[group].release(page);
                }
            }
        }
    }

    /// Forgets everything from index `length` on; returns the length that is left.
    ///
    /// Nothing is left if a window group no longer holds the positions that the next row would see. A model with
    /// recurrent states falls back to the largest length, up to `length`, whose states are kept.
    pub(crate) fn truncate(&mut self, sequence: &mut Sequence, length: usize) -> usize {
        let kept = self.resumable(sequence, length);
        sequence.tokens.truncate(kept);
        sequence.shifted_from = sequence.shifted_from.filter(|&from| from < kept);
        for (table, pages) in sequence.tables.iter_mut().zip(&mut self.groups) {
            for page in table.drain(kept.div_ceil(PAGE_POSITIONS).min(table.len())..).flatten() {
                pages.release(page);
            }
        }
        self.truncate_states(sequence, kept);
        kept
    }

    /// The length that [`truncate`](Self::truncate) would keep.
    pub(crate) fn resumable(&self, sequence: &Sequence, length: usize) -> usize {
        let is_held = |length: usize| {
            sequence.tables.iter().zip(&self.pool.spec().groups).all(|(table, group)| {
                let oldest = oldest_page(group, length);
                table.iter().take(length.div_ceil(PAGE_POSITIONS)).skip(oldest).all(Option::is_some)
            })
        };
        let length = length.min(sequence.tokens.len());
        if self.state_group().is_none() {
            return if is_held(length) { length } else { 0 };
        }
        let lengths = sequence.states.kept().iter().rev().map(|state| state.length);
        lengths.filter(|&kept| kept <= length).find(|&length| is_held(length)).unwrap_or(0)
    }

    /// The pages and their holders, as numbers for the scheduler.
    pub(crate) fn outlook(&self) -> Outlook<'_> {
        Outlook {
            groups: &self.pool.spec().groups,
            totals: self.groups.iter().map(Pages::total).collect(),
            page_bytes: &self.page_bytes,
            growth_bytes: self.growth_bytes(),
            prefixes: &self.prefixes,
            active: self.groups.iter().map(|pages| vec![false; pages.total()]).collect(),
            states_per_text: self.state_group().map(|_| STATE_PAGES_PER_TEXT - 1 + self.spares),
        }
    }

    /// Bytes of one state page; `None` for a model without recurrent states.
    pub(crate) fn state_page_bytes(&self) -> Option<usize> {
        self.state_group().map(|_| self.pool.spec().states.page_bytes())
    }

    /// The first page of each cache group that is visible to the row at index `length`.
    pub(crate) fn oldest_pages(&self, length: usize) -> Vec<usize> {
        self.pool.spec().groups.iter().map(|group| oldest_page(group, length)).collect()
    }

    /// Appends a page with the contents `bytes` to `sequence`: to the block table of cache group `group`, or, if
    /// `state_at` is given, to the kept states. `state_at` is the length of text behind which the page's states are.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`]. The sequence's pages are unchanged.
    pub(crate) fn append_page(
        &mut self,
        sequence: &mut Sequence,
        group: usize,
        state_at: Option<usize>,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        if let Some(length) = state_at {
            return self.append_state(sequence, length, bytes);
        }
        let page = self.take(group)?;
        if let Err(error) = self.pool.write_page(GroupId(group as u32), page, bytes) {
            self.groups[group].release(page);
            return Err(error.into());
        }
        sequence.tables[group].push(Some(page));
        Ok(())
    }

    /// Drops the tokens of `pages` of `sequence`, and lets `turn` move the keys behind them. The moved pages become the sequence's
    /// own. Returns false if a window group no longer holds the positions that the next row would see; nothing has changed then.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], the errors of `turn`; nothing changed then.
    pub(crate) fn shift(
        &mut self,
        sequence: &mut Sequence,
        pages: Range<usize>,
        turn: impl FnOnce(&mut dyn KvPool, &[Vec<PageId>]) -> Result<(), DeviceError>,
    ) -> Result<bool, EngineError> {
        let length = sequence.tokens.len() - pages.len() * PAGE_POSITIONS;
        let held = sequence.tables.iter().zip(&self.pool.spec().groups).all(|(table, group)| {
            let oldest = group.spec.window.map_or(0, |window| (length + 1).saturating_sub(window));
            let left = table[..pages.start].iter().chain(&table[pages.end..]);
            left.take(length.div_ceil(PAGE_POSITIONS)).skip(oldest / PAGE_POSITIONS).all(Option::is_some)
        });
        if !held {
            return Ok(false);
        }
        for group in 0..self.cache_groups() {
            for entry in pages.end..sequence.tables[group].len() {
                self.own(sequence, group, entry)?;
            }
        }
        let moved: Vec<Vec<PageId>> = sequence
            .tables
            .iter()
            .map(|table| table[pages.end..].iter().flatten().copied().collect())
            .collect();
        turn(&mut *self.pool, &moved)?;
        for (table, group) in sequence.tables.iter_mut().zip(&mut self.groups) {
            for page in table.drain(pages.clone()).flatten() {
                group.release(page);
            }
        }
        let begin = pages.start * PAGE_POSITIONS;
        sequence.tokens.drain(begin..pages.end * PAGE_POSITIONS);
        sequence.shifted_from = Some(sequence.shifted_from.map_or(begin, |from| from.min(begin)));
        Ok(true)
    }

    /// Gives back all pages of `sequence`.
    pub(crate) fn release(&mut self, mut sequence: Sequence) {
        self.truncate(&mut sequence, 0);
    }

    /// Writes the counts of pages and prefixes into `stats`.
    pub(crate) fn describe(&self, stats: &mut EngineStats) {
        let bytes = |pages: &mut dyn Iterator<Item = usize>| -> u64 {
            pages.zip(&self.page_bytes).map(|(pages, bytes)| pages as u64 * bytes).sum()
        };
        stats.pages = self.groups.iter().map(Pages::total).sum();
        stats.pages_used = self.groups.iter().map(Pages::used).sum();
        stats.cache_bytes_used = bytes(&mut self.groups.iter().map(Pages::used));
        stats.cache_bytes = self.budget_bytes;
        stats.prefix_bytes_used = bytes(&mut self.prefixes.held().iter().copied());
        stats.prefix_evictions = self.prefixes.evicted();
    }

    /// Number of pages that were ever handed out before their memory was fetched. A text that writes such a page waits for the
    /// system.
    pub(crate) fn cold_pages(&self) -> usize {
        self.groups.iter().map(Pages::cold).sum()
    }

    /// Bytes of all pages.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.pool.size_bytes()
    }
}

/// How many pages of each group `bytes` hold, if every group has equally many.
fn pages_of_all(bytes: u64, page_bytes: &[u64]) -> usize {
    usize::try_from(bytes / page_bytes.iter().sum::<u64>().max(1)).unwrap_or(usize::MAX)
}

/// Bytes that the pages of a text of `positions` positions take on the device of `pool`, if all caches see the whole text. Pages of
/// recurrent states are included.
pub fn pages_bytes(pool: &dyn KvPool, positions: usize) -> u64 {
    let pages = positions.div_ceil(PAGE_POSITIONS) as u64;
    let groups = (0..pool.spec().groups.len()).map(|group| GroupId(group as u32));
    let states =
        if pages > 0 { pool.state_page_bytes().saturating_mul(STATE_PAGES_PER_TEXT as u64) } else { 0 };
    groups.map(|group| pages.saturating_mul(pool.page_bytes(group))).fold(states, u64::saturating_add)
}

#[cfg(test)]
mod tests;
