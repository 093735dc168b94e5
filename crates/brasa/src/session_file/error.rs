//! Reasons why a session's file is not read.

/// The reason why a session's file cannot be read, or does not belong to the loaded model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionFileError {
    /// The system failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file is no session file.
    #[error("this is no file of a session")]
    NotASession,
    /// The file was written by another version of Brasa.
    #[error("a session's file of version {found}, expected {expected}\nhint: save the session anew")]
    Version {
        /// The file's version.
        found: u32,
        /// The only version that can be read.
        expected: u32,
    },
    /// The file is cut off.
    #[error("the file ends in the middle: {part} is cut off")]
    CutOff {
        /// The part that is not all there.
        part: &'static str,
    },
    /// The file was changed since it was written.
    #[error("the file is damaged: the checksum of {part} does not match")]
    Checksum {
        /// The part whose checksum is wrong.
        part: &'static str,
    },
    /// The file's header makes no sense.
    #[error("the file's header is malformed: {reason}")]
    Malformed {
        /// Description of the mistake.
        reason: String,
    },
    /// The session ran on another model, or one that was loaded otherwise.
    #[error(
        "the session was saved with another {what}: {found} in the file, {expected} here\nhint: load the model as it was when the session was saved, or begin a new session"
    )]
    Differs {
        /// The part of the identity that differs.
        what: &'static str,
        /// The value in the file.
        found: String,
        /// The value of the loaded model.
        expected: String,
    },
    /// The settings are too many for a file.
    #[error("the settings of the session take {bytes} bytes in its file, at most {most} are possible")]
    TooLarge {
        /// Bytes of the header.
        bytes: usize,
        /// Most bytes of a header.
        most: usize,
    },
}

impl SessionFileError {
    /// A header that makes no sense.
    pub(super) fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed { reason: reason.into() }
    }
}
