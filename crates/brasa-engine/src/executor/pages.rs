//! Pages of sequences: made, shared, kept, moved and copied between steps.

use std::ops::Range;

use brasa_graph::GroupId;
use brasa_graph::page::PageLayout;
use brasa_graph::step::{PAGE_POSITIONS, PageId};

use super::Executor;
use crate::outlook::Outlook;
use crate::sequence::Sequence;
use crate::{CacheScope, EngineError, EngineStats};

impl Executor {
    /// An empty sequence in the default scope.
    pub fn sequence(&mut self) -> Sequence {
        self.store.empty(CacheScope::default())
    }

    /// Ends `sequence`: its pages become free for other sequences, except those that other texts share.
    pub fn release(&mut self, sequence: Sequence) {
        self.store.release(sequence);
    }

    /// Drops everything from index `length` on; returns the length kept. The length is 0 if a sliding window no longer holds the
    /// rows that the next row would see.
    pub fn truncate(&mut self, sequence: &mut Sequence, length: usize) -> usize {
        self.store.truncate(sequence, length)
    }

    /// Drops the tokens of `pages` (of 256 tokens each) and moves the tokens behind them to their place, without computing them
    /// again. Returns false if that is impossible; nothing has changed then.
    ///
    /// The moved tokens still depend on the dropped ones: their values, and their keys in all layers but the first, were computed
    /// while the dropped tokens were visible.
    pub(crate) fn shift(&mut self, sequence: &mut Sequence, pages: Range<usize>) -> bool {
        let by = -((pages.len() * PAGE_POSITIONS) as i32);
        let program = &mut self.program;
        program.check_shift(self.store.pool()).is_ok()
            && self
                .store
                .shift(sequence, pages, |pool, pages| program.shift(pool, pages, by))
                .unwrap_or(false)
    }

    /// Shortens `sequence` to the beginning that it shares with `tokens`, or gives it a longer one that an earlier text of `scope`
    /// left behind or one of the `others` holds. Returns the length.
    pub(crate) fn resume<'a>(
        &mut self,
        sequence: &mut Sequence,
        scope: CacheScope,
        tokens: &[u32],
        others: impl Iterator<Item = &'a Sequence>,
    ) -> usize {
        self.store.resume(sequence, scope, tokens, others)
    }

    /// Fetches some memory of pages before their first use. Returns false if enough is ready.
    pub(crate) fn prefault(&mut self) -> bool {
        self.store.prefault()
    }

    /// Fetches memory of pages behind a step of `rows` rows, if the `texts` active texts could soon wait for it.
    pub(crate) fn keep_up(&mut self, rows: usize, texts: usize) {
        self.store.keep_up(rows, texts);
    }

    /// Number of pages that were ever handed out before their memory was fetched.
    pub(crate) fn cold_pages(&self) -> usize {
        self.store.cold_pages()
    }

    /// Writes the counts of pages and prefixes into `stats`.
    pub(crate) fn describe(&self, stats: &mut EngineStats) {
        self.store.describe(stats);
    }

    /// The length that [`truncate`](Self::truncate) would keep.
    pub(crate) fn resumable(&self, sequence: &Sequence, length: usize) -> usize {
        self.store.resumable(sequence, length)
    }

    /// The pages and their holders, as numbers for the scheduler.
    pub(crate) fn outlook(&self) -> Outlook<'_> {
        self.store.outlook()
    }

    /// Keeps the whole pages of `sequence` for later texts that begin alike, within the budget for prefixes. If the sequence
    /// `ends` and is never written again, its last partial page is kept too.
    pub(crate) fn keep(&mut self, sequence: &mut Sequence, ends: bool) {
        self.store.keep(sequence, ends);
    }

    /// Makes a sequence with the same content. Pages are shared until one of the two sequences writes.
    pub fn fork(&mut self, sequence: &Sequence) -> Sequence {
        self.store.fork(sequence)
    }

    /// A second sequence over the pages of `sequence`, to be read or written outside the engine.
    pub(crate) fn lend(&mut self, sequence: &Sequence) -> Sequence {
        self.lent += 1;
        self.store.fork(sequence)
    }

    /// Ends the loan of a sequence and releases its pages.
    pub(crate) fn take_back(&mut self, sequence: Sequence) {
        self.own_again();
        self.store.release(sequence);
    }

    /// Ends the loan of a sequence that stays with the engine.
    pub(crate) fn own_again(&mut self) {
        self.lent -= 1;
    }

    /// True if a sequence is lent.
    pub(crate) fn lends(&self) -> bool {
        self.lent > 0
    }

    /// The layouts of the pages of all cache groups.
    pub(crate) fn layouts(&mut self) -> Vec<PageLayout> {
        let spec = self.store.pool().spec();
        spec.groups.iter().map(|group| PageLayout::new(group, spec.dtype)).collect()
    }

    /// Bytes of one state page; `None` for a model without recurrent states.
    pub(crate) fn state_page_bytes(&self) -> Option<usize> {
        self.store.state_page_bytes()
    }

    /// Copies state page `page` to `bytes`, as little-endian f32.
    ///
    /// # Errors
    ///
    /// [`EngineError::Device`].
    pub(crate) fn read_state_page(&mut self, page: PageId, bytes: &mut [u8]) -> Result<(), EngineError> {
        Ok(self.store.pool().read_state_page(page, bytes)?)
    }

    /// The first page of each cache group that is visible to the row at index `length`.
    pub(crate) fn oldest_pages(&self, length: usize) -> Vec<usize> {
        self.store.oldest_pages(length)
    }

    /// Copies a page to `bytes`, in the canonical layout.
    ///
    /// # Errors
    ///
    /// [`EngineError::Device`].
    pub(crate) fn read_page(
        &mut self,
        group: GroupId,
        page: PageId,
        bytes: &mut [u8],
    ) -> Result<(), EngineError> {
        Ok(self.store.pool().read_page(group, page, bytes)?)
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
        state_at: Option<usize>,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        self.store.append_page(sequence, group, state_at, bytes)
    }

    /// Forgets the kept prefix of `tokens`, except the beginning that other kept texts share.
    pub(crate) fn forget(&mut self, scope: CacheScope, tokens: &[u32]) {
        self.store.forget(scope, tokens);
    }

    /// Makes the next `rows` positions of `sequence` writable, as a step does for each of its sequences.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`] if a page could not be allocated or copied. The sequence's text is
    /// unchanged.
    pub(crate) fn prepare(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), EngineError> {
        self.store.prepare(sequence, rows)
    }

    /// Like [`prepare`](Self::prepare), for a step of guesses: each of its rows may become the end of the sequence, and
    /// so needs a state page. Returns false if there are not enough pages.
    pub(crate) fn prepare_drafts(&mut self, sequence: &mut Sequence, rows: usize) -> bool {
        self.store.prepare(sequence, rows).is_ok() && self.store.prepare_each_state(sequence, rows)
    }
}
