//! The state of an engine, as plain numbers.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// The state of an engine between two steps. Totals count from the engine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Requests that take part in steps.
    pub running: usize,
    /// Requests that pause until their reader has read more.
    pub paused: usize,
    /// Requests that wait for a place, preempted ones included.
    pub waiting: usize,
    /// Sessions that hold keys and values and that no request uses.
    pub idle_sessions: usize,
    /// Requests that have arrived.
    pub requests: u64,
    /// Number of times that a request gave its pages to others and had to be computed again.
    pub preemptions: u64,
    /// Steps that the device has run.
    pub steps: u64,
    /// Prompt rows that were computed, including those that were computed again.
    pub prompt_rows: u64,
    /// Rows of requests that decode. Each row gives one token.
    pub decode_rows: u64,
    /// Rows of tokens that were guessed ahead.
    pub draft_rows: u64,
    /// Rows among `draft_rows` whose token was drawn. The other draft rows were computed for nothing.
    pub accepted_rows: u64,
    /// Bytes of the draft model's pages and of its program's arena; 0 if there is no draft model, or if it failed.
    pub draft_model_bytes: u64,
    /// Tokens of the prompts of all requests that have been served.
    pub prompt_tokens: u64,
    /// Tokens among `prompt_tokens` that were cached.
    pub cached_tokens: u64,
    /// Requests whose prompt was compared with cached texts: each request, when it is served for the first time.
    pub prefix_queries: u64,
    /// Requests that found the beginning of their prompt cached.
    pub prefix_hits: u64,
    /// Pages, of 256 tokens, that kept prefixes have given up because other texts needed the room.
    pub prefix_evictions: u64,
    /// Bytes of the pages that kept prefixes hold. Running requests and sessions share some of them.
    pub prefix_bytes_used: u64,
    /// Most bytes that kept prefixes may hold.
    pub prefix_bytes: u64,
    /// Pages of all cache groups that requests, sessions and kept prefixes hold.
    pub pages_used: usize,
    /// Pages of all cache groups that exist on the device.
    pub pages: usize,
    /// Bytes of `pages_used`.
    pub cache_bytes_used: u64,
    /// Most bytes that pages may take.
    pub cache_bytes: u64,
}

/// Holds the latest published state of the engine, for readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<EngineStats>>);

impl Board {
    /// Publishes `stats`. If a reader holds the lock, they are skipped unless they `must` be published.
    pub(crate) fn publish(&self, stats: EngineStats, must: bool) {
        let board = match self.0.try_lock() {
            Ok(board) => Some(board),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) if must => {
                Some(self.0.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(mut board) = board {
            *board = stats;
        }
    }

    /// The state that was published last.
    pub(crate) fn read(&self) -> EngineStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
