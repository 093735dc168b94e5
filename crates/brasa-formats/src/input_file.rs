//! Input files: regular ones, and pipes up to a limit.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::error::Fault;
use crate::{FormatError, Result};

/// Opens a regular file. A pipe or a device is refused, since reading it may wait for ever, or never end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let require_file = |metadata: fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        false => Err(io::Error::other("not a regular file")),
    };
    // Before it is opened, which would wait for a pipe's writer; and again, since it may be another by now.
    require_file(fs::metadata(path)?)?;
    let file = File::open(path)?;
    require_file(file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file whole.
///
/// # Errors
///
/// [`FormatError::Io`] if it cannot be read or is a pipe or a device, [`FormatError::Unsupported`] if it has more than
/// `cap_bytes`.
pub fn read_file(path: &Path, cap_bytes: u64) -> Result<Vec<u8>> {
    read_capped(open(path).map_err(|source| FormatError::io(path, source))?, path, cap_bytes)
}

/// Reads `reader` to its end, at most `cap_bytes`. `path` names it in messages.
///
/// # Errors
///
/// [`FormatError::Io`] if reading fails, [`FormatError::Unsupported`] if it gives more than `cap_bytes`.
pub fn read_capped(reader: impl Read, path: &Path, cap_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut reader = reader.take(cap_bytes.saturating_add(1));
    reader.read_to_end(&mut bytes).map_err(|source| FormatError::io(path, source))?;
    if bytes.len() as u64 > cap_bytes {
        return Err(Fault::new(path, format!("larger than {} MiB", cap_bytes >> 20)).unsupported());
    }
    Ok(bytes)
}
