//! Texts that are saved from an engine and restored to it: their tokens and pages.
//!
//! A page is read and written between two steps, so a large text stalls nobody. Reading borrows a second sequence over the same
//! pages, so the text may go on meanwhile. Borrowed pages cannot be given up. A running request that needs them waits.

use std::fmt;
use std::ops::Range;
use std::sync::mpsc::channel;

use brasa_graph::GroupId;
use brasa_graph::page::PageLayout;
use brasa_graph::step::PAGE_POSITIONS;

use crate::command::Command;
use crate::executor::Executor;
use crate::sequence::Sequence;
use crate::sessions::{Claim, Sessions};
use crate::{CacheScope, Engine, EngineError, SessionId};

/// A description of a cached text: its tokens, and which pages it has. The contents of the pages are not part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotState {
    /// The scope of the keys and values.
    pub scope: CacheScope,
    /// The cached tokens.
    pub tokens: Vec<u32>,
    /// Index from which on keys and values depend on tokens that a context shift has dropped; `None` for a text without
    /// a shift.
    pub shifted_from: Option<usize>,
    /// True if no other text may begin with these keys and values.
    pub private: bool,
    /// Existing pages of each cache group, as a range of block table entries. An entry stands for 256 tokens. A model with
    /// recurrent states has one more group: its entries are state pages, one for each of [`state_lengths`](Self::state_lengths).
    pub pages: Vec<Range<usize>>,
    /// Numbers of tokens after which recurrent states are kept, in ascending order; the last is the length of the text.
    /// Empty for a model without recurrent states.
    pub state_lengths: Vec<usize>,
}

/// A text that is being read out of an engine. Dropping it releases its pages.
pub struct Snapshot<'e> {
    engine: &'e Engine,
    state: SnapshotState,
    layouts: Vec<PageLayout>,
    /// Bytes of a state page; `None` for a model without recurrent states.
    state_page_bytes: Option<usize>,
    sequence: Option<Sequence>,
}

/// A text that is being written into an engine. Dropping it unfinished releases its pages.
pub struct Restoration<'e> {
    engine: &'e Engine,
    state: SnapshotState,
    layouts: Vec<PageLayout>,
    /// Bytes of a state page; `None` for a model without recurrent states.
    state_page_bytes: Option<usize>,
    sequence: Option<Sequence>,
}

impl Engine {
    /// Begins to read the text of a session that no request uses. A session without a text gives an empty one.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`], [`EngineError::Closed`].
    pub fn snapshot(&self, session: SessionId) -> Result<Snapshot<'_>, EngineError> {
        let lend = move |executor: &mut Executor, sessions: &mut Sessions| {
            let lent = if let Some(sequence) = sessions.idle_sequence(session)? {
                executor.lend(sequence)
            } else {
                let empty = executor.sequence();
                executor.lend(&empty)
            };
            let state = SnapshotState::of(&lent, executor.state_page_bytes().is_some());
            Ok::<_, EngineError>((state, executor.layouts(), executor.state_page_bytes(), lent))
        };
        let (state, layouts, state_page_bytes, sequence) = self.at_sessions(lend)??;
        Ok(Snapshot { engine: self, state, layouts, state_page_bytes, sequence: Some(sequence) })
    }

    /// Begins to restore a text. Its pages follow with [`Restoration::write_page`].
    ///
    /// # Errors
    ///
    /// [`EngineError::PromptTooLong`], [`EngineError::UnknownToken`], [`EngineError::Options`] if the pages cannot be those of
    /// such a text, [`EngineError::Closed`].
    pub fn restore(&self, state: SnapshotState) -> Result<Restoration<'_>, EngineError> {
        let (tokens, config) = (&state.tokens, self.config());
        if tokens.len() > config.context {
            return Err(EngineError::PromptTooLong { tokens: tokens.len(), context: config.context });
        }
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= config.vocab_size) {
            return Err(EngineError::UnknownToken { id, vocab_size: config.vocab_size });
        }
        let begin = |executor: &mut Executor, _: &mut Sessions| {
            executor.check_state(&state)?;
            let empty = executor.sequence();
            let bytes = (executor.layouts(), executor.state_page_bytes());
            Ok::<_, EngineError>((bytes, executor.lend(&empty), state))
        };
        let ((layouts, state_page_bytes), sequence, state) = self.at_sessions(begin)??;
        Ok(Restoration { engine: self, state, layouts, state_page_bytes, sequence: Some(sequence) })
    }

    /// Drops the tokens of an idle session from index `length` on; returns the length kept. The length is 0 if a sliding window
    /// no longer holds the rows that the next row would see.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`], [`EngineError::Closed`].
    pub fn truncate_session(&self, session: SessionId, length: usize) -> Result<usize, EngineError> {
        self.at_sessions(move |executor, sessions| {
            Ok(sessions.idle_sequence(session)?.map_or(0, |sequence| executor.truncate(sequence, length)))
        })?
    }

    /// The cached tokens of an idle session.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`], [`EngineError::Closed`].
    pub fn session_tokens(&self, session: SessionId) -> Result<Vec<u32>, EngineError> {
        self.at_sessions(move |_, sessions| {
            Ok(sessions.idle_sequence(session)?.map_or(Vec::new(), |sequence| sequence.tokens.clone()))
        })?
    }

    /// The scope of an idle session's keys and values.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`], [`EngineError::Closed`].
    pub fn session_scope(&self, session: SessionId) -> Result<CacheScope, EngineError> {
        self.at_sessions(move |_, sessions| {
            Ok(sessions.idle_sequence(session)?.map_or(CacheScope::default(), |sequence| sequence.scope))
        })?
    }

    /// Drops the kept prefix of a text, except the beginning that other kept texts share.
    ///
    /// # Errors
    ///
    /// [`EngineError::Closed`].
    pub fn forget(&self, scope: CacheScope, tokens: Vec<u32>) -> Result<(), EngineError> {
        self.at_sessions(move |executor, _| executor.forget(scope, &tokens))
    }

    /// Runs `work` on the engine's thread between two steps, and waits for its result.
    fn at_sessions<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Executor, &mut Sessions) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let (sender, receiver) = channel();
        self.send(Command::AtSessions(Box::new(move |executor, sessions| {
            // The caller may have gone; its result then has no reader.
            let _ = sender.send(work(executor, sessions));
        })))?;
        receiver.recv().map_err(|_| EngineError::Closed)
    }
}

impl Snapshot<'_> {
    /// The text that is read, without its pages.
    pub fn state(&self) -> &SnapshotState {
        &self.state
    }

    /// Bytes of one page of each group, in the order of [`SnapshotState::pages`].
    pub fn page_bytes(&self) -> Vec<usize> {
        self.layouts.iter().map(|layout| layout.size_bytes()).chain(self.state_page_bytes).collect()
    }

    /// Reads the page of entry `entry` in the block table of cache group `group`; returns its bytes in the
    /// [canonical layout](mod@brasa_graph::page). Slots behind the text are zeroes. `bytes` is a buffer to reuse.
    ///
    /// State pages are the group behind the cache groups: entry *i* is the state page of `state_lengths[i]`, as little-endian
    /// f32.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] if there is no such page, [`EngineError::Device`], [`EngineError::Closed`].
    pub fn read_page(&self, group: usize, entry: usize, mut bytes: Vec<u8>) -> Result<Vec<u8>, EngineError> {
        if let Some(size_bytes) = self.state_page_bytes.filter(|_| group == self.layouts.len()) {
            let length = self.state.state_lengths.get(entry);
            let page = length.and_then(|&length| self.sequence.as_ref()?.states.at(length));
            let page =
                page.ok_or_else(|| EngineError::Options(format!("the text has no state page {entry}")))?;
            bytes.resize(size_bytes, 0);
            return self
                .engine
                .with(move |executor| executor.read_state_page(page, &mut bytes).map(|()| bytes))?;
        }
        let table = self.sequence.as_ref().and_then(|sequence| sequence.tables.get(group));
        let page = table.and_then(|table| *table.get(entry)?);
        let (Some(page), Some(&layout)) = (page, self.layouts.get(group)) else {
            return Err(EngineError::Options(format!("cache group {group} has no page {entry}")));
        };
        bytes.resize(layout.size_bytes(), 0);
        let mut bytes = self.engine.with(move |executor| {
            executor.read_page(GroupId(group as u32), page, &mut bytes).map(|()| bytes)
        })??;
        layout.clear_from(self.state.tokens.len() - entry * PAGE_POSITIONS, &mut bytes);
        Ok(bytes)
    }
}

impl Restoration<'_> {
    /// Bytes of one page of each group, in the order of [`SnapshotState::pages`].
    pub fn page_bytes(&self) -> Vec<usize> {
        self.layouts.iter().map(|layout| layout.size_bytes()).chain(self.state_page_bytes).collect()
    }

    /// Writes the next page of cache group `group`, in the [canonical layout](mod@brasa_graph::page). The group behind
    /// the cache groups writes the next state page, as little-endian f32. Idle sessions give up pages if there is no
    /// free one.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] if the text has no further page there, [`EngineError::CacheFull`], [`EngineError::Device`],
    /// [`EngineError::Closed`]. The restoration has ended then.
    pub fn write_page(&mut self, group: usize, bytes: Vec<u8>) -> Result<Vec<u8>, EngineError> {
        let pages = self.state.pages.get(group).cloned();
        let states = (group == self.layouts.len()).then(|| self.state.state_lengths.clone());
        let Some(mut sequence) = self.sequence.take() else { return Err(EngineError::Closed) };
        let write = move |executor: &mut Executor, sessions: &mut Sessions| {
            let result = match states {
                Some(states) => executor.restore_state(&mut sequence, sessions, &states, &bytes),
                None => executor.restore_page(&mut sequence, sessions, group, pages, &bytes),
            };
            match result {
                Ok(()) => Ok((sequence, bytes)),
                Err(error) => {
                    executor.take_back(sequence);
                    Err(error)
                }
            }
        };
        let (sequence, bytes) = self.engine.at_sessions(write)??;
        self.sequence = Some(sequence);
        Ok(bytes)
    }

    /// Gives the text to a session in place of its own, once all pages are written.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`], [`EngineError::Options`] if pages are missing, [`EngineError::Closed`].
    pub fn finish(mut self, session: SessionId) -> Result<(), EngineError> {
        let Some(mut sequence) = self.sequence.take() else { return Err(EngineError::Closed) };
        let state = std::mem::take(&mut self.state);
        self.engine.at_sessions(move |executor, sessions| {
            let complete = sequence
                .tables
                .iter()
                .zip(&state.pages)
                .all(|(table, pages)| table.len() == if pages.is_empty() { 0 } else { pages.end });
            if !complete || sequence.states.kept().len() != state.state_lengths.len() {
                executor.take_back(sequence);
                return Err(EngineError::Options("pages of the text are missing".into()));
            }
            let replaced = match sessions.claim(session) {
                Claim::Held(replaced) => Some(replaced),
                Claim::Empty => None,
                Claim::Busy => {
                    executor.take_back(sequence);
                    return Err(EngineError::SessionBusy);
                }
            };
            executor.become_text(&mut sequence, state);
            executor.keep(&mut sequence, false);
            let closed = sessions.leave(session, sequence);
            for mut ended in replaced.into_iter().chain(closed) {
                executor.keep(&mut ended, true);
                executor.release(ended);
            }
            Ok(())
        })?
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        take_back(self.engine, self.sequence.take());
    }
}

impl Drop for Restoration<'_> {
    fn drop(&mut self) {
        take_back(self.engine, self.sequence.take());
    }
}

fn take_back(engine: &Engine, sequence: Option<Sequence>) {
    if let Some(sequence) = sequence {
        // An engine that is gone has given all pages back.
        let _ = engine.with(move |executor| executor.take_back(sequence));
    }
}

impl fmt::Debug for Snapshot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("tokens", &self.state.tokens.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Restoration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Restoration").field("tokens", &self.state.tokens.len()).finish_non_exhaustive()
    }
}

impl SnapshotState {
    /// The state of a sequence: its tokens, and which of its pages exist.
    fn of(sequence: &Sequence, has_states: bool) -> Self {
        let entries = sequence.tokens.len().div_ceil(PAGE_POSITIONS);
        let pages = sequence.tables.iter().map(|table| {
            let table = &table[..entries.min(table.len())];
            // Windows release pages from the front on.
            table.iter().position(Option::is_some).unwrap_or(table.len())..table.len()
        });
        let length = sequence.tokens.len();
        let states =
            sequence.states.kept().iter().filter(|state| state.ends_prompt || state.length == length);
        let state_lengths: Vec<usize> = states.map(|state| state.length).collect();
        let pages = pages.chain(has_states.then_some(0..state_lengths.len())).collect();
        Self {
            scope: sequence.scope,
            tokens: sequence.tokens.clone(),
            shifted_from: sequence.shifted_from,
            private: sequence.private,
            pages,
            state_lengths,
        }
    }
}

impl Executor {
    /// Checks that the pages in `state` are possible for its text.
    fn check_state(&self, state: &SnapshotState) -> Result<(), EngineError> {
        let length = state.tokens.len();
        let oldest = self.oldest_pages(length);
        let entries = length.div_ceil(PAGE_POSITIONS);
        let fits = |(pages, oldest): (&Range<usize>, &usize)| pages.start <= *oldest && pages.end == entries;
        let shift_fits = state.shifted_from.is_none_or(|from| from <= length);
        let caches = state.pages.get(..oldest.len()).unwrap_or_default();
        let groups = oldest.len() + usize::from(self.state_page_bytes().is_some());
        let is_whole = state.pages.len() == groups && shift_fits && caches.iter().zip(&oldest).all(fits);
        if is_whole && self.states_fit(state) {
            return Ok(());
        }
        Err(EngineError::Options(format!(
            "a text of {length} tokens has {entries} pages in each of {} cache groups, found {:?}",
            oldest.len(),
            state.pages
        )))
    }

    /// True if the kept states in `state` fit its text and the model.
    fn states_fit(&self, state: &SnapshotState) -> bool {
        let SnapshotState { tokens, state_lengths: lengths, pages, .. } = state;
        if self.state_page_bytes().is_none() {
            return lengths.is_empty();
        }
        let ascends = lengths.windows(2).all(|pair| pair[0] < pair[1]) && lengths.first() != Some(&0);
        let ends = lengths.last().copied().unwrap_or(0) == tokens.len();
        ascends && ends && pages.last() == Some(&(0..lengths.len()))
    }

    /// Writes the next state page of a sequence that has no tokens yet. `lengths` has the number of tokens before each
    /// state page.
    fn restore_state(
        &mut self,
        sequence: &mut Sequence,
        sessions: &mut Sessions,
        lengths: &[usize],
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let length = lengths.get(sequence.states.kept().len()).copied();
        let length =
            length.ok_or_else(|| EngineError::Options("the text has no further state page".into()))?;
        self.append(sequence, sessions, sequence.tables.len(), Some(length), bytes)
    }

    /// Writes the next page of a sequence that has no tokens yet.
    fn restore_page(
        &mut self,
        sequence: &mut Sequence,
        sessions: &mut Sessions,
        group: usize,
        pages: Option<Range<usize>>,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let table = sequence.tables.get_mut(group).zip(pages);
        let (table, pages) =
            table.filter(|(table, pages)| table.len().max(pages.start) < pages.end).ok_or_else(|| {
                EngineError::Options(format!("cache group {group} of the text has no further page"))
            })?;
        table.resize(table.len().max(pages.start), None);
        self.append(sequence, sessions, group, None, bytes)
    }

    /// Appends a page with the contents `bytes`, as [`append_page`](Self::append_page). Idle sessions give up pages if
    /// there is no free one.
    fn append(
        &mut self,
        sequence: &mut Sequence,
        sessions: &mut Sessions,
        group: usize,
        state_at: Option<usize>,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        loop {
            match self.append_page(sequence, group, state_at, bytes) {
                Err(EngineError::CacheFull { .. }) if sessions.idle() > 0 => {
                    if let Some(mut idle) = sessions.give_up_oldest() {
                        self.keep(&mut idle, true);
                        self.release(idle);
                    }
                }
                result => return result,
            }
        }
    }

    /// Gives a restored sequence the tokens and the properties of `state`.
    fn become_text(&mut self, sequence: &mut Sequence, state: SnapshotState) {
        self.own_again();
        sequence.scope = state.scope;
        sequence.tokens = state.tokens;
        sequence.shifted_from = state.shifted_from;
        sequence.private = state.private;
    }
}
