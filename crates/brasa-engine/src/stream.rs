//! The caller's end of a generation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use crate::request::Summary;
use crate::{EngineError, FinishReason, Metrics, Token};

/// What the engine's thread sends to a stream.
pub(crate) enum Event {
    Token(Token),
    Done(Summary),
    Failed(EngineError, Metrics),
}

/// Tokens of one generation, as they appear.
///
/// Each stream ends by itself and keeps its own reason and metrics. Dropping it cancels the generation and frees
/// its pages at the next step. A failed stream yields its error once, after the tokens that were generated.
pub struct TokenStream {
    events: Receiver<Event>,
    cancelled: Arc<AtomicBool>,
    finish: Option<FinishReason>,
    metrics: Metrics,
    tail: String,
    ended: bool,
}

impl TokenStream {
    pub(crate) fn new(events: Receiver<Event>, cancelled: Arc<AtomicBool>) -> Self {
        Self {
            events,
            cancelled,
            finish: None,
            metrics: Metrics::default(),
            tail: String::new(),
            ended: false,
        }
    }

    /// Asks the generation to end; tokens already made are still yielded.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// A handle that cancels from elsewhere, e.g. a signal handler: store `true`.
    pub fn canceller(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Why the generation ended; `None` while it runs and after an error.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Text that was still held back, for a possible stop string or an incomplete character, when the last token
    /// had been yielded. Empty until the stream has ended.
    pub fn tail(&self) -> &str {
        &self.tail
    }

    /// What it cost; complete once the stream has ended.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl Iterator for TokenStream {
    type Item = Result<Token, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.events.recv() {
            Ok(Event::Token(token)) => Some(Ok(token)),
            Ok(Event::Done(summary)) => {
                self.ended = true;
                self.finish = Some(summary.reason);
                self.metrics = summary.metrics;
                self.tail = summary.tail;
                None
            }
            Ok(Event::Failed(error, metrics)) => {
                self.ended = true;
                self.metrics = metrics;
                Some(Err(error))
            }
            Err(_) => {
                self.ended = true;
                Some(Err(EngineError::Closed))
            }
        }
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.cancel();
    }
}
