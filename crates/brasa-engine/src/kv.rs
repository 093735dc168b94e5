//! The pages that hold the keys and values of sequences, within a budget of bytes.

mod growth;

use std::ops::Range;

use brasa_graph::GroupId;
use brasa_graph::device::{DeviceError, KvPool};
use brasa_graph::step::{BlockTable, PAGE_POSITIONS, PageId, SequenceId};

use crate::outlook::Outlook;
use crate::page_costs::PageCosts;
use crate::pages::Pages;
use crate::prefix::Prefixes;
use crate::sequence::{Sequence, oldest_page};
use crate::{CacheScope, EngineError, EngineStats};

/// The pool of pages and their holders.
pub(crate) struct KvStore {
    pool: Box<dyn KvPool>,
    groups: Vec<Pages>,
    /// Bytes that a page of each group takes on the device.
    page_bytes: Vec<u64>,
    /// Most bytes of pages of all groups.
    budget_bytes: u64,
    /// Pages of each group that the longest text needs which the budget can hold. Pages never move from one group to
    /// another, so no group grows at the cost of these.
    reserved: Vec<usize>,
    /// Pages of each group without a holder whose memory is fetched ahead.
    ready: usize,
    /// The page whose memory is being fetched, and the bytes of it that have been.
    fetched: Option<((GroupId, PageId), u64)>,
    /// Bytes by group that are to be fetched behind steps.
    owed: Vec<u64>,
    /// The beginnings of texts that have ended.
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
        let groups = pool.spec().groups.iter().map(|_| Pages::default()).collect();
        let prefixes = Prefixes::new(pages_of_all(prefix_bytes, &page_bytes), page_bytes.len());
        let owed = vec![0; page_bytes.len()];
        Self {
            pool,
            groups,
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

    /// The pool, for a program to run on.
    pub(crate) fn pool(&mut self) -> &mut dyn KvPool {
        &mut *self.pool
    }

    /// A sequence of nothing.
    pub(crate) fn empty(&mut self, scope: CacheScope) -> Sequence {
        let tables = vec![BlockTable::new(); self.groups.len()];
        Sequence {
            id: self.new_id(),
            scope,
            tokens: Vec::new(),
            tables,
            shifted_from: None,
            may_return_to: None,
            private: false,
        }
    }

    fn new_id(&mut self) -> SequenceId {
        self.next_id += 1;
        SequenceId(self.next_id)
    }

    /// Makes the next `rows` positions of `sequence` writable: their pages exist and belong to it alone. Gives back pages
    /// beyond them.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`]: the sequence holds the keys and values that it held.
    pub(crate) fn prepare(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), EngineError> {
        let length = sequence.tokens.len();
        let pages = (length + rows).div_ceil(PAGE_POSITIONS);
        for group in 0..self.groups.len() {
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

    /// Forgets everything from index `length` on; returns the length kept. It is 0 if a window group no longer holds the
    /// positions that the next row would see.
    pub(crate) fn truncate(&mut self, sequence: &mut Sequence, length: usize) -> usize {
        let kept = self.resumable(sequence, length);
        sequence.tokens.truncate(kept);
        sequence.shifted_from = sequence.shifted_from.filter(|&from| from < kept);
        for (table, pages) in sequence.tables.iter_mut().zip(&mut self.groups) {
            for page in table.drain(kept.div_ceil(PAGE_POSITIONS).min(table.len())..).flatten() {
                pages.release(page);
            }
        }
        kept
    }

    /// The length that [`truncate`](Self::truncate) would keep.
    pub(crate) fn resumable(&self, sequence: &Sequence, length: usize) -> usize {
        let held = sequence.tables.iter().zip(&self.pool.spec().groups).all(|(table, group)| {
            let oldest = oldest_page(group, length);
            table.iter().take(length.div_ceil(PAGE_POSITIONS)).skip(oldest).all(Option::is_some)
        });
        if held { length.min(sequence.tokens.len()) } else { 0 }
    }

    /// The pool's pages and their holders, for a look ahead.
    pub(crate) fn outlook(&self) -> Outlook<'_> {
        Outlook {
            groups: &self.pool.spec().groups,
            totals: self.groups.iter().map(Pages::total).collect(),
            page_bytes: &self.page_bytes,
            growth_bytes: self.growth_bytes(),
            prefixes: &self.prefixes,
            active: self.groups.iter().map(|pages| vec![false; pages.total()]).collect(),
        }
    }

    /// Takes `sequence` back to the beginning that it shares with `tokens`, or gives it a longer one, which an earlier text
    /// left or one of the `others` holds; returns its length. A page of which the beginning alone is shared is copied. Nothing
    /// of another `scope` is taken, and nothing that was computed with dropped text in sight.
    pub(crate) fn resume<'a>(
        &mut self,
        sequence: &mut Sequence,
        scope: CacheScope,
        tokens: &[u32],
        others: impl Iterator<Item = &'a Sequence>,
    ) -> usize {
        let kept = self.truncate(sequence, sequence.shared(scope, tokens));
        sequence.scope = scope;
        let found = self.prefixes.find(scope, tokens, &self.pool.spec().groups);
        let others = others.filter(|other| self.prefixes.keeps_any() && !other.private);
        let other = others.map(|other| (self.resumable(other, other.shared(scope, tokens)), other));
        let other = other.max_by_key(|(length, _)| *length).filter(|&(length, _)| length > found.tokens);
        if other.map_or(found.tokens, |(length, _)| length) > kept {
            self.truncate(sequence, 0);
            match other {
                Some((length, other)) => self.share(other, length, sequence),
                None => {
                    self.prefixes.share(&found, &self.pool.spec().groups, &mut self.groups, sequence);
                }
            }
            self.copy_end(sequence);
        }
        sequence.tokens.len()
    }

    /// Gives `sequence`, which is empty, the first `length` tokens of another one.
    fn share(&mut self, other: &Sequence, length: usize, sequence: &mut Sequence) {
        let tables = other.tables.iter().zip(&mut sequence.tables).zip(&mut self.groups);
        for (((table, shared), pages), group) in tables.zip(&self.pool.spec().groups) {
            let oldest = oldest_page(group, length);
            let table = table[..length.div_ceil(PAGE_POSITIONS)].iter().enumerate();
            *shared = table.map(|(place, page)| page.filter(|_| place >= oldest)).collect();
            for &page in shared.iter().flatten() {
                pages.share(page);
            }
        }
        sequence.tokens = other.tokens[..length].to_vec();
    }

    /// Makes the last page of `sequence` its own if it is a part of one. If there is no page for the copy, the part is dropped.
    fn copy_end(&mut self, sequence: &mut Sequence) {
        let whole = sequence.tokens.len() / PAGE_POSITIONS;
        if (0..self.groups.len()).any(|group| self.own(sequence, group, whole).is_err()) {
            self.truncate(sequence, whole * PAGE_POSITIONS);
        }
    }

    /// Keeps the whole pages of `sequence` for later texts that begin alike, up to where it may be taken back; and the page
    /// behind them too if the sequence `ends` there and is never written again.
    pub(crate) fn keep(&mut self, sequence: &Sequence, ends: bool) {
        if sequence.private {
            return;
        }
        let stays = sequence.may_return_to.unwrap_or(usize::MAX).min(sequence.tokens.len());
        let fresh = sequence.shifted_from.unwrap_or(stays).min(stays);
        self.prefixes.keep(sequence, fresh, ends, &mut self.groups);
    }

    /// Forgets the kept prefix of `tokens`, except the beginning that other kept texts share.
    pub(crate) fn forget(&mut self, scope: CacheScope, tokens: &[u32]) {
        self.prefixes.forget(scope, tokens, &mut self.groups);
    }

    /// The first page of each cache group that the row behind `length` positions sees.
    pub(crate) fn oldest_pages(&self, length: usize) -> Vec<usize> {
        self.pool.spec().groups.iter().map(|group| oldest_page(group, length)).collect()
    }

    /// Appends a page of the given contents to a block table of `sequence`.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`]: the sequence holds the pages that it held.
    pub(crate) fn append_page(
        &mut self,
        sequence: &mut Sequence,
        group: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let page = self.take(group)?;
        if let Err(error) = self.pool.write_page(GroupId(group as u32), page, bytes) {
            self.groups[group].release(page);
            return Err(error.into());
        }
        sequence.tables[group].push(Some(page));
        Ok(())
    }

    /// Drops the tokens of `pages` of `sequence` and lets `turn` move the keys behind them. The moved pages become the
    /// sequence's own. False if a window group no longer holds the positions that the next row would see; nothing changed
    /// then.
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
        for group in 0..self.groups.len() {
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

    /// Makes `sequence` the only holder of the page of an entry, by a copy if there are others.
    fn own(&mut self, sequence: &mut Sequence, group: usize, entry: usize) -> Result<(), EngineError> {
        if let Some(&Some(page)) = sequence.tables[group].get(entry)
            && self.groups[group].is_shared(page)
        {
            let own = self.take(group)?;
            let positions = sequence.tokens.len().saturating_sub(entry * PAGE_POSITIONS);
            if let Err(error) = self.pool.copy_page(GroupId(group as u32), page, own, positions) {
                self.groups[group].release(own);
                return Err(error.into());
            }
            self.groups[group].release(page);
            sequence.tables[group][entry] = Some(own);
        }
        Ok(())
    }

    /// Gives back all pages of `sequence`.
    pub(crate) fn release(&mut self, mut sequence: Sequence) {
        self.truncate(&mut sequence, 0);
    }

    /// Another sequence with the same content; pages are shared until one of the two writes.
    pub(crate) fn fork(&mut self, sequence: &Sequence) -> Sequence {
        for (table, pages) in sequence.tables.iter().zip(&mut self.groups) {
            for &page in table.iter().flatten() {
                pages.share(page);
            }
        }
        Sequence {
            id: self.new_id(),
            scope: sequence.scope,
            tokens: sequence.tokens.clone(),
            tables: sequence.tables.clone(),
            shifted_from: sequence.shifted_from,
            may_return_to: sequence.may_return_to,
            private: sequence.private,
        }
    }

    /// Writes the figures of pages and prefixes into `stats`.
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

    /// Pages that were ever handed out before their memory was fetched. It grows with each page for which a text waits for the system.
    pub(crate) fn cold_pages(&self) -> usize {
        self.groups.iter().map(Pages::cold).sum()
    }

    /// Bytes of all pages.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.pool.size_bytes()
    }
}

/// How often `bytes` hold a page of each group.
fn pages_of_all(bytes: u64, page_bytes: &[u64]) -> usize {
    usize::try_from(bytes / page_bytes.iter().sum::<u64>().max(1)).unwrap_or(usize::MAX)
}

/// Bytes that the pages of a text of `positions` positions take on the device of `pool`, if all caches see the whole text.
pub fn pages_bytes(pool: &dyn KvPool, positions: usize) -> u64 {
    let pages = positions.div_ceil(PAGE_POSITIONS) as u64;
    let groups = (0..pool.spec().groups.len()).map(|group| GroupId(group as u32));
    groups.map(|group| pages.saturating_mul(pool.page_bytes(group))).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use brasa_graph::device::{KvPoolSpec, KvType};
    use brasa_graph::{CacheGroup, CacheId, CacheKind, CacheSpec};

    use super::*;

    /// A pool without memory; it counts pages alone, and can refuse to copy them.
    struct Ledger {
        spec: KvPoolSpec,
        capacity: Vec<usize>,
        copies: bool,
    }

    /// Bytes of a page: one and a half times what its elements need, as on a device that pads.
    const PAGE_BYTES: u64 = 256 * 8 * 2 * 4 / 2 * 3;

    impl KvPool for Ledger {
        fn spec(&self) -> &KvPoolSpec {
            &self.spec
        }
        fn capacity(&self, group: GroupId) -> usize {
            self.capacity[group.0 as usize]
        }
        fn reserve(&mut self, group: GroupId, pages: usize) -> Result<(), DeviceError> {
            self.capacity[group.0 as usize] = pages;
            Ok(())
        }
        fn page_bytes(&self, _: GroupId) -> u64 {
            PAGE_BYTES
        }
        fn prefault(&mut self, group: GroupId, page: PageId, bytes: Range<u64>) -> bool {
            assert!(page.index() < self.capacity[group.0 as usize] && bytes == (0..PAGE_BYTES));
            true
        }
        fn copy_page(&mut self, _: GroupId, _: PageId, _: PageId, _: usize) -> Result<(), DeviceError> {
            if self.copies { Ok(()) } else { Err(refusal()) }
        }
        fn read_page(&self, _: GroupId, _: PageId, _: &mut [u8]) -> Result<(), DeviceError> {
            Err(refusal())
        }
        fn write_page(&mut self, _: GroupId, _: PageId, _: &[u8]) -> Result<(), DeviceError> {
            Err(refusal())
        }
        fn as_any_mut(&mut self) -> &mut dyn Any {
            self
        }
    }

    fn refusal() -> DeviceError {
        DeviceError::Unsupported { device: "ledger".into(), what: "bytes of pages".into() }
    }

    fn store(windows: &[Option<usize>], context: usize) -> KvStore {
        store_that(true, windows, context)
    }

    fn store_that(copies: bool, windows: &[Option<usize>], context: usize) -> KvStore {
        let groups = windows
            .iter()
            .enumerate()
            .map(|(index, &window)| CacheGroup {
                spec: CacheSpec { kv_heads: 1, head_dim: 8, window },
                kind: CacheKind::Text,
                caches: vec![CacheId(index as u32)],
            })
            .collect();
        let spec = KvPoolSpec { groups, dtype: KvType::F32 };
        let pool = Ledger { spec, capacity: vec![0; windows.len()], copies };
        // Room for two texts.
        let budget_bytes = 2 * pages_bytes(&pool, context);
        KvStore::new(Box::new(pool), budget_bytes, 0, 1 << 20, 1)
    }

    fn extend(store: &mut KvStore, sequence: &mut Sequence, rows: usize) {
        store.prepare(sequence, rows).unwrap();
        store.commit(sequence, &vec![7; rows]);
    }

    #[test]
    fn a_window_group_holds_only_its_window() {
        let mut store = store(&[None, Some(300)], 4096);
        let mut sequence = store.empty(CacheScope::default());
        for _ in 0..20 {
            extend(&mut store, &mut sequence, 100);
        }
        assert_eq!(sequence.tables[0].iter().flatten().count(), 8);
        // 2000 − 300 = 1700 = page 6 and following.
        assert_eq!(sequence.tables[1].iter().flatten().count(), 2);
        assert_eq!(store.truncate(&mut sequence, 1990), 1990);
        assert_eq!(store.truncate(&mut sequence, 1600), 0, "its window is gone");
        assert_eq!(store.groups[0].used() + store.groups[1].used(), 0);
    }

    #[test]
    fn memory_of_pages_is_fetched_ahead_within_the_budget() {
        let fetch = |store: &mut KvStore| (0..100).take_while(|_| store.prefault()).count();
        let mut store = store(&[None], 2048);
        assert_eq!(fetch(&mut store), 0, "nobody asked for it");
        let mut store = store.with_ready(8 * PAGE_BYTES - 1, 1 << 20);
        assert_eq!(fetch(&mut store), 7);
        let mut sequence = store.empty(CacheScope::default());
        extend(&mut store, &mut sequence, 512);
        assert_eq!(store.cold_pages(), 0, "it took pages that were ready");
        assert_eq!(fetch(&mut store), 2);
        store.release(sequence);
        assert_eq!(fetch(&mut store), 0, "nine are ready");
        let mut store = store.with_ready(u64::MAX, 1 << 20);
        assert_eq!(fetch(&mut store), 7, "the budget ends it");
        assert_eq!(store.size_bytes(), store.budget_bytes);
        assert_eq!(store.with_ready(u64::MAX, 257).ready, 2);
    }

    #[test]
    fn behind_steps_memory_is_fetched_as_fast_as_it_is_taken() {
        let mut store = store(&[None], 2048).with_ready(3 * PAGE_BYTES, 1 << 20);
        let ready = |store: &KvStore| store.groups[0].ready();
        store.keep_up(100, 1);
        assert_eq!(ready(&store), 0, "less than a page was written");
        store.keep_up(100, 1);
        assert_eq!(ready(&store), 1);
        store.keep_up(1 << 20, 1);
        assert_eq!(ready(&store), 1, "one text needs no more than the next page");
        store.keep_up(1 << 20, 9);
        assert_eq!(ready(&store), 3, "what was asked for at rest is enough");
        let mut sequence = store.empty(CacheScope::default());
        extend(&mut store, &mut sequence, 1024);
        assert_eq!(store.cold_pages(), 1, "three of four were ready");
        let mut store = store.with_ready(0, 0);
        store.keep_up(1 << 20, 9);
        assert_eq!(ready(&store), 0, "nobody asked for it");
    }

    #[test]
    fn a_fork_writes_to_pages_of_its_own() {
        let mut store = store(&[None], 4096);
        let mut first = store.empty(CacheScope::default());
        extend(&mut store, &mut first, 300);
        let mut second = store.fork(&first);
        extend(&mut store, &mut second, 1);
        assert_eq!(first.tables[0][0], second.tables[0][0]);
        assert_ne!(first.tables[0][1], second.tables[0][1]);
        store.release(first);
        store.release(second);
        assert_eq!(store.groups[0].used(), 0);
    }

    #[test]
    fn a_page_that_cannot_be_copied_is_an_error_that_changes_nothing() {
        let mut store = store_that(false, &[None], 4096);
        let mut first = store.empty(CacheScope::default());
        extend(&mut store, &mut first, 300);
        let mut second = store.fork(&first);
        for _ in 0..3 {
            assert_eq!(store.prepare(&mut second, 1), Err(refusal().into()));
            assert_eq!((second.tokens.len(), &second.tables), (300, &first.tables));
        }
        assert_eq!(store.groups[0].used(), 2, "no page is lost");
        store.release(second);
        extend(&mut store, &mut first, 1);
    }

    #[test]
    fn a_full_pool_is_an_error_that_changes_nothing_else() {
        let mut store = store(&[None], 512);
        let mut first = store.empty(CacheScope::default());
        let mut second = store.empty(CacheScope::default());
        extend(&mut store, &mut first, 512);
        extend(&mut store, &mut second, 512);
        let mut third = store.empty(CacheScope::default());
        assert_eq!(
            store.prepare(&mut third, 1),
            Err(EngineError::CacheFull { pages: 4, budget_bytes: 4 * PAGE_BYTES })
        );
        assert!(!third.holds_pages());
        store.release(first);
        store.prepare(&mut third, 1).unwrap();
        assert!(
            third.tokens().is_empty() && third.holds_pages(),
            "it can give them back before it has used them"
        );
    }

    #[test]
    fn groups_share_one_budget() {
        let mut store = store(&[None, Some(256)], 1024);
        let mut sequence = store.empty(CacheScope::default());
        // 16 pages in all: a window holds three at most, and leaves the others to the group that sees everything.
        let mut rows = 0;
        while store.prepare(&mut sequence, 64).is_ok() {
            store.commit(&mut sequence, &[7; 64]);
            rows += 64;
        }
        let exist = [store.groups[0].total(), store.groups[1].total()];
        assert_eq!(exist.iter().sum::<usize>(), 16, "{exist:?}");
        assert!(exist[1] <= 4 && rows == exist[0] * PAGE_POSITIONS, "{exist:?} for {rows} rows");
    }

    #[test]
    fn no_group_grows_at_the_cost_of_the_longest_text() {
        // 16 pages. Many texts of one page take them, and end; the longest text needs other pages than theirs.
        let mut store = store(&[None, Some(40)], 7 * PAGE_POSITIONS / 2);
        assert_eq!(store.reserved, [14, 2]);
        let mut texts = Vec::new();
        loop {
            let mut text = store.empty(CacheScope::default());
            if store.prepare(&mut text, 9).is_err() {
                store.release(text);
                break;
            }
            store.commit(&mut text, &[7; 9]);
            texts.push(text);
        }
        assert!(texts.len() >= 2, "{}", texts.len());
        for text in texts {
            store.release(text);
        }
        let mut long = store.empty(CacheScope::default());
        for _ in 0..14 * PAGE_POSITIONS / 64 {
            extend(&mut store, &mut long, 64);
        }
    }

    #[test]
    fn a_sequence_keeps_its_name_and_gives_nothing_to_another_scope() {
        let mut store = store(&[None], 4096);
        let scope = |salt| CacheScope { salt, ..CacheScope::default() };
        let mut first = store.empty(scope(1));
        let id = first.id();
        extend(&mut store, &mut first, 300);
        let other = store.fork(&first);
        assert_ne!(other.id(), id);
        assert_eq!(store.resume(&mut first, scope(1), &[7; 290], std::iter::empty()), 290);
        assert_eq!(
            store.resume(&mut first, scope(2), &[7; 290], std::iter::empty()),
            0,
            "the same tokens, another scope"
        );
        assert_eq!(first.id(), id);
        store.release(first);
        store.release(other);
        assert_eq!(store.groups[0].used(), 0);
    }
}
