//! Errors of a checkpoint that cannot be read as a model.

use brasa_graph::GraphError;

/// The result of functions in this crate.
pub type Result<T> = std::result::Result<T, ModelError>;

/// A checkpoint that does not make a model. Messages name the key or tensor, what was found and what was expected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No family has this name.
    #[error("architecture {architecture} is not supported\nhint: supported are {supported}")]
    UnknownArchitecture {
        /// The architecture, in the file's spelling.
        architecture: String,
        /// Names of the supported architectures in this container.
        supported: String,
    },
    /// The model recognises speech where another kind was expected.
    #[error(
        "{architecture} is a model of speech: it turns sound into text, and cannot do what was asked\nhint: `brasa transcribe` and `Transcriber` run it"
    )]
    IsSpeech {
        /// The architecture, in the file's spelling.
        architecture: String,
    },
    /// The model is one of text where a model of speech was expected.
    #[error(
        "{architecture} is a model of text and cannot transcribe sound, expected a model of speech ({supported})"
    )]
    IsText {
        /// The architecture, in the file's spelling.
        architecture: String,
        /// The names of architectures of speech.
        supported: String,
    },
    /// The model is an encoder where a decoder was expected.
    #[error("{architecture} is a text encoder: it makes vectors of texts, and generates no text")]
    IsEncoder {
        /// The architecture, in the file's spelling.
        architecture: String,
    },
    /// The configuration cannot be read at all.
    #[error("configuration: {what}")]
    Config {
        /// The mistake.
        what: String,
    },
    /// A key that the model needs is missing.
    #[error("configuration key {key} is missing")]
    MissingKey {
        /// The key, in this container's spelling.
        key: String,
    },
    /// A key has a value of the wrong kind or out of bounds.
    #[error("configuration key {key}: found {found}, expected {expected}")]
    BadValue {
        /// The key, in this container's spelling.
        key: String,
        /// The value.
        found: String,
        /// A phrase for the values that are accepted.
        expected: String,
    },
    /// Dimensions do not fit together.
    #[error("configuration: {what}, expected {expected}")]
    Dimensions {
        /// The dimensions that were found.
        what: String,
        /// A phrase for the values that are accepted.
        expected: String,
    },
    /// A configuration key is not understood. This is an error only if the caller is strict.
    #[error("configuration key {key} = {value} is not known, and may change what the model computes")]
    UnknownKey {
        /// The key, in this container's spelling.
        key: String,
        /// The value.
        value: String,
    },
    /// A setting cannot be expressed in GGUF.
    #[error("configuration key {key}: {why}")]
    NoGgufForm {
        /// The key in the checkpoint's spelling, without its path.
        key: String,
        /// The obstacle.
        why: String,
    },
    /// A GGUF file would give other results than the checkpoint.
    #[error("in GGUF this model would compute something else: {difference}")]
    OtherInGguf {
        /// The setting, its value in the checkpoint, and its value in GGUF.
        difference: String,
    },
    /// A tensor that the model needs is missing.
    #[error("tensor {tensor} is missing")]
    MissingTensor {
        /// The names under which the tensor was looked for.
        tensor: String,
    },
    /// An index of safetensors names a tensor that no file has.
    #[error(
        "tensor {tensor} is missing: {index} says that it is in {file}, which does not have it\nhint: index and files are of different versions of the model; download both anew"
    )]
    AbsentTensor {
        /// The tensor's name.
        tensor: String,
        /// The file name of the index.
        index: String,
        /// The file that should have the tensor.
        file: String,
    },
    /// A tensor has another shape than the configuration requires.
    #[error(
        "{tensor}: shape {found:?}, expected {expected:?} ({why})\nhint: configuration and tensors are of different models"
    )]
    TensorShape {
        /// The tensor's name.
        tensor: String,
        /// The tensor's shape.
        found: Vec<usize>,
        /// The shape that the configuration requires.
        expected: Vec<usize>,
        /// The product of settings that gives the expected shape.
        why: String,
    },
    /// A small tensor (a norm, a bias, a table of factors) is not stored as plain numbers.
    #[error("{tensor}: stored as {format}, expected plain floats")]
    TensorFormat {
        /// The tensor's name.
        tensor: String,
        /// The tensor's storage format.
        format: String,
    },
    /// A tensor is not used by the model. This is an error only if the caller is strict.
    #[error("tensor {tensor} has no place in a {family} model")]
    UnusedTensor {
        /// The tensor's name.
        tensor: String,
        /// The family of the model.
        family: &'static str,
    },
    /// A low-rank adapter does not fit the model.
    #[error("adapter: {layer}: {what}\nhint: an adapter fits the model that it was trained on, and no other")]
    Adapter {
        /// The layer, by its name in the adapter or in the model.
        layer: String,
        /// The mistake.
        what: String,
    },
    /// The graph could not be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
