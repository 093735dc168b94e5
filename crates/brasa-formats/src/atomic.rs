//! Files that appear whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::{FormatError, Result};

/// A file under construction: written to a temporary sibling, put in place by [`commit`](Self::commit).
///
/// Dropped without `commit`, it leaves nothing behind, and a file that was at `path` before stays untouched.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    temporary: PathBuf,
    /// `None` once committed.
    file: Option<BufWriter<File>>,
}

impl AtomicFile {
    /// Starts a file that will be at `path`.
    ///
    /// # Errors
    ///
    /// [`FormatError::Io`] if the directory does not exist or cannot be written.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let fail = |source| FormatError::io(&path, source);
        let name = path.file_name().ok_or_else(|| fail(io::ErrorKind::IsADirectory.into()))?;
        if path.is_dir() {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        for attempt in 0_u32.. {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{attempt}.partial", std::process::id()));
            let temporary = path.with_file_name(hidden);
            match File::create_new(&temporary) {
                Ok(file) => {
                    let file = Some(BufWriter::with_capacity(1 << 20, file));
                    return Ok(Self { path, temporary, file });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => {}
                Err(error) => return Err(fail(error)),
            }
        }
        unreachable!("the loop above returns");
    }

    /// The path at which the file will appear.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Flushes everything to the disk and puts the file in place of whatever was there.
    ///
    /// # Errors
    ///
    /// [`FormatError::Io`]; nothing is left behind then, and the old file stays.
    pub fn commit(mut self) -> Result<()> {
        let finish = |file: &mut BufWriter<File>| -> io::Result<()> {
            file.flush()?;
            file.get_ref().sync_all()?;
            fs::rename(&self.temporary, &self.path)
        };
        if let Some(file) = &mut self.file {
            finish(file).map_err(|source| FormatError::io(&self.path, source))?;
        }
        self.file = None;
        Ok(())
    }

    fn writer(&mut self) -> io::Result<&mut BufWriter<File>> {
        self.file.as_mut().ok_or_else(|| io::Error::other("already committed"))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer()?.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // Unflushed bytes of an abandoned file are of no use to anyone.
            drop(file.into_parts());
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
