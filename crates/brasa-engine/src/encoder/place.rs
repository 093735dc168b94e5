//! Places for jobs that run or wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::EngineError;

/// Counts a job among those that run or wait, until dropped.
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    /// Takes a place, if fewer than `most` are taken.
    ///
    /// # Errors
    ///
    /// [`EngineError::QueueFull`].
    pub(super) fn take(running: &Arc<AtomicUsize>, most: usize) -> Result<Self, EngineError> {
        let one_more = |count: usize| (count < most).then_some(count + 1);
        match running.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(_) => Ok(Self(Arc::clone(running))),
            Err(waiting) => Err(EngineError::QueueFull { waiting }),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
