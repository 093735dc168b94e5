//! The bound on requests that wait for a place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::EngineError;

/// Counts waiting requests, up to a limit.
pub(crate) struct Queue {
    waiting: Arc<AtomicUsize>,
    most_waiting: usize,
}

/// Counts a waiting request, until dropped.
pub(crate) struct QueuePlace(Arc<AtomicUsize>);

impl Queue {
    /// An empty queue of at most `most_waiting` requests.
    pub(crate) fn new(most_waiting: usize) -> Self {
        Self { waiting: Arc::default(), most_waiting }
    }

    /// Counts one more waiting request.
    ///
    /// # Errors
    ///
    /// [`EngineError::QueueFull`].
    pub(crate) fn enter(&self) -> Result<QueuePlace, EngineError> {
        let enter = |waiting: usize| (waiting < self.most_waiting).then_some(waiting + 1);
        match self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter) {
            Ok(_) => Ok(QueuePlace(Arc::clone(&self.waiting))),
            Err(waiting) => Err(EngineError::QueueFull { waiting }),
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
