//! Errors between a prompt and its tokens.

use brasa_graph::device::DeviceError;
use brasa_graph::sampling::SamplingError;

/// A request that could not be served, or not to its end.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The prompt has no tokens to continue from.
    #[error("the prompt is empty: there is no token to continue from")]
    EmptyPrompt,
    /// The prompt alone does not fit.
    #[error(
        "the prompt has {tokens} tokens, the context holds {context}\nhint: shorten it, or ask for a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of the context.
        context: usize,
    },
    /// A text that an encoder cannot read whole.
    #[error(
        "the text has {tokens} tokens, the encoder reads at most {context}\nhint: shorten it, or split it"
    )]
    TextTooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Most tokens of a text.
        context: usize,
    },
    /// Generation reached the end of the context.
    #[error(
        "the context of {context} tokens is full\nhint: ask for a larger one, limit the answer, or choose a context policy"
    )]
    ContextFull {
        /// Positions of the context.
        context: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The KV pages are too few for this request alone.
    #[error(
        "the KV cache is full: {pages} pages in use, a budget of {budget_bytes} bytes\nhint: a shorter text, a smaller context, or a larger budget"
    )]
    CacheFull {
        /// Pages that exist of the cache group that wanted another one.
        pages: usize,
        /// Most bytes of pages of all groups.
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
    /// Options that make no sense.
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
    /// True if no later request of this engine can succeed either.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Closed | Self::Device(DeviceError::Lost { .. }))
    }
}
