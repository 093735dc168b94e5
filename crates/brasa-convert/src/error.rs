//! Why a conversion fails.

use brasa_formats::FormatError;
use brasa_formats::codec::CodecError;

/// The result of a conversion.
pub type Result<T, E = ConvertError> = std::result::Result<T, E>;

/// Why a checkpoint could not be converted. The output file is as it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A file could not be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A name that is no recipe.
    #[error("unknown type {name}\nhint: expected one of {}", crate::Recipe::names())]
    UnknownRecipe {
        /// The name given.
        name: String,
    },
    /// An architecture that has no conversion.
    #[error("config.json: architecture {name} cannot be converted to GGUF\nhint: {known} can be")]
    UnsupportedArchitecture {
        /// What `architectures` or `model_type` says.
        name: String,
        /// Those that can.
        known: &'static str,
    },
    /// A key of `config.json` that is missing or unusable.
    #[error("config.json: {key}: {problem}")]
    Config {
        /// The key.
        key: String,
        /// What was found, and what was expected.
        problem: String,
    },
    /// A tensor that is missing, unknown, or of an unexpected shape.
    #[error("{name}: {problem}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What was found, and what was expected.
        problem: String,
    },
    /// Elements that cannot be decoded or encoded.
    #[error("{name}: row {row}: {source}")]
    Row {
        /// The tensor.
        name: String,
        /// The row.
        row: usize,
        /// What is wrong with it.
        source: CodecError,
    },
    /// A tokenizer that cannot be carried over.
    #[error("{file}: {problem}\nhint: {hint}")]
    Tokenizer {
        /// The file.
        file: &'static str,
        /// What was found, and what was expected.
        problem: String,
        /// What to do about it.
        hint: String,
    },
    /// The observer asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl ConvertError {
    pub(crate) fn config(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Config { key: key.into(), problem: problem.into() }
    }

    pub(crate) fn tensor(name: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Tensor { name: name.into(), problem: problem.into() }
    }

    pub(crate) fn tokenizer(file: &'static str, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Tokenizer { file, problem: problem.into(), hint: hint.into() }
    }
}
