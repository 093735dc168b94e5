//! Requests that take part in steps, and the bounds of a plan.

use super::Room;

/// A request that takes part in steps.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    /// Tokens that are still to be computed, at least 1. A request with a single pending token decodes unless it reads.
    pub(crate) pending: usize,
    /// How many of the last pending rows have logits that the request reads; 0 for a request that generates.
    pub(crate) reads: usize,
    /// Pages, by cache group, that the request needs for its next page of text and does not hold yet.
    pub(crate) need: Vec<usize>,
}

impl Active {
    /// True if the request draws a token in every step.
    pub(crate) fn decodes(&self) -> bool {
        self.pending == 1 && self.reads == 0
    }
}

/// The bounds of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Most requests that take part in steps, at most `max_rows`.
    pub(crate) max_active: usize,
    /// Most rows of a step.
    pub(crate) max_rows: usize,
    /// Most rows of a step whose logits can be computed, at least `max_active`.
    pub(crate) max_outs: usize,
    /// Most prompt rows of a step in which other requests decode, at least 1.
    pub(crate) mixed_rows: usize,
    /// Most tokens of a request in one chain.
    pub(crate) max_chain: usize,
    /// Number of all waiting requests; the candidates are the first of them.
    pub(crate) waiting: usize,
    /// Pages that active requests could still get.
    pub(crate) room: Room,
    /// True if a request had to give its pages back, and none has ended since.
    pub(crate) short: bool,
}
