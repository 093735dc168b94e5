//! Errors of the library, grouped by the crate that they come from.

use std::path::{Path, PathBuf};

use crate::{BackendError, BundleError, SessionFileError};

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
    /// A low-rank adapter that does not fit the model.
    #[error("{}: {error}", path.display())]
    Adapter {
        /// Directory or file of the adapter.
        path: PathBuf,
        /// Why it does not fit.
        error: Box<brasa_models::ModelError>,
    },
    /// The tokenizer or the chat template.
    #[error(transparent)]
    Tokenizer(#[from] brasa_tokenizer::TokenizerError),
    /// The device.
    #[error(transparent)]
    Device(#[from] brasa_graph::device::DeviceError),
    /// A grammar.
    #[error(transparent)]
    Grammar(#[from] brasa_grammar::GrammarError),
    /// A backend that could not be chosen, or that is not native.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A request.
    #[error(transparent)]
    Engine(#[from] brasa_engine::EngineError),
    /// Training.
    #[error(transparent)]
    Train(#[from] brasa_train::TrainError),
    /// A transcription.
    #[error(transparent)]
    Speech(#[from] brasa_speech::SpeechError),
    /// A file of sound.
    #[error(transparent)]
    Audio(#[from] brasa_audio::AudioError),
    /// A file of the caller's.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A session's file.
    #[error("{}{error}", path.as_ref().map_or(String::new(), |path| format!("{}: ", path.display())))]
    SessionFile {
        /// Which file; `None` if the bytes came from elsewhere.
        path: Option<PathBuf>,
        /// Mistake in the file.
        error: SessionFileError,
    },
    /// A state bundle.
    #[error("{}: {error}", path.display())]
    Bundle {
        /// Path of the bundle's envelope.
        path: PathBuf,
        /// Mistake in the bundle.
        error: BundleError,
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

impl Error {
    /// The error, if it is about a session's file, with the file's name.
    pub(crate) fn of_file(self, path: &Path) -> Self {
        match self {
            Self::SessionFile { error, .. } => Self::SessionFile { path: Some(path.to_owned()), error },
            other => other,
        }
    }
}

impl From<SessionFileError> for Error {
    fn from(error: SessionFileError) -> Self {
        Self::SessionFile { path: None, error }
    }
}
