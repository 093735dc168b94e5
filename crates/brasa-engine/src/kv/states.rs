//! State pages of sequences, for models with recurrent layers.
//!
//! A text goes on from the states after its last token, and can be cut back only to a length whose states are kept. A
//! sequence keeps states at three kinds of lengths: its end, the latest prompt without its last token, and every
//! *interval*, a number of pages of tokens, until the prefixes hold the last kind. States at other lengths are computed
//! again from earlier ones.
//!
//! A step never writes to the states that it goes on from. It writes to other pages, and one of these becomes the
//! sequence's end after the step has succeeded ([`brasa_graph::state`]).

use brasa_graph::StatePages;
use brasa_graph::step::{PAGE_POSITIONS, PageId};

use super::KvStore;
use crate::EngineError;
use crate::held_states::{HeldState, HeldStates, STATE_PAGES_PER_TEXT, StepEnds, StepStates};
use crate::sequence::Sequence;

impl KvStore {
    /// The number of the group of state pages, which follows the cache groups; `None` for a model without recurrent
    /// states.
    pub(crate) fn state_group(&self) -> Option<usize> {
        let caches = self.cache_groups();
        (caches < self.groups.len()).then_some(caches)
    }

    /// The interval between kept states, in tokens.
    fn interval(&self) -> usize {
        self.interval_pages * PAGE_POSITIONS
    }

    /// Makes sure that the next step of `sequence` has one state page to write to. Does nothing for a model without
    /// recurrent states.
    pub(super) fn prepare_states(&mut self, sequence: &mut Sequence) -> Result<(), EngineError> {
        let Some(group) = self.state_group() else { return Ok(()) };
        recycle(sequence);
        let page = self.next_page(group, sequence)?;
        sequence.states.fresh.push(page);
        Ok(())
    }

    /// Makes sure that a step of `rows` rows has a state page for each row, since each may become the sequence's end.
    /// Gives up no kept text; returns false if there are not enough pages.
    pub(crate) fn prepare_each_state(&mut self, sequence: &mut Sequence, rows: usize) -> bool {
        let Some(group) = self.state_group() else { return true };
        recycle(sequence);
        while sequence.states.fresh.len() < rows {
            let Some(page) = self.take_spare(group) else { return false };
            sequence.states.fresh.push(page);
        }
        true
    }

    /// Chooses the state pages of a step that computes the next `rows` tokens of `sequence`: the page to go on from,
    /// and pages for the states after chosen rows.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`]. The sequence's states are unchanged.
    pub(crate) fn step_states(
        &mut self,
        sequence: &mut Sequence,
        rows: usize,
        ends: StepEnds,
    ) -> Result<StatePages, EngineError> {
        let Some(group) = self.state_group() else { return Ok(StatePages::default()) };
        recycle(sequence);
        let (start, interval) = (sequence.tokens.len(), self.interval());
        let mut pages = StatePages { from: sequence.states.at(start), ..StatePages::default() };
        for row in 0..rows {
            let page = if ends == StepEnds::Each || row + 1 == rows {
                let page = self.next_page(group, sequence);
                page.inspect_err(|_| sequence.states.fresh.extend(pages.to.drain(..).map(|(_, page)| page)))?
            } else if ((start + row + 1).is_multiple_of(interval) || row + 2 == rows)
                && let Some(page) = self.take_spare(group)
            {
                page
            } else {
                continue;
            };
            pages.to.push((row as u32, page));
        }
        sequence.states.step = Some(StepStates { rows, ends, pages: pages.clone() });
        Ok(pages)
    }

    /// Adds spare pages to the composed step of `sequence` until it has `spares` of them, for the further steps of a
    /// chain. Returns all pages of the step.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`]. The step keeps its pages.
    pub(crate) fn spare_state_pages(
        &mut self,
        sequence: &mut Sequence,
        spares: usize,
    ) -> Result<StatePages, EngineError> {
        let Some(group) = self.state_group() else { return Ok(StatePages::default()) };
        let Some(mut step) = sequence.states.step.take() else { return Ok(StatePages::default()) };
        let mut result = Ok(());
        while result.is_ok() && step.pages.spares.len() < spares {
            result = self.next_page(group, sequence).map(|page| step.pages.spares.push(page));
        }
        if result.is_err() {
            sequence.states.fresh.append(&mut step.pages.spares);
        }
        let pages = step.pages.clone();
        sequence.states.step = Some(step);
        result.map(|()| pages)
    }

    /// Records that a step or chain has computed `computed` tokens of `sequence` behind its first `start` tokens, and
    /// chooses the states to keep.
    pub(super) fn commit_states(&mut self, sequence: &mut Sequence, start: usize, computed: usize) {
        let Some(group) = self.state_group() else { return };
        let (interval, states) = (self.interval(), &mut sequence.states);
        let Some(step) = states.step.take() else { return };
        let steps_after = computed.saturating_sub(step.rows);
        let end = match computed.checked_sub(1) {
            Some(last) if steps_after == 0 => step.pages.page_after(last),
            Some(_) => step.pages.page_after_steps(steps_after),
            None => None,
        };
        let is_prompt = step.rows > 1 && step.ends == StepEnds::Last;
        let inner = step.pages.to.iter().filter(|&&(_, page)| Some(page) != end);
        for &(row, page) in inner {
            let (length, ends_prompt) =
                (start + row as usize + 1, is_prompt && row as usize + 2 == step.rows);
            if ends_prompt {
                states.kept.iter_mut().for_each(|state| state.ends_prompt = false);
            }
            if ends_prompt || (length < start + computed && length.is_multiple_of(interval)) {
                states.kept.push(HeldState { length, page, ends_prompt });
            } else {
                states.fresh.push(page);
            }
        }
        states.fresh.extend(step.pages.spares.iter().copied().filter(|&page| Some(page) != end));
        if let Some(page) = end {
            states.kept.push(HeldState { length: start + computed, page, ends_prompt: false });
        }
        let length = start + computed;
        self.drop_states(sequence, |state| {
            state.length != length && !state.ends_prompt && !state.length.is_multiple_of(interval)
        });
        let enough = STATE_PAGES_PER_TEXT - 2 + self.spares;
        for page in sequence.states.fresh.drain(enough.min(sequence.states.fresh.len())..) {
            self.groups[group].release(page);
        }
    }

    /// Drops the kept states of `sequence` for which `unwanted` is true. A page without another holder stays with the
    /// sequence, as a page to write to.
    fn drop_states(&mut self, sequence: &mut Sequence, unwanted: impl Fn(&HeldState) -> bool) {
        let Some(group) = self.state_group() else { return };
        let HeldStates { kept, fresh, .. } = &mut *sequence.states;
        for state in kept.extract_if(.., |state| unwanted(state)) {
            if self.groups[group].is_shared(state.page) {
                self.groups[group].release(state.page);
            } else {
                fresh.push(state.page);
            }
        }
    }

    /// Gives back states that the prefixes hold as well. States at the end of the text, and those of the latest prompt,
    /// stay with the sequence.
    pub(super) fn hand_over_states(&mut self, sequence: &mut Sequence) {
        let length = sequence.tokens.len();
        let Some(group) = self.state_group() else { return };
        let pages = &mut self.groups[group];
        sequence.states.kept.retain(|state| {
            let stays = state.length == length || state.ends_prompt || !pages.is_shared(state.page);
            if !stays {
                pages.release(state.page);
            }
            stays
        });
    }

    /// Drops the states of `sequence` after more than `length` tokens. With `length` 0, the sequence gives back all its
    /// state pages.
    pub(super) fn truncate_states(&mut self, sequence: &mut Sequence, length: usize) {
        let Some(group) = self.state_group() else { return };
        recycle(sequence);
        self.drop_states(sequence, |state| state.length > length);
        if length == 0 {
            for page in sequence.states.fresh.drain(..) {
                self.groups[group].release(page);
            }
        }
    }

    /// Gives `sequence`, which has no states yet, the kept `states`. Their pages get one more holder.
    pub(super) fn share_states(&mut self, sequence: &mut Sequence, states: &[HeldState]) {
        let Some(group) = self.state_group() else { return };
        for &state in states {
            self.groups[group].share(state.page);
            sequence.states.kept.push(state);
        }
    }

    /// Adds a state page with the contents `bytes` to a restored text: the states after its first `state_at` tokens.
    pub(super) fn append_state(
        &mut self,
        sequence: &mut Sequence,
        state_at: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let Some(group) = self.state_group() else {
            return Err(EngineError::Options("the model has no recurrent states".into()));
        };
        let page = self.take(group)?;
        if let Err(error) = self.pool.write_state_page(page, bytes) {
            self.groups[group].release(page);
            return Err(error.into());
        }
        sequence.states.kept.push(HeldState { length: state_at, page, ends_prompt: true });
        Ok(())
    }

    /// A state page to write to: one that `sequence` holds for that, or another one. If the budget has no page, the
    /// sequence gives up its kept states, shortest length first, but for the last one.
    fn next_page(&mut self, group: usize, sequence: &mut Sequence) -> Result<PageId, EngineError> {
        if let Some(page) = sequence.states.fresh.pop() {
            return Ok(page);
        }
        loop {
            match self.take(group) {
                Err(EngineError::CacheFull { .. }) if sequence.states.kept.len() > 1 => {
                    let state = sequence.states.kept.remove(0);
                    self.groups[group].release(state.page);
                }
                result => return result,
            }
        }
    }
}

/// Turns the pages of a step that was not committed into pages to write to.
fn recycle(sequence: &mut Sequence) {
    if let Some(step) = sequence.states.step.take() {
        sequence.states.fresh.extend(step.pages());
    }
}
