//! The state pages of one sequence, and how many there are.

use brasa_graph::StatePages;
use brasa_graph::step::PageId;

/// Number of state pages that a text holds while it is computed in plain steps: one for its end, one for the next step
/// to write, and one for its latest prompt.
pub(crate) const STATE_PAGES_PER_TEXT: usize = 3;

/// Largest interval between kept states, in pages of 256 tokens.
const MOST_INTERVAL: u64 = 16;

/// The state pages of one sequence.
#[derive(Debug, Default)]
pub(crate) struct HeldStates {
    /// States from which the sequence can go on, in ascending order of length.
    pub(crate) kept: Vec<HeldState>,
    /// Free pages of the sequence, for steps to write to. No other sequence holds them.
    pub(crate) fresh: Vec<PageId>,
    /// The pages of a step that has been composed and not yet committed.
    pub(crate) step: Option<StepStates>,
}

/// The recurrent states after the first tokens of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldState {
    /// Number of these first tokens.
    pub(crate) length: usize,
    pub(crate) page: PageId,
    /// True for states that the sequence keeps until its next prompt: those before the last token of the latest prompt,
    /// and those from which the text was resumed or restored. An equal or a longer prompt goes on from them.
    pub(crate) ends_prompt: bool,
}

/// State pages of a step that is composed and not yet committed.
#[derive(Debug)]
pub(crate) struct StepStates {
    /// Rows of the step, or of the first step of a chain.
    pub(crate) rows: usize,
    /// The rows that may become the sequence's end.
    pub(crate) ends: StepEnds,
    pub(crate) pages: StatePages,
}

/// The rows of a step that may become the end of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepEnds {
    /// The last row.
    Last,
    /// Every row, since some rows are guesses.
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

    /// States from which the sequence can go on, in ascending order of length.
    pub(crate) fn kept(&self) -> &[HeldState] {
        &self.kept
    }

    /// The page with the states after the first `length` tokens; `None` if these states are not kept.
    pub(crate) fn at(&self, length: usize) -> Option<PageId> {
        self.kept.iter().find(|state| state.length == length).map(|state| state.page)
    }
}

impl StepStates {
    /// All pages of the step.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.pages.to.iter().map(|&(_, page)| page).chain(self.pages.spares.iter().copied())
    }
}

/// The interval between kept states, in pages of 256 tokens. At this interval, states take about as many bytes as the
/// keys and values between them. `state_page_bytes` is the size of a state page, and `page_bytes` has the size of a page of
/// each cache group.
pub(crate) fn interval_pages(state_page_bytes: u64, page_bytes: &[u64]) -> usize {
    let kv: u64 = page_bytes.iter().sum();
    state_page_bytes.div_ceil(kv.max(1)).clamp(1, MOST_INTERVAL) as usize
}
