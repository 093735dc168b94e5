//! Folders that appear whole or not at all.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::output_file::{follow_links, forget, hidden_names, is_partial_of, note_partial};
use crate::{Existing, FormatError, Result};

/// A folder under construction.
///
/// Files are written into a hidden sibling, `.NAME.NUMBER.partial`, and [`commit`](Self::commit) puts it in place: at once, where the system can exchange two
/// folders (Linux), and otherwise by two renames, between which there is no folder of this name. Dropped without `commit`, it leaves nothing behind, and an old
/// folder stays untouched. Partial folders that killed processes left of the same name are removed.
#[derive(Debug)]
pub struct OutputFolder {
    target: PathBuf,
    partial: PathBuf,
    /// Locked as long as the folder is under construction.
    _lock: Option<File>,
}

impl OutputFolder {
    /// Starts a folder at `path`.
    ///
    /// # Errors
    ///
    /// [`FormatError::Exists`] if something is in a folder there that shall be kept, [`FormatError::Io`] if the path is a file or if its parent does not
    /// exist or cannot be written.
    pub fn create(path: &Path, existing: Existing) -> Result<Self> {
        let fail = |source| FormatError::io(path, source);
        let target = follow_links(path).map_err(fail)?;
        if !is_free(&target).map_err(fail)? && existing == Existing::Keep {
            return Err(FormatError::Exists { path: path.to_owned() });
        }
        remove_stale(&target);
        for partial in hidden_names(&target).map_err(fail)? {
            match fs::create_dir(&partial) {
                Ok(()) => {
                    note_partial(&partial);
                    // Where a folder cannot be opened or locked, no stale one can be told from others.
                    let lock = File::open(&partial).ok();
                    let _ = lock.as_ref().map(File::try_lock);
                    return Ok(Self { target, partial, _lock: lock });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(fail(error)),
            }
        }
        Err(fail(io::ErrorKind::AlreadyExists.into()))
    }

    /// Path for writing a file of the folder.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.partial.join(name)
    }

    /// Puts the folder in place of an existing one.
    ///
    /// # Errors
    ///
    /// [`FormatError::Io`]; no partial folder is left then, and the old folder stays.
    pub fn commit(self) -> Result<()> {
        let fail = |source| FormatError::io(&self.target, source);
        // Names of files reach the disk with their folder. Where a folder cannot be opened, the system does that by itself.
        if let Ok(folder) = File::open(&self.partial) {
            let _ = folder.sync_all();
        }
        if is_free(&self.target).map_err(fail)? {
            // An empty folder is in the way on Windows alone.
            let _ = fs::remove_dir(&self.target);
            fs::rename(&self.partial, &self.target).map_err(fail)?;
        } else if !exchange(&self.partial, &self.target).map_err(fail)? {
            let old = self.partial.with_extension("old.partial");
            fs::rename(&self.target, &old).map_err(fail)?;
            if let Err(error) = fs::rename(&self.partial, &self.target) {
                let _ = fs::rename(&old, &self.target);
                return Err(fail(error));
            }
            let _ = fs::remove_dir_all(&old);
        }
        // Dropping removes what has the hidden name now: the old folder, or nothing.
        Ok(())
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.partial);
        forget(&self.partial);
    }
}

/// True if nothing is at `path`, or an empty folder.
fn is_free(path: &Path) -> io::Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Exchanges two folders in one step; false if the system cannot.
#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> io::Result<bool> {
    match crate::exchange::exchange(a, b) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "Linux has errors")]
fn exchange(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}

/// Removes partial folders of `target` that no process writes any more: a lock ends with its process.
fn remove_stale(target: &Path) {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_partial = is_partial_of(target, &entry.file_name());
        if !is_partial || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let lock = File::open(entry.path()).map(|folder| folder.try_lock());
        if !matches!(lock, Err(_) | Ok(Err(TryLockError::WouldBlock | TryLockError::Error(_)))) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
