//! A loaded model of speech, and the requests that use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use brasa::Transcriber;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::error::{ApiError, Result};
use crate::models::presence::{Busy, Presence};
use crate::models::reaper::Reaped;

/// Number of sounds that are transcribed at once. They take turns on the device, window by window; one is decoded to samples
/// while another is computed.
const RUNNING: usize = 2;
/// Most sounds that wait, each with its bytes in memory.
const MOST_WAITING: usize = 32;

/// A model of speech in memory.
pub(crate) struct LoadedSpeech {
    pub transcriber: Reaped<Transcriber>,
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
    // The model keeps it until it is gone: whoever waits for the end of a model waits for its presence.
    pub presence: Arc<Presence>,
}

/// A permit to transcribe a sound, until dropped.
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    _busy: Busy,
}

impl LoadedSpeech {
    /// Wraps a model that has no requests yet.
    pub fn new(id: String, transcriber: Transcriber) -> Self {
        let (places, waiting) = (Arc::new(Semaphore::new(RUNNING)), AtomicUsize::new(0));
        let presence = Presence::new(id);
        Self { transcriber: Reaped::new(transcriber, &presence), places, waiting, presence }
    }

    /// The id of the model.
    pub fn id(&self) -> &str {
        &self.presence.id
    }

    /// Number of sounds that are being transcribed.
    pub fn running(&self) -> usize {
        RUNNING - self.places.available_permits()
    }

    /// Number of sounds that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits for a permit, in order of arrival. Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// 503 if [`MOST_WAITING`] sounds wait already.
    pub async fn place(&self) -> Result<Place> {
        let busy = self.presence.keep_busy();
        let permit = if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            permit
        } else {
            let _waiting = Waiting::enter(&self.waiting)?;
            let permit = Arc::clone(&self.places).acquire_owned().await;
            permit.map_err(|_| ApiError::internal("the model's places are gone"))?
        };
        Ok(Place { _permit: permit, _busy: busy })
    }
}

/// Counts a waiting request, until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(waiting: &'a AtomicUsize) -> Result<Self> {
        let waiting = Self(waiting);
        if waiting.0.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            let message = format!("{MOST_WAITING} sounds wait to be transcribed, the most that may");
            return Err(ApiError::unavailable("queue_full", message));
        }
        Ok(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
