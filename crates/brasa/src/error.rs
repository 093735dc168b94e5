//! Errors of the library, by the crate that they come from.

use std::path::PathBuf;

/// The reason why a model could not be loaded or a request not be served. A message with a known remedy names it in a
/// line that begins with `hint:`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model file.
    #[error(transparent)]
    Format(#[from] brasa_formats::FormatError),
    /// The model's configuration or tensors.
    #[error(transparent)]
    Model(#[from] brasa_models::ModelError),
    /// The tokenizer or the chat template.
    #[error(transparent)]
    Tokenizer(#[from] brasa_tokenizer::TokenizerError),
    /// The device.
    #[error(transparent)]
    Device(#[from] brasa_graph::device::DeviceError),
    /// A request.
    #[error(transparent)]
    Engine(#[from] brasa_engine::EngineError),
    /// A file of the caller's.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A text too short for its perplexity.
    #[error(
        "the text has {tokens} tokens, at least {needed} are needed for windows of {window}\nhint: take a longer text, or shorter windows"
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens that two windows have.
        needed: usize,
        /// Tokens of a window.
        window: usize,
    },
    /// Options that make no sense.
    #[error("{0}")]
    Options(String),
}
