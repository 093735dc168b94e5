//! Sequences and the pages that hold their keys and values.

use std::ops::Range;

use brasa_graph::device::{DeviceError, KvPool, KvType};
use brasa_graph::step::{BlockTable, PAGE_POSITIONS, PageId};
use brasa_graph::{CacheGroup, GroupId};

use crate::EngineError;
use crate::pages::Pages;
use crate::prefix::Prefixes;

/// Tokens whose keys and values are cached, and where.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    /// Cached tokens, in order: index *i* holds the keys and values of `tokens[i]`.
    pub(crate) tokens: Vec<u32>,
    /// Block table of each cache group.
    pub(crate) tables: Vec<BlockTable>,
    /// Index from which on keys and values were computed with tokens in sight that are no longer in the text.
    pub(crate) shifted_from: Option<usize>,
}

/// The pool of pages and who holds them.
pub(crate) struct KvStore {
    pool: Box<dyn KvPool>,
    groups: Vec<Pages>,
    /// Most pages of each group.
    limits: Vec<usize>,
    /// What texts that have ended began with.
    prefixes: Prefixes,
}

impl KvStore {
    /// A store over an empty pool, sized for `sequences` sequences of `context` positions that grow by steps of
    /// `max_rows`, and that keeps `prefix_bytes` of pages of what texts began with.
    pub(crate) fn new(
        pool: Box<dyn KvPool>,
        sequences: usize,
        context: usize,
        max_rows: usize,
        prefix_bytes: u64,
    ) -> Self {
        let full = context.div_ceil(PAGE_POSITIONS);
        let limits = pool
            .spec()
            .groups
            .iter()
            .map(|group| {
                let seen = group.spec.window.map_or(full, |window| {
                    // The window before a chunk, the chunk, and a partial page at either end.
                    (window.saturating_add(max_rows)).div_ceil(PAGE_POSITIONS) + 2
                });
                sequences.saturating_mul(seen.min(full))
            })
            .collect();
        let groups = pool.spec().groups.iter().map(|_| Pages::default()).collect();
        let page_bytes =
            pool.spec().groups.iter().map(|group| page_bytes(group, pool.spec().dtype)).sum::<u64>();
        let prefixes = Prefixes::new((prefix_bytes / page_bytes.max(1)) as usize);
        Self { pool, groups, limits, prefixes }
    }

    /// The pool, for a program to run on.
    pub(crate) fn pool(&mut self) -> &mut dyn KvPool {
        &mut *self.pool
    }

    /// A sequence of nothing.
    pub(crate) fn empty(&self) -> Sequence {
        Sequence { tables: vec![BlockTable::new(); self.groups.len()], ..Sequence::default() }
    }

    /// Sees to it that the next `rows` positions of `sequence` can be written: pages exist and are its own. Pages
    /// beyond them, which an earlier call saw to, are given back.
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
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let Some(window) = self.pool.spec().groups[group].spec.window else { continue };
            let unseen = sequence.tokens.len().saturating_sub(window) / PAGE_POSITIONS;
            for entry in &mut table[..unseen] {
                if let Some(page) = entry.take() {
                    self.groups[group].release(page);
                }
            }
        }
    }

    /// Forgets everything from index `length` on; returns the length kept.
    ///
    /// That is less than asked, namely 0, where a window group no longer holds the tail that the next row would
    /// see.
    pub(crate) fn truncate(&mut self, sequence: &mut Sequence, length: usize) -> usize {
        let resumable = sequence.tables.iter().zip(&self.pool.spec().groups).all(|(table, group)| {
            let oldest = group.spec.window.map_or(0, |window| length.saturating_sub(window)) / PAGE_POSITIONS;
            table.iter().take(length.div_ceil(PAGE_POSITIONS)).skip(oldest).all(Option::is_some)
        });
        let kept = if resumable { length.min(sequence.tokens.len()) } else { 0 };
        sequence.tokens.truncate(kept);
        sequence.shifted_from = sequence.shifted_from.filter(|&from| from < kept);
        for (table, pages) in sequence.tables.iter_mut().zip(&mut self.groups) {
            for page in table.drain(kept.div_ceil(PAGE_POSITIONS).min(table.len())..).flatten() {
                pages.release(page);
            }
        }
        kept
    }

    /// Takes `sequence` back to what it has in common with `tokens`, or to what an earlier text had where that is longer;
    /// returns the length. What was computed with dropped text in sight is not taken.
    pub(crate) fn resume(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> usize {
        let fresh = sequence.shifted_from.unwrap_or(usize::MAX);
        let own = sequence.tokens.iter().zip(tokens).take_while(|(held, wanted)| held == wanted).count();
        let kept = self.truncate(sequence, own.min(fresh));
        let path = self.prefixes.find(tokens, &self.pool.spec().groups);
        if path.len() * PAGE_POSITIONS > kept {
            self.truncate(sequence, 0);
            *sequence = self.prefixes.share(&path, &self.pool.spec().groups, &mut self.groups);
        }
        sequence.tokens.len()
    }

    /// Keeps the whole pages of `sequence` for later texts that begin alike.
    pub(crate) fn keep(&mut self, sequence: &Sequence) {
        let fresh = sequence.shifted_from.unwrap_or(sequence.tokens.len());
        self.prefixes.keep(sequence, fresh, &mut self.groups);
    }

    /// Drops the tokens of `pages` of `sequence` and has `turn` move the keys behind them, whose pages become the
    /// sequence's own. False, and nothing dropped, where a window group no longer holds what the next row would see.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], those of `turn`; nothing dropped.
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

    /// Sees to it that nobody else holds the page of an entry of `sequence`.
    fn own(&mut self, sequence: &mut Sequence, group: usize, entry: usize) -> Result<(), EngineError> {
        if let Some(&Some(page)) = sequence.tables[group].get(entry)
            && self.groups[group].is_shared(page)
        {
            let own = self.take(group)?;
            self.pool.copy_page(GroupId(group as u32), page, own);
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
        sequence.clone()
    }

    /// Bytes of all pages.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.pool.size_bytes()
    }

    fn take(&mut self, group: usize) -> Result<PageId, EngineError> {
        if let Some(page) = self.groups[group].take() {
            return Ok(page);
        }
        let limit = self.limits[group];
        while self.groups[group].used() >= limit && self.prefixes.give_up(&mut self.groups) {
            if let Some(page) = self.groups[group].take() {
                return Ok(page);
            }
        }
        let used = self.groups[group].used();
        if used >= limit {
            return Err(EngineError::CacheFull { pages: used });
        }
        // Grown by a quarter, so that a long text does not copy or fault page by page.
        let wanted = (used + used / 4 + 1).min(limit);
        match self.pool.reserve(GroupId(group as u32), wanted) {
            Ok(()) => {}
            Err(DeviceError::OutOfMemory { .. }) if used > 0 => {
                while self.prefixes.give_up(&mut self.groups) {
                    if let Some(page) = self.groups[group].take() {
                        return Ok(page);
                    }
                }
                return Err(EngineError::CacheFull { pages: used });
            }
            Err(error) => return Err(error.into()),
        }
        self.groups[group].grow(wanted);
        self.groups[group].take().ok_or(EngineError::CacheFull { pages: used })
    }
}

/// Bytes of a page, roundings of a device's layout aside.
fn page_bytes(group: &CacheGroup, dtype: KvType) -> u64 {
    let elements = group.caches.len() * group.spec.kv_heads * group.spec.head_dim * 2 * PAGE_POSITIONS;
    elements as u64
        * match dtype {
            KvType::F32 => 4,
            KvType::F16 | KvType::BF16 => 2,
            KvType::Q8 => 1,
        }
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use brasa_graph::device::KvPoolSpec;
    use brasa_graph::{CacheId, CacheKind, CacheSpec};

    use super::*;

    /// A pool that only remembers what it was asked.
    struct Ledger {
        spec: KvPoolSpec,
        capacity: Vec<usize>,
    }

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
        fn copy_page(&mut self, _: GroupId, _: PageId, _: PageId) {}
        fn size_bytes(&self) -> u64 {
            0
        }
        fn as_any_mut(&mut self) -> &mut dyn Any {
            self
        }
    }

    fn store(windows: &[Option<usize>], context: usize) -> KvStore {
        let groups = windows
            .iter()
            .enumerate()
            .map(|(index, &window)| CacheGroup {
                spec: CacheSpec { kv_heads: 1, head_dim: 8, window },
                kind: CacheKind::Text,
                caches: vec![CacheId(index as u32)],
            })
            .collect();
        let pool =
            Ledger { spec: KvPoolSpec { groups, dtype: KvType::F32 }, capacity: vec![0; windows.len()] };
        KvStore::new(Box::new(pool), 2, context, 128, 0)
    }

    fn extend(store: &mut KvStore, sequence: &mut Sequence, rows: usize) {
        store.prepare(sequence, rows).unwrap();
        store.commit(sequence, &vec![7; rows]);
    }

    #[test]
    fn a_window_group_holds_only_its_window() {
        let mut store = store(&[None, Some(300)], 4096);
        let mut sequence = store.empty();
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
    fn a_fork_writes_to_pages_of_its_own() {
        let mut store = store(&[None], 4096);
        let mut first = store.empty();
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
    fn a_full_pool_is_an_error_that_changes_nothing_else() {
        let mut store = store(&[None], 512);
        let mut first = store.empty();
        let mut second = store.empty();
        extend(&mut store, &mut first, 512);
        extend(&mut store, &mut second, 512);
        let mut third = store.empty();
        assert_eq!(store.prepare(&mut third, 1), Err(EngineError::CacheFull { pages: 4 }));
        store.release(first);
        store.prepare(&mut third, 1).unwrap();
    }
}
