//! Reasons why a bundle is not saved or loaded.

use crate::SessionFileError;

/// A bundle that cannot be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The system failed.
    #[error(transparent)]
    Io(std::io::Error),
    /// The path names no file.
    #[error("a bundle needs a file's name")]
    NoName,
    /// The file is no bundle.
    #[error("this is no state bundle: its kind is {found}, expected \"{expected}\"")]
    Kind {
        /// The kind that the file names.
        found: String,
        /// The kind of a bundle.
        expected: &'static str,
    },
    /// The envelope was written by another version of Brasa.
    #[error("a state bundle of version {found}, expected {expected}\nhint: save the bundle anew")]
    Version {
        /// The envelope's version.
        found: String,
        /// The only version that can be read.
        expected: u64,
    },
    /// The envelope makes no sense.
    #[error("the bundle's envelope is malformed: {reason}")]
    Malformed {
        /// Description of the mistake.
        reason: String,
    },
    /// The sessions ran on another model, or one that was loaded otherwise.
    #[error(transparent)]
    Identity(SessionFileError),
    /// A file's name that leads out of the bundle's folder.
    #[error("the bundle names {file:?}, which is no plain file in its folder")]
    Outside {
        /// The name in the envelope.
        file: String,
    },
    /// A session's file that is not there.
    #[error("the bundle's file {file} is missing\nhint: the files of a bundle are moved and copied together")]
    Missing {
        /// Name of the file.
        file: String,
    },
    /// A session's file that is not the one that was saved.
    #[error("the bundle's file {file} has changed: its size or SHA-256 is not the envelope's")]
    Changed {
        /// Name of the file.
        file: String,
    },
    /// A session that is not the one that the envelope describes.
    #[error("the bundle contradicts its file {file}: another {what}")]
    Contradicts {
        /// Name of the session's file.
        file: String,
        /// The field that differs.
        what: &'static str,
    },
    /// A session of another model among those to save.
    #[error("the session {name:?} is of another model than the bundle")]
    ForeignSession {
        /// The session's name.
        name: String,
    },
    /// A name that a session cannot have.
    #[error("a session's name has {characters} characters, expected 1 to {most}")]
    Name {
        /// Characters of the name.
        characters: usize,
        /// Most characters of a name.
        most: usize,
    },
    /// The sessions are too many for an envelope.
    #[error("the bundle's envelope takes {bytes} bytes, at most {most} are possible")]
    TooLarge {
        /// Bytes of the envelope.
        bytes: usize,
        /// Most bytes of an envelope.
        most: usize,
    },
}

impl BundleError {
    /// An envelope that makes no sense.
    pub(super) fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed { reason: reason.into() }
    }
}
