//! A budget for the memory of all requests together: the bytes of their bodies, and the values parsed from them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::http::error::{ApiError, Result};

/// Bytes of a request that are free of charge, so that short requests are served while others use up the budget.
const UNCOUNTED_BYTES: usize = 64 << 10;

/// Bytes of a request whose memory is given back to the system afterwards.
const LARGE_BYTES: usize = 1 << 20;

/// The memory that requests may take together.
pub(crate) struct Budget {
    most: usize,
    taken: AtomicUsize,
    /// Is told that a large request has gone.
    tidy: Box<dyn Fn() + Send + Sync>,
}

impl Budget {
    /// A budget of `most` bytes. `tidy` is called when much has been freed.
    pub fn new(most: usize, tidy: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { most, taken: AtomicUsize::new(0), tidy: Box::new(tidy) })
    }

    /// The account of a request, which has taken nothing yet.
    pub fn account(self: &Arc<Self>) -> Account {
        Account { budget: Arc::clone(self), bytes: 0, peak: 0 }
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= self.most);
        self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }
}

/// The share of the budget that one request has taken. Dropping it gives everything back.
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
    /// 503 if all requests together have too many.
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

    /// Gives `bytes` back.
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

/// The bytes that count, of `bytes` of one request.
fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(UNCOUNTED_BYTES)
}

/// Keeps the account of a request until its values are gone.
#[derive(Clone, Default)]
pub(crate) struct Held(Arc<Mutex<Option<Account>>>);

impl Held {
    /// Keeps `account`.
    pub fn hold(&self, account: Account) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(account);
    }

    /// Returns the memory to the budget.
    pub fn release(&self) {
        // Dropped outside the lock.
        let account = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(account);
    }
}
