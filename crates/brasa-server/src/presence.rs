//! Whether a loaded model is used, and whether it still can be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brasa::engine::EngineError;

/// What a loaded model of any kind remembers of its requests.
pub(crate) struct Presence {
    /// The id of the model.
    pub id: String,
    /// Requests that keep the model from being unloaded.
    busy: AtomicUsize,
    started: Instant,
    /// Milliseconds since `started` at which the model was used.
    used_ms: AtomicU64,
    closed: AtomicBool,
}

impl Presence {
    /// The presence of a model that nobody has used yet.
    pub fn new(id: String) -> Arc<Self> {
        Arc::new(Self {
            id,
            busy: AtomicUsize::new(0),
            started: Instant::now(),
            used_ms: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    /// Keeps the model from being unloaded until the guard is dropped.
    pub fn keep_busy(self: &Arc<Self>) -> Busy {
        self.touch();
        self.busy.fetch_add(1, Ordering::SeqCst);
        Busy(Arc::clone(self))
    }

    /// Requests that use the model.
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

    /// Time since the model was used.
    pub fn idle_time(&self) -> Duration {
        if self.is_busy() {
            return Duration::ZERO;
        }
        Duration::from_millis(self.now_ms().saturating_sub(self.used_ms.load(Ordering::Relaxed)))
    }

    /// True if the engine or its device has failed for good, so that the model must be loaded again.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Records an error of the engine.
    pub fn saw_error(&self, error: &EngineError) {
        if error.is_final() {
            self.closed.store(true, Ordering::Relaxed);
        }
    }

    /// Milliseconds since the model was loaded.
    pub fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// A request that uses a model.
pub(crate) struct Busy(Arc<Presence>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
        self.0.touch();
    }
}
