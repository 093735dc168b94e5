//! Devices that are lost.

use std::sync::{Mutex, PoisonError};

use brasa::engine::EngineError;
use brasa::speech::SpeechError;
use tokio::sync::Notify;

/// A device that was lost for good, with the only models that could be used.
#[derive(Default)]
pub(crate) struct Lost {
    reason: Mutex<Option<String>>,
    told: Notify,
}

impl Lost {
    /// Tells the server.
    pub fn tell(&self, reason: String) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.told.notify_one();
    }

    /// Waits until no model can be used any more, and says why.
    pub async fn reason(&self) -> String {
        loop {
            if let Some(reason) = self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone() {
                return reason;
            }
            self.told.notified().await;
        }
    }
}

/// True if a model could not be loaded because its device is lost.
pub(crate) fn is_loss(error: &brasa::Error) -> bool {
    match error {
        brasa::Error::Device(error) | brasa::Error::Speech(SpeechError::Device(error)) => {
            EngineError::Device(error.clone()).is_final()
        }
        brasa::Error::Engine(error) => error.is_final(),
        _ => false,
    }
}
