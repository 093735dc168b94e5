//! A model that is there, or whose loading is waited for.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

use crate::http::error::Result;
use crate::models::loaded::Loaded;

/// A model that is being loaded.
#[derive(Clone)]
pub(crate) struct Loading {
    /// Tells when it is over.
    pub outcome: watch::Receiver<Option<Result<Loaded>>>,
    /// Given if the model is no longer wanted.
    pub cancelled: Arc<Cancelled>,
}

/// The order to give up loading a model.
#[derive(Default)]
pub(crate) struct Cancelled {
    is_given: AtomicBool,
    told: Notify,
}

impl Cancelled {
    /// Gives the order.
    pub fn give(&self) {
        self.is_given.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
    }

    /// True if the order was given.
    pub fn is_given(&self) -> bool {
        self.is_given.load(Ordering::SeqCst)
    }

    /// Waits until the order is given.
    pub async fn given(&self) {
        let mut told = pin!(self.told.notified());
        told.as_mut().enable();
        if !self.is_given() {
            told.await;
        }
    }
}

/// A model that is there, or that will be.
pub(crate) enum Coming {
    Here(Loaded),
    Later(Loading),
}
