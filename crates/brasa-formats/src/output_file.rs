//! Files that appear whole or not at all, and outputs that are not files.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileType, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::{FormatError, Result};

/// Symbolic links that are followed before the path counts as a loop.
const MOST_LINKS: usize = 40;
/// Names that are tried for a partial file before the directory counts as unusable.
const MOST_NAMES: u32 = 100;
/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Partial files of this process: removed by [`remove_partial_files`] if it must end early.
static PARTIAL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Treatment of a file that is already there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Keep the existing file; the output fails with [`FormatError::Exists`].
    #[default]
    Keep,
    /// A complete output replaces the existing file.
    Replace,
}

/// An output under construction.
///
/// A regular file is written to a hidden sibling, `.NAME.NUMBER.partial`, and put in place by [`commit`](Self::commit):
/// with the permissions of the file that it replaces, and at the end of symbolic links. Dropped without `commit`, it leaves
/// nothing behind, and the old file stays untouched. Partial files that killed processes left of the same name are removed.
///
/// A device, a pipe or a socket is never replaced: it is written to in place.
#[derive(Debug)]
pub struct OutputFile {
    /// The path as it was asked for, for messages.
    path: PathBuf,
    /// The open file; `None` once committed.
    file: Option<BufWriter<File>>,
    /// The path of the partial file; `None` if the file is written in place.
    partial: Option<Partial>,
    removed: Vec<PathBuf>,
}

/// A file that takes the place of `target` when complete.
#[derive(Debug)]
struct Partial {
    path: PathBuf,
    target: PathBuf,
}

impl OutputFile {
    /// Starts an output at `path`. Opening a pipe waits for its reader.
    ///
    /// # Errors
    ///
    /// [`FormatError::Exists`] if a file is there that shall be kept, [`FormatError::Io`] if the path is a directory or a loop
    /// of links, or if its directory does not exist or cannot be written.
    pub fn create(path: impl Into<PathBuf>, existing: Existing) -> Result<Self> {
        let path = path.into();
        let fail = |source| FormatError::io(&path, source);
        let target = follow_links(&path).map_err(fail)?;
        // Asked of the path as given: the link behind `/dev/stdout` names a pipe that has no path.
        let old = match fs::metadata(&path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(fail(error)),
        };
        if let Some(old) = &old {
            if old.is_dir() {
                return Err(fail(io::ErrorKind::IsADirectory.into()));
            }
            if !old.is_file() {
                let file = OpenOptions::new().write(true).open(&path).map_err(fail)?;
                let file = Some(BufWriter::with_capacity(BUFFER_BYTES, file));
                return Ok(Self { path, file, partial: None, removed: Vec::new() });
            }
            if existing == Existing::Keep {
                return Err(FormatError::Exists { path });
            }
        }
        let removed = remove_stale(&target);
        let (partial, file) = create_partial(&target).map_err(fail)?;
        let output = Self {
            file: Some(BufWriter::with_capacity(BUFFER_BYTES, file)),
            partial: Some(Partial { path: partial, target }),
            removed,
            path,
        };
        if let (Some(old), Some(file)) = (old, &output.file) {
            // A replaced file keeps its permissions; the new bytes must not be readable by more people in between.
            file.get_ref()
                .set_permissions(old.permissions())
                .map_err(|source| FormatError::io(&output.path, source))?;
        }
        Ok(output)
    }

    /// The requested path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Partial files of the same name that a killed process had left and that are gone now.
    pub fn removed(&self) -> &[PathBuf] {
        &self.removed
    }

    /// Flushes everything to the disk, and puts the file in place of an existing one.
    ///
    /// # Errors
    ///
    /// [`FormatError::Io`]; no partial file is left then, and the old file stays.
    pub fn commit(mut self) -> Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let mut finish = || -> io::Result<()> {
            file.flush()?;
            let Some(partial) = &self.partial else { return Ok(()) };
            file.get_ref().sync_all()?;
            fs::rename(&partial.path, &partial.target)
        };
        finish().map_err(|source| FormatError::io(&self.path, source))?;
        if let Some(partial) = self.partial.take() {
            forget(&partial.path);
        }
        Ok(())
    }

    fn writer(&mut self) -> io::Result<&mut BufWriter<File>> {
        self.file.as_mut().ok_or_else(|| io::Error::other("already committed"))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer()?.write(bytes);
        #[cfg(unix)]
        let written = written.map_err(|error| crate::shrunk::blame_source(error, bytes));
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer()?.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // Unflushed bytes of an abandoned file are of no use to anyone.
            drop(file.into_parts());
        }
        if let Some(partial) = self.partial.take() {
            let _ = fs::remove_file(&partial.path);
            forget(&partial.path);
        }
    }
}

/// Removes the partial files and folders of all outputs of this process; those outputs fail. For the last moments of a process that
/// is told to end.
pub fn remove_partial_files() {
    for path in PARTIAL.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}

/// Adds a path to the partial files of this process.
pub(crate) fn note_partial(partial: &Path) {
    PARTIAL.lock().unwrap_or_else(PoisonError::into_inner).push(partial.to_owned());
}

/// Removes a path from the partial files of this process.
pub(crate) fn forget(partial: &Path) {
    PARTIAL.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| path != partial);
}

/// The path at the end of symbolic links, whether something is there or not.
pub(crate) fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => {
                let link = fs::read_link(&path)?;
                path = path.parent().unwrap_or(Path::new("")).join(link);
            }
            _ => return Ok(path),
        }
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

/// Hidden names beside `target` that this process may take.
pub(crate) fn hidden_names(target: &Path) -> io::Result<Vec<PathBuf>> {
    let name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let hidden = |number| {
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{number}.partial", std::process::id()));
        target.with_file_name(hidden)
    };
    Ok((0..MOST_NAMES).map(hidden).collect())
}

/// True for a hidden name of some process beside `target`.
pub(crate) fn is_partial_of(target: &Path, name: &OsStr) -> bool {
    let Some(own) = target.file_name() else { return false };
    let start = [b".", own.as_encoded_bytes(), b"."].concat();
    let middle = name.as_encoded_bytes().strip_prefix(&start[..]);
    let numbers = middle.and_then(|rest| rest.strip_suffix(b".partial"));
    numbers.is_some_and(|bytes| bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-'))
}

/// A new hidden file beside `target`, locked as long as it is open.
fn create_partial(target: &Path) -> io::Result<(PathBuf, File)> {
    for path in hidden_names(target)? {
        match File::create_new(&path) {
            Ok(file) => {
                // A file system without locks has no stale files that could be told from others.
                let _ = file.try_lock();
                note_partial(&path);
                return Ok((path, file));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Removes partial files of `target` that no process writes any more. A process that ends gives its lock up.
fn remove_stale(target: &Path) -> Vec<PathBuf> {
    let Some(folder) = target.parent() else { return Vec::new() };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of_target = entries.filter(|entry| {
        let is_file = entry.file_type().is_ok_and(|kind: FileType| kind.is_file());
        is_file && is_partial_of(target, &entry.file_name())
    });
    let is_stale = |path: &PathBuf| {
        let lock = File::open(path).map(|file| file.try_lock());
        !matches!(lock, Err(_) | Ok(Err(TryLockError::WouldBlock | TryLockError::Error(_))))
    };
    of_target
        .map(|entry| entry.path())
        .filter(is_stale)
        .filter(|path| fs::remove_file(path).is_ok())
        .collect()
}
