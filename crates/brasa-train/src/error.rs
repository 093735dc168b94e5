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
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// Examples cannot be learned from.
    #[error("{place}: {what}\nhint: {hint}")]
    Data {
        /// The file, with the line where there is one: `train.jsonl:17`.
        place: String,
        /// The problem that was found, and what was expected.
        what: String,
        /// A remedy.
        hint: String,
    },
    /// A setting that is not possible.
    #[error("{what}\nhint: {hint}")]
    Setting {
        /// The setting, its value and what is wrong with it.
        what: String,
        /// A remedy.
        hint: String,
    },
    /// The loss or its gradient is no finite number. Nothing was changed by this update.
    #[error(
        "update {update}: {what} is {value}\nhint: take a lower learning rate or a longer warm-up, and go on from a checkpoint"
    )]
    NotFinite {
        /// The update, from 1.
        update: u64,
        /// The loss, or the norm of the gradient.
        what: &'static str,
        /// The value that is not finite.
        value: f64,
    },
    /// A checkpoint cannot be gone on from.
    #[error("{path}: {what}\nhint: {hint}")]
    Checkpoint {
        /// The file.
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

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, TrainError>;
