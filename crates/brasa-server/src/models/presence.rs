//! The use of a loaded model, and whether it has failed.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use brasa::engine::EngineError;

/// A record of a loaded model's requests and failure, for every kind of model.
pub(crate) struct Presence {
    /// The id of the model.
    pub id: String,
    /// Number of requests that keep the model from being unloaded.
    busy: AtomicUsize,
    started: Instant,
    /// Milliseconds since `started` at which the model was last used.
    used_ms: AtomicU64,
    /// The reason why the model can no longer be used.
    failure: OnceLock<String>,
}

impl Presence {
    /// The record of a model that has no requests yet.
    pub fn new(id: String) -> Arc<Self> {
        Arc::new(Self {
            id,
            busy: AtomicUsize::new(0),
            started: Instant::now(),
            used_ms: AtomicU64::new(0),
            failure: OnceLock::new(),
        })
    }

    /// Keeps the model from being unloaded until the guard is dropped.
    pub fn keep_busy(self: &Arc<Self>) -> Busy {
        self.touch();
        self.busy.fetch_add(1, Ordering::SeqCst);
        Busy(Arc::clone(self))
    }

    /// Number of requests that use the model.
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::SeqCst)
    }

    /// True if a request uses the model.
    pub fn is_busy(&self) -> bool {
        self.busy() > 0
    }

    /// Records that the model was used now.
    pub fn touch(&self) {
        self.used_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Time since the model was last used.
    pub fn idle_time(&self) -> Duration {
        if self.is_busy() {
            return Duration::ZERO;
        }
        Duration::from_millis(self.now_ms().saturating_sub(self.used_ms.load(Ordering::Relaxed)))
    }

    /// True if the engine or its device has failed for good, so that the model must be loaded again.
    pub fn is_closed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// The reason why the model must be loaded again; `None` while it can be used.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Records an error of the engine.
    pub fn saw_error(&self, error: &EngineError) {
        if error.is_final() {
            // The first failure is the cause of the others.
            let _ = self.failure.set(error.to_string());
        }
    }

    /// Milliseconds since the model was loaded.
    pub fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// Marks a model as used by a request, until dropped.
pub(crate) struct Busy(Arc<Presence>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
        self.0.touch();
    }
}
