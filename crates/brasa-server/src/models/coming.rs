//! A model that is loaded or being loaded.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

use crate::http::error::Result;
use crate::models::loaded::Loaded;

/// A model that is being loaded.
#[derive(Clone)]
pub(crate) struct Loading {
    /// Receives the result of loading.
    pub outcome: watch::Receiver<Option<Result<Loaded>>>,
    /// Cancels the loading if the model is no longer wanted.
    pub cancelled: Arc<Cancelled>,
}

/// A signal to give up loading a model.
#[derive(Default)]
pub(crate) struct Cancelled {
    is_given: AtomicBool,
    told: Notify,
}

impl Cancelled {
    /// Gives the signal.
    pub fn give(&self) {
        self.is_given.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
    }

    /// True if the signal was given.
    pub fn is_given(&self) -> bool {
        self.is_given.load(Ordering::SeqCst)
    }

    /// Waits until the signal is given.
    pub async fn given(&self) {
        let mut told = pin!(self.told.notified());
        told.as_mut().enable();
        if !self.is_given() {
            told.await;
        }
    }
}

/// A model that is loaded or being loaded.
pub(crate) enum Coming {
    Here(Loaded),
    Later(Loading),
}
