use std::path::Path;

use brasa_formats::FormatError;
use brasa_graph::GraphError;
use brasa_graph::device::DeviceError;

/// Errors of training and of its input.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A file could not be read or written.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file.
        path: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// Examples cannot be learned from.
    #[error("{place}: {what}\nhint: {hint}")]
    Data {
        /// The file, followed by the line if there is one: `train.jsonl:17`.
        place: String,
        /// The problem that was found, and what was expected.
        what: String,
        /// A remedy.
        hint: String,
    },
    /// A setting is not possible.
    #[error("{what}\nhint: {hint}")]
    Setting {
        /// The setting, its value and what is wrong with it.
        what: String,
        /// A remedy.
        hint: String,
    },
    /// The loss or its gradient is no finite number. The update has changed no values.
    #[error(
        "update {update}: {what} is {value}\nhint: take a lower learning rate or a longer warm-up, and go on from a checkpoint"
    )]
    NotFinite {
        /// Number of the update, from 1.
        update: u64,
        /// Name of the quantity: the loss, or the norm of the gradient.
        what: &'static str,
        /// The value, which is NaN or infinite.
        value: f64,
    },
    /// A run cannot continue from a checkpoint.
    #[error("{path}: {what}\nhint: {hint}")]
    Checkpoint {
        /// Path of the checkpoint.
        path: String,
        /// The problem with the checkpoint.
        what: String,
        /// A remedy.
        hint: String,
    },
    /// The device failed, or cannot run a training step.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model's graph cannot be trained.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A file could not be written.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl TrainError {
    pub(crate) fn setting(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Setting { what: what.into(), hint: hint.into() }
    }

    pub(crate) fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.display().to_string(), error }
    }
}

/// The result of functions in this crate.
pub type Result<T> = std::result::Result<T, TrainError>;
