//! The choice of the waiting request that becomes active next.

use std::cmp::Reverse;

use brasa_graph::step::PAGE_POSITIONS;

use super::{Active, Limits, Standing};

/// Most waiting requests that are compared before one is admitted. Searching the cache for more would cost more than it gains.
pub(crate) const MOST_CANDIDATES: usize = 64;

/// A waiting request that may be admitted.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) standing: Standing,
    /// Tokens of the candidate's text that are cached.
    pub(crate) cached: usize,
    /// Tokens of the candidate's text that will be cached when active requests have computed their prompts.
    pub(crate) coming: usize,
    /// Pages that the candidate needs beside those that active requests hold, by cache group.
    pub(crate) need: Vec<usize>,
}

impl Candidate {
    /// True if an active request computes tokens that the candidate could then take from the cache.
    pub(crate) fn waits_for_prefix(&self) -> bool {
        self.coming > self.cached && !self.standing.aged()
    }
}

/// The candidate to admit; `None` if there is none, or the first one must wait for pages.
pub(super) fn next(active: &[Active], candidates: &[Candidate], limits: &Limits) -> Option<usize> {
    let ready = candidates.iter().enumerate().filter(|(_, candidate)| !candidate.waits_for_prefix());
    let (place, first) = ready.min_by_key(|(_, candidate)| turn(candidate))?;
    if active.is_empty() {
        // Alone it has whatever can be had; if that is not enough, it can never be served.
        return Some(place);
    }
    let mut room = limits.room.clone();
    for active in active {
        room.take(&active.need);
    }
    (!limits.short && room.take(&first.need)).then_some(place)
}

/// A key that sorts candidates, first to be admitted first. Aged requests are sorted by arrival alone.
fn turn(candidate: &Candidate) -> impl Ord + use<> {
    let standing = candidate.standing;
    let pages = if standing.aged() { 0 } else { candidate.cached / PAGE_POSITIONS };
    let returning = standing.returning && !standing.aged();
    (standing.class(), Reverse(returning), Reverse(pages), standing.arrival)
}
