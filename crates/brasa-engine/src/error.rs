//! Errors between a prompt and its tokens.

use brasa_graph::device::{DeviceError, LostPart};
use brasa_graph::sampling::SamplingError;

/// The reason why a request was refused or ended early.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The prompt is empty, so there is no token to continue from.
    #[error("the prompt is empty: there is no token to continue from")]
    EmptyPrompt,
    /// The prompt does not fit into the context.
    #[error(
        "the prompt has {tokens} tokens, the context holds {context}\nhint: shorten it, or ask for a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of the context.
        context: usize,
    },
    /// A text is too long for an encoder.
    #[error(
        "the text has {tokens} tokens, the encoder reads at most {context}\nhint: shorten it, or split it"
    )]
    TextTooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Most tokens of a text.
        context: usize,
    },
    /// The text reached the end of the context.
    #[error(
        "the context of {context} tokens is full\nhint: ask for a larger one, limit the answer, or choose a context policy"
    )]
    ContextFull {
        /// Positions of the context.
        context: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The request needs more KV pages than the cache may have, even if it runs alone.
    #[error(
        "the KV cache is full: {pages} pages in use, a budget of {budget_bytes} bytes\nhint: a shorter text, a smaller context, or a larger budget"
    )]
    CacheFull {
        /// Pages that exist of the cache group that needs another one.
        pages: usize,
        /// Most bytes that the pages of all groups may take.
        budget_bytes: u64,
    },
    /// The number of waiting requests has reached its limit.
    #[error(
        "the queue is full: {waiting} requests wait for a place\nhint: try again later, or allow a longer queue"
    )]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
    },
    /// The request's deadline passed.
    #[error("the deadline passed after {tokens} tokens")]
    DeadlineExceeded {
        /// Tokens generated until then.
        tokens: usize,
    },
    /// The session is still producing an earlier answer.
    #[error("the session is still busy with an earlier request")]
    SessionBusy,
    /// The options make no sense; the text names the option and its value.
    #[error("{0}")]
    Options(String),
    /// No token could be drawn, or the sampling options make no sense.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The engine was shut down, or its thread ended.
    #[error("the engine is closed")]
    Closed,
}

impl EngineError {
    /// True if the engine has ended, so that no later request of it can succeed. Every [loss](Self::lost) of a device
    /// ends an engine, since an engine cannot compile its program again.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Closed) || self.lost().is_some()
    }

    /// How much the device has lost, and so what another engine needs anew; `None` for errors that are no loss of a
    /// device.
    pub fn lost(&self) -> Option<LostPart> {
        match self {
            Self::Device(DeviceError::Lost { part, .. }) => Some(*part),
            _ => None,
        }
    }
}
