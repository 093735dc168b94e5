//! Files of slots, all directly inside one folder.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use crate::http::error::{ApiError, Result};

/// Most bytes of a file's name.
const LONGEST_NAME: usize = 128;

/// The path of the file `name` in `folder`. The file must be a plain file or not exist.
///
/// # Errors
///
/// 400 for a name with other characters than letters, digits and `.-_ +@=,`, for one that begins or ends with a dot or a blank,
/// and for a link, a folder or a device.
pub(crate) fn path(folder: &Path, name: &str) -> Result<PathBuf> {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ' ' | '+' | '@' | '=' | ',');
    let is_name = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.chars().all(allowed)
        && !name.starts_with(['.', ' '])
        && !name.ends_with(['.', ' ']);
    if !is_name {
        let message = "`filename` has to be a plain name: letters, digits and .-_ +@=, without a path";
        return Err(ApiError::field("filename", message));
    }
    let path = folder.join(name);
    match fs::symlink_metadata(&path) {
        Ok(metadata) if !metadata.is_file() => Err(no_file(name)),
        _ => Ok(path),
    }
}

/// Opens a file at a path made by [`path`]; returns it with its size.
///
/// # Errors
///
/// 404 if the file does not exist; 400 if it is no plain file.
pub(crate) fn open(path: &Path, name: &str) -> Result<(File, u64)> {
    let absent = || ApiError::not_found("file_not_found", format!("there is no file `{name}`"));
    // Looked at before, so that opening cannot wait for a pipe's writer, and behind, so that what was opened is no link.
    let before = fs::symlink_metadata(path).map_err(|_| absent())?;
    if !before.is_file() {
        return Err(no_file(name));
    }
    let opened = || -> io::Result<(File, Metadata, Metadata)> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok((file, metadata, fs::symlink_metadata(path)?))
    };
    let (file, metadata, entry) = opened().map_err(|_| absent())?;
    if !entry.is_file() || !is_same(&metadata, &entry) {
        return Err(no_file(name));
    }
    let bytes = metadata.len();
    Ok((file, bytes))
}

fn no_file(name: &str) -> ApiError {
    ApiError::field("filename", format!("`{name}` is no plain file"))
}

#[cfg(unix)]
fn is_same(file: &Metadata, entry: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (file.dev(), file.ino()) == (entry.dev(), entry.ino())
}

#[cfg(not(unix))]
fn is_same(file: &Metadata, entry: &Metadata) -> bool {
    file.len() == entry.len()
}
