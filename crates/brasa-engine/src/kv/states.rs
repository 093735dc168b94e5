//! State pages of sequences, for models with recurrent layers.
//!
//! A text goes on from the states after its last token, and can be cut back only to a length whose states are kept. So a sequence
//! keeps the states at its end, those before the last token of the latest prompt, and those after every so many pages of tokens
//! (an *interval*), until the prefixes hold them. States at other lengths are computed again from the ones before.
//!
//! A step never writes the states that it goes on from. It writes other pages, of which one becomes the sequence's end once the
//! step has succeeded ([`brasa_graph::state`]).

use brasa_graph::StatePages;
use brasa_graph::step::{PAGE_POSITIONS, PageId};

use super::KvStore;
use crate::EngineError;
use crate::sequence::Sequence;

/// State pages that a text holds while it is computed in plain steps: its end, the page that the next step writes, and its latest
/// prompt.
pub(crate) const PAGES_PER_TEXT: usize = 3;

/// Most pages of tokens from one kept state to the next.
const MOST_INTERVAL: u64 = 16;

/// The state pages of one sequence.
#[derive(Debug, Default)]
pub(crate) struct HeldStates {
    /// States that the sequence can go on from, by length.
    pub(super) kept: Vec<HeldState>,
    /// Pages to write to, which the sequence alone holds.
    fresh: Vec<PageId>,
    /// The pages of a step that has been composed and not yet committed.
    step: Option<StepStates>,
}

/// The states after a beginning of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldState {
    /// Tokens of the beginning.
    pub(crate) length: usize,
    pub(crate) page: PageId,
    /// True for the latest prompt without its last token: an equal prompt goes on from there, and a longer one as well.
    pub(crate) ends_prompt: bool,
}

/// State pages of a step in progress.
#[derive(Debug)]
struct StepStates {
    /// Rows of the step, the first one of a chain.
    rows: usize,
    /// Which rows may become the sequence's end.
    ends: StepEnds,
    pages: StatePages,
}

/// The rows of a step that may become the end of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepEnds {
    /// The last row.
    Last,
    /// Each row: some rows are guesses.
    Each,
}

impl HeldStates {
    /// True if the sequence holds state pages.
    pub(crate) fn is_any(&self) -> bool {
        !self.kept.is_empty() || !self.fresh.is_empty() || self.step.is_some()
    }

    /// All pages that the sequence holds.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        let kept = self.kept.iter().map(|state| state.page);
        kept.chain(self.fresh.iter().copied()).chain(self.step.iter().flat_map(StepStates::pages))
    }

    /// States that the sequence can go on from, by length.
    pub(crate) fn kept(&self) -> &[HeldState] {
        &self.kept
    }

    /// The states behind `length` tokens.
    pub(crate) fn at(&self, length: usize) -> Option<PageId> {
        self.kept.iter().find(|state| state.length == length).map(|state| state.page)
    }
}

impl StepStates {
    fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.pages.to.iter().map(|&(_, page)| page).chain(self.pages.spares.iter().copied())
    }
}

/// Pages of tokens between kept states, so that states take about as many bytes as the keys and values between them.
pub(super) fn interval_pages(state_bytes: u64, page_bytes: &[u64]) -> usize {
    let kv: u64 = page_bytes.iter().sum();
    state_bytes.div_ceil(kv.max(1)).clamp(1, MOST_INTERVAL) as usize
}

impl KvStore {
    /// The number of the state pages among the groups of pages; `None` if the model has no states.
    pub(crate) fn state_group(&self) -> Option<usize> {
        let caches = self.cache_groups();
        (caches < self.groups.len()).then_some(caches)
    }

    /// Tokens between kept states.
    fn interval(&self) -> usize {
        self.interval_pages * PAGE_POSITIONS
    }

    /// Makes sure that the next step of `sequence` has a state page to write to.
    pub(super) fn prepare_states(&mut self, sequence: &mut Sequence) -> Result<(), EngineError> {
        let Some(group) = self.state_group() else { return Ok(()) };
        recycle(sequence);
        if sequence.states.fresh.is_empty() {
            let page = self.take_state(group, sequence)?;
            sequence.states.fresh.push(page);
        }
        Ok(())
    }

    /// Makes sure that a step of `rows` rows, each of which may become the sequence's end, has state pages to write to. Returns
    /// false if it has not; kept texts are not given up for it.
    pub(crate) fn prepare_each_state(&mut self, sequence: &mut Sequence, rows: usize) -> bool {
        let Some(group) = self.state_group() else { return true };
        recycle(sequence);
        while sequence.states.fresh.len() < rows {
            let Some(page) = self.take_spare(group) else { return false };
            sequence.states.fresh.push(page);
        }
        true
    }

    /// The state pages of a step that computes the next `rows` tokens of `sequence`.
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
                let page = match sequence.states.fresh.pop() {
                    Some(page) => Ok(page),
                    None => self.take_state(group, sequence),
                };
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

    /// Adds `spares` pages for the further steps of a chain to the pages of the step of `sequence`.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`]. The step keeps its pages.
    pub(crate) fn spare_states(
        &mut self,
        sequence: &mut Sequence,
        spares: usize,
    ) -> Result<StatePages, EngineError> {
        let Some(group) = self.state_group() else { return Ok(StatePages::default()) };
        let Some(mut step) = sequence.states.step.take() else { return Ok(StatePages::default()) };
        let mut result = Ok(());
        while result.is_ok() && step.pages.spares.len() < spares {
            let page = match sequence.states.fresh.pop() {
                Some(page) => Ok(page),
                None => self.take_state(group, sequence),
            };
            result = page.map(|page| step.pages.spares.push(page));
        }
        if result.is_err() {
            sequence.states.fresh.append(&mut step.pages.spares);
        }
        let pages = step.pages.clone();
        sequence.states.step = Some(step);
        result.map(|()| pages)
    }

    /// Records that a step or chain has computed `computed` tokens of `sequence` behind the first `start`.
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
        let enough = PAGES_PER_TEXT - 2 + self.spares;
        for page in sequence.states.fresh.drain(enough.min(sequence.states.fresh.len())..) {
            self.groups[group].release(page);
        }
    }

    /// Gives back the kept states of `sequence` that are `unwanted`. A page without another holder is written to next.
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

    /// Gives back the states of `sequence` within its text that the prefixes hold now.
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

    /// Gives back the states of `sequence` behind `length` tokens; all pages if no tokens are left.
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

    /// Gives `sequence`, which has no states, those that end its text.
    pub(super) fn share_states(&mut self, sequence: &mut Sequence, states: &[HeldState]) {
        let Some(group) = self.state_group() else { return };
        for &state in states {
            self.groups[group].share(state.page);
            sequence.states.kept.push(state);
        }
    }

    /// Appends the states of a restored text, by length.
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
        if let Err(error) = self.pool.write_state(page, bytes) {
            self.groups[group].release(page);
            return Err(error.into());
        }
        sequence.states.kept.push(HeldState { length: state_at, page, ends_prompt: true });
        Ok(())
    }

    /// A state page for `sequence`. If there is none, the sequence gives up states within its text.
    fn take_state(&mut self, group: usize, sequence: &mut Sequence) -> Result<PageId, EngineError> {
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

/// Makes the pages of a step that was not committed pages to write to.
fn recycle(sequence: &mut Sequence) {
    if let Some(step) = sequence.states.step.take() {
        sequence.states.fresh.extend(step.pages());
    }
}
