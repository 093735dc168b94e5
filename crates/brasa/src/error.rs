//! Errors of the library, grouped by the crate that they come from.

use std::path::{Path, PathBuf};

use crate::{BackendError, BundleError, SessionFileError};

/// The reason why a model could not be loaded or a request not be served. A message with a known remedy names it in a
/// line that begins with `hint:`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model file cannot be read or is damaged.
    #[error(transparent)]
    Format(#[from] brasa_formats::FormatError),
    /// The model's configuration or tensors are wrong or not supported.
    #[error(transparent)]
    Model(#[from] brasa_models::ModelError),
    /// A low-rank adapter that does not fit the model.
    #[error("{}: {error}", path.display())]
    Adapter {
        /// Directory or file of the adapter.
        path: PathBuf,
        /// The reason why the adapter does not fit.
        error: Box<brasa_models::ModelError>,
    },
    /// An error of the tokenizer or the chat template.
    #[error(transparent)]
    Tokenizer(#[from] brasa_tokenizer::TokenizerError),
    /// An error of the device.
    #[error(transparent)]
    Device(#[from] brasa_graph::device::DeviceError),
    /// A grammar is wrong or not supported.
    #[error(transparent)]
    Grammar(#[from] brasa_grammar::GrammarError),
    /// A backend that could not be chosen, or that is not native.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A request was refused or failed.
    #[error(transparent)]
    Engine(#[from] brasa_engine::EngineError),
    /// An error of training.
    #[error(transparent)]
    Train(#[from] brasa_train::TrainError),
    /// An error of a transcription.
    #[error(transparent)]
    Speech(#[from] brasa_speech::SpeechError),
    /// A sound file cannot be read.
    #[error(transparent)]
    Audio(#[from] brasa_audio::AudioError),
    /// A file that the caller named cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A session's file cannot be read or written.
    #[error("{}{error}", path.as_ref().map_or(String::new(), |path| format!("{}: ", path.display())))]
    SessionFile {
        /// Path of the file; `None` if the bytes came from elsewhere.
        path: Option<PathBuf>,
        /// Mistake in the file.
        error: SessionFileError,
    },
    /// A state bundle cannot be saved or loaded.
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
    /// The options make no sense; the text names the option and its value.
    #[error("{0}")]
    Options(String),
}

impl Error {
    /// Adds the file's path to an error about a session's file. Other errors are unchanged.
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
