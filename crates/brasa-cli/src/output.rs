//! Text to standard output, as it appears.

use std::io::{Write, stdout};
use std::path::Path;

use crate::failure::Failure;

/// Writes text and makes it visible at once.
///
/// # Errors
///
/// [`Failure::OutputClosed`] where nobody reads it any more.
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
/// [`Failure::OutputClosed`] where nobody reads it any more.
pub fn line(text: &str) -> Result<(), Failure> {
    write(&format!("{text}\n"))
}

/// Writes a file that is either whole or not there: to a sibling first, renamed when complete.
///
/// # Errors
///
/// [`Failure::Failed`], naming the file.
pub fn file(path: &Path, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<(), Failure> {
    let named = |error: std::io::Error| Failure::file(path, &error);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let result = std::fs::File::create(&part).and_then(|file| {
        let mut buffer = std::io::BufWriter::new(file);
        write(&mut buffer)?;
        buffer.flush()
    });
    result.and_then(|()| std::fs::rename(&part, path)).map_err(|error| {
        // The first error is the one worth telling.
        let _ = std::fs::remove_file(&part);
        named(error)
    })
}
