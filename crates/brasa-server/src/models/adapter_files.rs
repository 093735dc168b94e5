//! Paths of adapters, which must be inside one folder.

use std::fs;
use std::path::{Path, PathBuf};

use crate::http::error::{ApiError, Result};

/// The path of an adapter. It must be inside `folder` after following links, and so must the files of an adapter that is a
/// folder.
///
/// # Errors
///
/// 403 without a folder, and for a path that is outside of it or does not exist. The error is the same for both.
pub(crate) fn path(folder: Option<&Path>, path: &str) -> Result<PathBuf> {
    let refused = || {
        let message = "adapters are loaded by path only from the folder that --lora-dir names";
        ApiError::forbidden("path_not_allowed", message).with_param("lora_path")
    };
    // Looked up for each request: the folder may be a link that is set anew.
    let folder = folder.and_then(|folder| folder.canonicalize().ok()).ok_or_else(refused)?;
    let inside =
        |path: &Path| path.canonicalize().ok().filter(|found| found.starts_with(&folder) && *found != folder);
    let found = inside(&folder.join(path)).ok_or_else(refused)?;
    if found.is_dir() {
        let files = fs::read_dir(&found).map_err(|_| refused())?;
        for file in files {
            file.ok().and_then(|file| inside(&file.path())).ok_or_else(refused)?;
        }
    }
    Ok(found)
}
