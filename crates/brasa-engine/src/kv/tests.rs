use std::any::Any;

use brasa_graph::device::KvPoolSpec;
use brasa_graph::{CacheGroup, CacheId, CacheKind, CacheSpec};

use super::*;

/// A pool without memory; it counts pages alone, and can refuse to copy them.
struct Ledger {
    spec: KvPoolSpec,
    capacity: Vec<usize>,
    copies: bool,
    states: usize,
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
    fn state_pages(&self) -> usize {
        self.states
    }
    fn reserve_state_pages(&mut self, pages: usize) -> Result<(), DeviceError> {
        self.states = pages;
        Ok(())
    }
    fn state_page_bytes(&self) -> u64 {
        self.spec.states.page_bytes() as u64
    }
    fn read_state_page(&self, _: PageId, _: &mut [u8]) -> Result<(), DeviceError> {
        Err(refusal())
    }
    fn write_state_page(&mut self, _: PageId, _: &[u8]) -> Result<(), DeviceError> {
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
            spec: CacheSpec::new(1, 8, window),
            kind: CacheKind::Text,
            caches: vec![CacheId(index as u32)],
        })
        .collect();
    let spec = KvPoolSpec { groups, ..KvPoolSpec::empty() };
    let pool = Ledger { spec, capacity: vec![0; windows.len()], copies, states: 0 };
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
