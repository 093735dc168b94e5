//! The state that all requests share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::http::auth::Keys;
use crate::http::budget::Budget;
use crate::http::hosts::Hosts;
use crate::http::limits::RateLimiter;
use crate::http::log_writer::LogWriter;
use crate::http::seen_once::SeenOnce;
use crate::metrics::Metrics;
use crate::models::adapters::Applied;
use crate::models::registry::Registry;
use crate::options::ServerOptions;

/// A handle to the state of a server. Clones are cheap.
pub(crate) type App = Arc<AppState>;

/// The state of a server, which all requests share.
pub(crate) struct AppState {
    pub options: ServerOptions,
    pub registry: Arc<Registry>,
    pub keys: Arc<Keys>,
    pub hosts: Arc<Hosts>,
    pub log_writer: LogWriter,
    /// Limit of the memory of all requests together.
    pub budget: Arc<Budget>,
    /// The threads of handlers, once the server runs.
    pub handlers: OnceLock<Handle>,
    pub limiter: Arc<Option<RateLimiter>>,
    pub metrics: Metrics,
    pub unknown_fields: SeenOnce,
    pub started: Instant,
    pub lifecycle: Lifecycle,
    pub adapters: Applied,
}

impl AppState {
    /// The deadline of a request that begins now; `None` if the instant is beyond the clock's range.
    pub fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.options.request_timeout)
    }
}

/// The phases of a server: loading, serving, ending.
#[derive(Default)]
pub(crate) struct Lifecycle {
    ready: AtomicBool,
    draining: AtomicBool,
    cut_off: AtomicBool,
    requests: AtomicUsize,
    changed: Notify,
}

impl Lifecycle {
    /// True once the models named at the start are loaded.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Records that the models named at the start are loaded.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// True once the server is ending: running requests finish, new ones are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Begins to refuse new requests.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Ends the requests that are still running.
    pub fn cut(&self) {
        self.cut_off.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Waits until [`cut`](Self::cut) is called.
    pub async fn cut_off(&self) {
        self.until(|| self.cut_off.load(Ordering::SeqCst)).await;
    }

    /// Counts a request that has begun.
    pub fn enter(&self) {
        self.requests.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a request that has ended.
    pub fn leave(&self) {
        self.requests.fetch_sub(1, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Waits until [`drain`](Self::drain) is called.
    pub async fn draining(&self) {
        self.until(|| self.is_draining()).await;
    }

    /// Waits until no request is running.
    pub async fn idle(&self) {
        self.until(|| self.requests.load(Ordering::SeqCst) == 0).await;
    }

    async fn until(&self, condition: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if condition() {
                return;
            }
            changed.await;
        }
    }
}
