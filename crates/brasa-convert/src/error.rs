//! Why a conversion fails.

use brasa_formats::FormatError;
use brasa_formats::codec::CodecError;
use brasa_models::ModelError;

/// The result of functions in this crate.
pub type Result<T, E = ConvertError> = std::result::Result<T, E>;

/// The reason why a checkpoint could not be converted. The output file is as it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A file could not be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The name is that of no recipe.
    #[error("unknown type {name}\nhint: expected one of {known}")]
    UnknownRecipe {
        /// The name that was given.
        name: String,
        /// The names of all recipes, separated by commas.
        known: String,
    },
    /// The model cannot be read, or GGUF has no keys for its configuration.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor is missing, unknown, or of an unexpected shape.
    #[error("{name}: {problem}")]
    Tensor {
        /// The name of the tensor.
        name: String,
        /// A sentence that says what was found and what was expected.
        problem: String,
    },
    /// Elements cannot be decoded or encoded.
    #[error("{name}: row {row}: {source}")]
    Row {
        /// The name of the tensor.
        name: String,
        /// The number of the row.
        row: usize,
        /// The codec's reason.
        source: CodecError,
    },
    /// A tokenizer cannot be converted.
    #[error("{file}: {problem}\nhint: {hint}")]
    Tokenizer {
        /// The file.
        file: &'static str,
        /// A sentence that says what was found and what was expected.
        problem: String,
        /// A remedy.
        hint: String,
    },
    /// The pre-tokenizer of a `tokenizer.json` has no name in GGUF.
    #[error(
        "tokenizer.json: pre-tokenizer not recognised: {found}\nhint: name one of llama.cpp's that cuts text in the same way, such as llama-bpe, qwen2 or gpt-2"
    )]
    UnknownPreTokenizer {
        /// The steps of the pre-tokenizer.
        found: String,
    },
    /// The system starts no more threads.
    #[error("a thread could not be started: {source}")]
    Thread {
        /// The system's error.
        source: std::io::Error,
    },
    /// The observer cancelled the conversion.
    #[error("cancelled")]
    Cancelled,
}

impl ConvertError {
    pub(crate) fn tensor(name: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Tensor { name: name.into(), problem: problem.into() }
    }

    pub(crate) fn tokenizer(file: &'static str, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Tokenizer { file, problem: problem.into(), hint: hint.into() }
    }
}
