//! A budget for the memory of all requests together: the bytes of their bodies, and the values parsed from them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::http::error::{ApiError, Result};

/// Bytes of each request that are not counted, so that short requests are served while others use up the budget.
const UNCOUNTED_BYTES: usize = 64 << 10;

/// Bytes of a request from which on its memory is returned to the system afterwards.
const LARGE_BYTES: usize = 1 << 20;

/// The memory that requests may take together.
pub(crate) struct Budget {
    most: usize,
    taken: AtomicUsize,
    /// Called when a large request has ended.
    tidy: Box<dyn Fn() + Send + Sync>,
}

impl Budget {
    /// A budget of `most` bytes. `tidy` is called when much has been freed.
    pub fn new(most: usize, tidy: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { most, taken: AtomicUsize::new(0), tidy: Box::new(tidy) })
    }

    /// A new account for a request, with no memory taken.
    pub fn account(self: &Arc<Self>) -> Account {
        Account { budget: Arc::clone(self), bytes: 0, peak: 0 }
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= self.most);
        self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }
}

/// The memory that one request has taken from the budget. Dropping it returns all of it.
pub(crate) struct Account {
    budget: Arc<Budget>,
    bytes: usize,
    peak: usize,
}

impl Account {
    /// Takes `bytes` more.
    ///
    /// # Errors
    ///
    /// 503 if the budget is used up.
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        let after = self.bytes.saturating_add(bytes);
        if !self.budget.take(counted(after) - counted(self.bytes)) {
            let message = "the requests of all clients take the memory that there is for them";
            return Err(ApiError::unavailable("out_of_request_memory", message));
        }
        self.bytes = after;
        self.peak = self.peak.max(after);
        Ok(())
    }

    /// Returns `bytes` to the budget.
    pub fn shrink(&mut self, bytes: usize) {
        let after = self.bytes.saturating_sub(bytes);
        self.budget.taken.fetch_sub(counted(self.bytes) - counted(after), Ordering::SeqCst);
        self.bytes = after;
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.shrink(self.bytes);
        if self.peak >= LARGE_BYTES {
            (self.budget.tidy)();
        }
    }
}

/// The bytes that are counted for a request of `bytes` bytes.
fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(UNCOUNTED_BYTES)
}

/// Keeps the account of a request until its values are dropped.
#[derive(Clone, Default)]
pub(crate) struct Held(Arc<Mutex<Option<Account>>>);

impl Held {
    /// Keeps `account` until [`release`](Self::release).
    pub fn hold(&self, account: Account) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(account);
    }

    /// Drops the account, which returns its memory to the budget.
    pub fn release(&self) {
        // Dropped outside the lock.
        let account = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(account);
    }
}
