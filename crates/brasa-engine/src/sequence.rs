//! A sequence: a text whose keys and values are cached.

use brasa_graph::CacheGroup;
use brasa_graph::step::{BlockTable, PAGE_POSITIONS, SequenceId};

use crate::CacheScope;
use crate::held_states::HeldStates;

/// Tokens whose keys and values are cached, and the pages that hold them. Give it back with
/// [`Executor::release`](crate::Executor::release).
#[derive(Debug)]
pub struct Sequence {
    /// Id of the sequence, constant for its life.
    pub(crate) id: SequenceId,
    /// The scope of the sequence's keys and values.
    pub(crate) scope: CacheScope,
    /// Cached tokens, in order: index *i* holds the keys and values of `tokens[i]`.
    pub(crate) tokens: Vec<u32>,
    /// Block table of each cache group.
    pub(crate) tables: Vec<BlockTable>,
    /// State pages of the sequence; none for a model without recurrent states.
    pub(crate) states: Box<HeldStates>,
    /// Index from which on keys and values were computed while tokens were visible that are no longer in the text.
    pub(crate) shifted_from: Option<usize>,
    /// Length to which the sequence may still be shortened, because its end is not decided yet. Until then window groups keep the
    /// pages that are visible to the row at that index. `None` if the whole sequence stays.
    pub(crate) may_return_to: Option<usize>,
    /// True if no other text may begin with these keys and values.
    pub(crate) private: bool,
}

impl Sequence {
    /// The id of the sequence on devices. An engine uses an id only once.
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// The cached tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// True if the sequence holds pages, also if nothing has been written to them yet.
    pub(crate) fn holds_pages(&self) -> bool {
        self.tables.iter().flatten().any(Option::is_some) || self.states.is_any()
    }

    /// Number of tokens at the beginning of `tokens` that the sequence holds with the keys and values of a fresh run in `scope`.
    pub(crate) fn shared(&self, scope: CacheScope, tokens: &[u32]) -> usize {
        if self.scope != scope {
            return 0;
        }
        let fresh = self.shifted_from.unwrap_or(usize::MAX);
        common_tokens(&self.tokens, tokens).min(fresh)
    }
}

/// Tokens that two texts have in common at their beginning.
pub(crate) fn common_tokens(first: &[u32], second: &[u32]) -> usize {
    first.iter().zip(second).take_while(|(first, second)| first == second).count()
}

/// The first page of a cache group that is visible to the row at index `length`.
pub(crate) fn oldest_page(group: &CacheGroup, length: usize) -> usize {
    group.spec.window.map_or(0, |window| length.saturating_sub(window)) / PAGE_POSITIONS
}
