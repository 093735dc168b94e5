//! What can be wrong with a checkpoint as a model.

use brasa_graph::GraphError;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, ModelError>;

/// A checkpoint that does not make a model. Messages name the key or tensor, what was found and what was expected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// No family is known by this name.
    #[error("architecture {architecture} is not supported\nhint: supported are {supported}")]
    UnknownArchitecture {
        /// As the file names it.
        architecture: String,
        /// The names that would have been understood in this container.
        supported: String,
    },
    /// The configuration is no configuration at all.
    #[error("configuration: {what}")]
    Config {
        /// What is wrong.
        what: String,
    },
    /// A key without which the model cannot be built.
    #[error("configuration key {key} is missing")]
    MissingKey {
        /// As this container spells it.
        key: String,
    },
    /// A key with a value of the wrong kind or out of bounds.
    #[error("configuration key {key}: found {found}, expected {expected}")]
    BadValue {
        /// As this container spells it.
        key: String,
        /// The value.
        found: String,
        /// What would do.
        expected: String,
    },
    /// Dimensions that do not fit together.
    #[error("configuration: {what}, expected {expected}")]
    Dimensions {
        /// What was found.
        what: String,
        /// What would do.
        expected: String,
    },
    /// A key that nobody read, where the caller asked for strictness.
    #[error("configuration key {key} = {value} is not known, and may change what the model computes")]
    UnknownKey {
        /// As this container spells it.
        key: String,
        /// Its value.
        value: String,
    },
    /// A tensor without which the model cannot be built.
    #[error("tensor {tensor} is missing")]
    MissingTensor {
        /// The name (or names) that would have been taken.
        tensor: String,
    },
    /// A tensor of another shape than the configuration asks for.
    #[error(
        "{tensor}: shape {found:?}, expected {expected:?} ({why})\nhint: configuration and tensors are of different models"
    )]
    TensorShape {
        /// Its name.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that the configuration asks for.
        expected: Vec<usize>,
        /// How that shape comes about.
        why: String,
    },
    /// A small tensor (a norm, a bias, a table of factors) that is not stored as plain numbers.
    #[error("{tensor}: stored as {format}, expected plain floats")]
    TensorFormat {
        /// Its name.
        tensor: String,
        /// Its storage format.
        format: String,
    },
    /// A tensor that nothing uses, where the caller asked for strictness.
    #[error("tensor {tensor} has no place in a {family} model")]
    UnusedTensor {
        /// Its name.
        tensor: String,
        /// The family.
        family: &'static str,
    },
    /// The graph does not fit together.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
