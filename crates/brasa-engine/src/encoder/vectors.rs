//! Vectors on the way from the engine's thread to their reader.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::EngineError;

/// Results on the way to their reader.
pub(super) struct Results {
    state: Mutex<State>,
    changed: Condvar,
    is_cancelled: AtomicBool,
}

struct State {
    results: Vec<Option<Result<Vec<f32>, EngineError>>>,
    /// Texts that have a result so far.
    done: usize,
    ended: bool,
    waker: Option<Waker>,
}

impl Results {
    pub(super) fn new(texts: usize) -> Self {
        let results = (0..texts).map(|_| None).collect();
        Self {
            state: Mutex::new(State { results, done: 0, ended: false, waker: None }),
            changed: Condvar::new(),
            is_cancelled: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if no reader waits for the results any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Tells the reader that no more results come.
    pub(super) fn end(&self) {
        self.change(|state| state.ended = true);
    }

    /// Changes the state and wakes the reader.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Brings the result of a text by its number.
    pub(super) fn put(&self, number: usize, result: Result<Vec<f32>, EngineError>) {
        self.change(|state| {
            state.results[number] = Some(result);
            state.done += 1;
        });
    }
}

/// The vectors of a job's texts, in the order of the texts. The iterator waits for the next one,
/// [`poll_next`](Self::poll_next) does not. Dropping it ends the job at the next step.
pub struct EncoderVectors {
    shared: Arc<Results>,
    next: usize,
}

impl EncoderVectors {
    pub(super) fn new(shared: Arc<Results>) -> Self {
        Self { shared, next: 0 }
    }

    /// Texts of the job.
    pub fn texts(&self) -> usize {
        self.shared.lock().results.len()
    }

    /// Waits until more than `done` texts are computed or the job has ended; returns how many are.
    pub fn wait_beyond(&self, done: usize) -> usize {
        let mut state = self.shared.lock();
        while state.done <= done && !state.ended && state.done < state.results.len() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended { state.results.len() } else { state.done }
    }

    /// The next vector if it is there; otherwise `Pending`, and the task of `context` is woken when there is more to read.
    ///
    /// This is the method of the same name of `futures`' `Stream`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<f32>, EngineError>>> {
        let mut state = self.shared.lock();
        if let Some(next) = Self::take(&mut state, &mut self.next) {
            return Poll::Ready(next);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// The next result; `Some(None)` after the last one, `None` if the result is not there yet.
    #[allow(clippy::option_option, reason = "an end that is there, and a result that is not")]
    fn take(state: &mut State, next: &mut usize) -> Option<Option<Result<Vec<f32>, EngineError>>> {
        let Some(result) = state.results.get_mut(*next) else { return Some(None) };
        let result = match result.take() {
            Some(result) => result,
            None if state.ended => Err(EngineError::Closed),
            None => return None,
        };
        *next += 1;
        Some(Some(result))
    }
}

impl Iterator for EncoderVectors {
    type Item = Result<Vec<f32>, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut state = self.shared.lock();
        loop {
            if let Some(next) = Self::take(&mut state, &mut self.next) {
                return next;
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for EncoderVectors {
    fn drop(&mut self) {
        self.shared.is_cancelled.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for EncoderVectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncoderVectors").field("next", &self.next).finish_non_exhaustive()
    }
}
