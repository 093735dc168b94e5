//! The order of requests: which goes first, and which gives way.

use std::cmp::Reverse;

/// Most later requests that may be admitted before a waiting request. After that many it goes first.
pub(crate) const MOST_OVERTAKEN: u32 = 8;

/// The data that requests are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Number of the request, counted as requests arrive.
    pub(crate) arrival: u64,
    /// Higher priorities go first.
    pub(crate) priority: i32,
    /// Later requests that were admitted while this one waited.
    pub(crate) overtaken: u32,
    /// True if the request was admitted before: it was preempted, or its reader was behind.
    pub(crate) returning: bool,
}

impl Standing {
    /// The standing of a request that has just arrived.
    pub(crate) fn new(arrival: u64, priority: i32) -> Self {
        Self { arrival, priority, overtaken: 0, returning: false }
    }

    /// True if the request has been overtaken so often that it goes before all others.
    pub(crate) fn aged(self) -> bool {
        self.overtaken >= MOST_OVERTAKEN
    }

    /// Priority as a key that sorts higher ones first. Aged requests are a class above all.
    pub(crate) fn class(self) -> (Reverse<bool>, Reverse<i32>) {
        (Reverse(self.aged()), Reverse(if self.aged() { 0 } else { self.priority }))
    }

    /// A key that sorts senior requests first. Junior requests give up pages for senior ones.
    ///
    /// The first of all aged requests keeps its rank until it ends. So at least one request always finishes, whatever else gives
    /// up pages.
    pub(crate) fn seniority(self) -> impl Ord {
        (self.class(), self.arrival)
    }

    /// A key that sorts waiting requests, first to be admitted first, before cached pages are considered.
    pub(crate) fn turn(self) -> impl Ord {
        (self.class(), Reverse(self.returning), self.arrival)
    }

    /// Records that the request waits while another one is admitted.
    pub(crate) fn see_admitted(&mut self, other: Self) {
        if other.arrival > self.arrival {
            self.overtaken = self.overtaken.saturating_add(1);
        }
    }
}
