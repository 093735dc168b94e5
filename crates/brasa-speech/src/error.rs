//! Errors of transcribing.

use brasa_audio::AudioError;
use brasa_graph::device::DeviceError;
use brasa_tokenizer::TokenizerError;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, SpeechError>;

/// An error of transcription.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpeechError {
    /// A vocabulary without the tokens that transcription needs.
    #[error("vocabulary of a model of speech: {what}")]
    Vocabulary {
        /// The mistake.
        what: String,
    },
    /// A language that the model does not know.
    #[error(
        "language {name:?} is not known to this model\nhint: languages are named by code or in English: en, german"
    )]
    Language {
        /// The name that was asked for.
        name: String,
    },
    /// Options that contradict each other or the model.
    #[error("{what}")]
    Options {
        /// The mistake.
        what: String,
    },
    /// The grammar can no longer tell which tokens may come.
    #[error("grammar: {what}")]
    Grammar {
        /// The mistake.
        what: String,
    },
    /// The sound cannot be read.
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// The vocabulary does not read or write a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
