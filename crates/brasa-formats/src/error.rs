//! Errors of a file, a key or a tensor.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of reading or writing model files.
pub type Result<T, E = FormatError> = std::result::Result<T, E>;

/// The reason why a file could not be read or written.
///
/// The error concerns a file. Its variants are kinds of mistakes; a [`Fault`] has the place in the file and a remedy. A call that
/// decodes or encodes rows fails with a [`CodecError`](crate::codec::CodecError) instead: its cause is no file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The operating system refused.
    #[error("{}: {source}", ShownPath(path))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// An output would replace a file that shall be kept.
    #[error("{} exists", ShownPath(path))]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The model is of no kind that this crate reads.
    #[error("{0}")]
    Unrecognised(Box<Fault>),
    /// The file contradicts its own format: damaged, cut off, or made to deceive.
    #[error("{0}")]
    Malformed(Box<Fault>),
    /// A valid file that holds something Brasa does not read.
    #[error("{0}")]
    Unsupported(Box<Fault>),
    /// A file, key or tensor that has to be there is not, or a key has the wrong type or range.
    #[error("{0}")]
    Missing(Box<Fault>),
    /// Data to be written that are contradictory or incomplete.
    #[error("{0}")]
    Unwritable(Box<Fault>),
}

/// A mistake in a file: its place, the value that was found there, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file; empty for data that came from memory.
    pub path: PathBuf,
    /// Position in the file, if it is known.
    pub offset_bytes: Option<u64>,
    /// The key or tensor concerned.
    pub name: Option<String>,
    /// A sentence with what was found and what was expected.
    pub problem: String,
    /// A remedy, if one is known.
    pub hint: Option<String>,
}

impl FormatError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// Place, problem and hint, for everything but a refusal of the operating system.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Io { .. } | Self::Exists { .. } => None,
            Self::Unrecognised(fault)
            | Self::Malformed(fault)
            | Self::Unsupported(fault)
            | Self::Missing(fault)
            | Self::Unwritable(fault) => Some(fault),
        }
    }
}

impl Fault {
    pub(crate) fn new(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self { path: path.into(), offset_bytes: None, name: None, problem: problem.into(), hint: None }
    }

    pub(crate) fn at(mut self, offset_bytes: impl TryInto<u64>) -> Self {
        self.offset_bytes = offset_bytes.try_into().ok();
        self
    }

    pub(crate) fn of(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn unrecognised(self) -> FormatError {
        FormatError::Unrecognised(Box::new(self))
    }

    pub(crate) fn malformed(self) -> FormatError {
        FormatError::Malformed(Box::new(self))
    }

    pub(crate) fn unsupported(self) -> FormatError {
        FormatError::Unsupported(Box::new(self))
    }

    pub(crate) fn missing(self) -> FormatError {
        FormatError::Missing(Box::new(self))
    }

    pub(crate) fn unwritable(self) -> FormatError {
        FormatError::Unwritable(Box::new(self))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Much of this was written by whoever made the file: control characters must not reach a terminal, and nothing
        // may be of any length.
        if !self.path.as_os_str().is_empty() {
            write!(f, "{}: ", ShownPath(&self.path))?;
        }
        if let Some(name) = &self.name {
            write!(f, "{}: ", Printable(name))?;
        }
        if let Some(offset) = self.offset_bytes {
            write!(f, "byte {offset}: ")?;
        }
        write_visible(&self.problem, 1000, f)?;
        let Some(hint) = &self.hint else { return Ok(()) };
        f.write_str("\nhint: ")?;
        write_visible(hint, 1000, f)
    }
}

impl From<Fault> for FormatError {
    fn from(fault: Fault) -> Self {
        fault.malformed()
    }
}

/// A name from a file, made safe to show inside a message.
pub(crate) struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_visible(self.0, 120, f)
    }
}

/// A path, made safe to show: names of files may come from an index that somebody else wrote.
pub(crate) struct ShownPath<'a>(pub &'a Path);

impl fmt::Display for ShownPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_visible(&self.0.to_string_lossy(), usize::MAX, f)
    }
}

/// Writes text with its control characters escaped, and cut if it grows longer than `longest` characters.
fn write_visible(text: &str, longest: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, c) in text.chars().enumerate() {
        if at == longest {
            return f.write_str("…");
        }
        if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
    }
    Ok(())
}
