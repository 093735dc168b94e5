//! Text to standard output, as it appears.

use std::io::{Write, stdout};
use std::path::Path;

use brasa::formats::{AtomicFile, FormatError};

use crate::failure::Failure;

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

/// Writes a file that is either whole or not there: to a sibling first, renamed when complete.
///
/// # Errors
///
/// [`Failure::Failed`], naming the file.
pub fn file(path: &Path, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<(), Failure> {
    let refused = |error: FormatError| Failure::Failed(error.to_string());
    let mut file = AtomicFile::create(path).map_err(refused)?;
    write(&mut file).map_err(|error| Failure::file(path, &error))?;
    file.commit().map_err(refused)
}
