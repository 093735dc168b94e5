use std::path::Path;

/// Faults of training and of what it is given.
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
        /// What was found there, and what was expected.
        what: String,
        /// A remedy.
        hint: String,
    },
}

impl TrainError {
    pub(crate) fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.display().to_string(), error }
    }
}

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, TrainError>;
