//! Files of slots: inside one folder, and nowhere else.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use crate::http::error::{ApiError, Result};

/// Most bytes of a file's name.
const LONGEST_NAME: usize = 128;

/// The path of a file by its name, which has to be that of a plain file in `folder`, or of none.
///
/// # Errors
///
/// 400 for a name that has parts or is hidden, and for one that is a link, a folder or a device.
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

/// Opens a file whose path [`path`] has made.
///
/// # Errors
///
/// 404 if there is none; 400 if it is no plain file.
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
