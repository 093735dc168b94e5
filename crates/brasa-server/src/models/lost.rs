//! Reports that devices are lost.

use std::sync::{Mutex, PoisonError};

use brasa::engine::EngineError;
use brasa::graph::device::LostPart;
use brasa::speech::SpeechError;
use tokio::sync::Notify;

/// A signal that a device was lost for good and no model can be used any more.
#[derive(Default)]
pub(crate) struct Lost {
    reason: Mutex<Option<String>>,
    told: Notify,
}

impl Lost {
    /// Gives the signal, with its reason.
    pub fn tell(&self, reason: String) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.told.notify_one();
    }

    /// Waits for the signal; returns its reason.
    pub async fn reason(&self) -> String {
        loop {
            if let Some(reason) = self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone() {
                return reason;
            }
            self.told.notified().await;
        }
    }
}

/// How much of a device is lost, if a loss is the reason why a model could not be loaded; `None` for other reasons.
pub(crate) fn lost_part(error: &brasa::Error) -> Option<LostPart> {
    match error {
        brasa::Error::Device(error) | brasa::Error::Speech(SpeechError::Device(error)) => {
            EngineError::Device(error.clone()).lost()
        }
        // If an engine closed while it started, its device may work at the next attempt.
        brasa::Error::Engine(EngineError::Closed) => Some(LostPart::Program),
        brasa::Error::Engine(error) => error.lost(),
        _ => None,
    }
}
