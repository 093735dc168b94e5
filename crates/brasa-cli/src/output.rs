//! Text to standard output, as it appears.

use std::io::{Write, stdout};
use std::path::Path;

use brasa::formats::{Existing, FormatError, OutputFile};

use crate::failure::Failure;
use crate::interrupt;

/// Permission to replace a file.
#[derive(Clone, Copy)]
pub struct Force {
    /// True if the user gave it.
    pub given: bool,
    /// The way to give it, for the hint.
    pub how: &'static str,
}

/// Writes text and makes it visible at once.
///
/// # Errors
///
/// [`Failure::OutputClosed`] if the reader has gone.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes one line.
///
/// # Errors
///
/// [`Failure::OutputClosed`] if the reader has gone.
pub fn line(text: &str) -> Result<(), Failure> {
    write(&format!("{text}\n"))
}

/// Writes a file that is either whole or not there, or a device or a pipe in place. A file that is there is replaced
/// only with `force`.
///
/// # Errors
///
/// [`Failure::Failed`], naming the file.
pub fn file(
    path: &Path,
    force: Force,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let refused = |error: FormatError| match error {
        FormatError::Exists { .. } => Failure::Failed(format!("{error}\nhint: {} replaces it", force.how)),
        error => Failure::Failed(error.to_string()),
    };
    interrupt::clean_up_when_killed();
    let existing = if force.given { Existing::Replace } else { Existing::Keep };
    let mut file = OutputFile::create(path, existing).map_err(refused)?;
    for stale in file.removed() {
        eprintln!("{} is gone: a run that was killed had left it", stale.display());
    }
    write(&mut file).map_err(|error| Failure::file(path, &error))?;
    file.commit().map_err(refused)
}
