//! Everything that requests share.

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

/// The state of a server. A handle: clones are cheap.
pub(crate) type App = Arc<AppState>;

/// The state of a server.
pub(crate) struct AppState {
    pub options: ServerOptions,
    pub registry: Arc<Registry>,
    pub keys: Arc<Keys>,
    pub hosts: Arc<Hosts>,
    pub log_writer: LogWriter,
    /// Memory that requests may take together.
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
    /// The instant at which a request that begins now has taken its time; `None` if no clock tells it.
    pub fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.options.request_timeout)
    }
}

/// Life of a server: loading its models, serving, ending.
#[derive(Default)]
pub(crate) struct Lifecycle {
    ready: AtomicBool,
    draining: AtomicBool,
    cut_off: AtomicBool,
    requests: AtomicUsize,
    changed: Notify,
}

impl Lifecycle {
    /// True once the models of the start are loaded.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Records that the models of the start are loaded.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// True once the server ends: running requests finish, new ones are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Refuses new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Ends the requests that still run.
    pub fn cut(&self) {
        self.cut_off.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Waits until running requests have to end.
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

    /// Waits until the server is asked to end.
    pub async fn draining(&self) {
        self.until(|| self.is_draining()).await;
    }

    /// Waits until no request runs.
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
