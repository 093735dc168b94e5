//! The place of a model's files: a directory on disk, or files in memory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Fault;
use crate::input_file::{self, read_file};
use crate::map::map_file;
use crate::{Bytes, FormatError, Result};

/// Files by name.
#[derive(Clone, Debug)]
pub(crate) enum Directory {
    Disk(PathBuf),
    Memory(Arc<BTreeMap<String, Bytes>>),
}

impl Directory {
    /// A file's path: to open it, and for messages.
    pub fn path_of(&self, name: &str) -> PathBuf {
        match self {
            // "." says nothing in a message.
            Self::Disk(path) if path.as_os_str() == "." => PathBuf::from(name),
            Self::Disk(path) => path.join(name),
            Self::Memory(_) => PathBuf::from(name),
        }
    }

    /// The directory itself, for messages.
    pub fn path(&self) -> &Path {
        match self {
            Self::Disk(path) => path,
            Self::Memory(_) => Path::new("."),
        }
    }

    /// The names of all files, sorted. Names that are not UTF-8 are left out.
    pub fn names(&self) -> Result<Vec<String>> {
        let path = match self {
            Self::Disk(path) => path,
            Self::Memory(files) => return Ok(files.keys().cloned().collect()),
        };
        let fail = |source| FormatError::io(path, source);
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(fail)? {
            names.extend(entry.map_err(fail)?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    /// Maps a file.
    pub fn map(&self, name: &str) -> Result<Bytes> {
        match self {
            Self::Disk(_) => map_file(&self.path_of(name)),
            Self::Memory(files) => files
                .get(name)
                .cloned()
                .ok_or_else(|| FormatError::io(Path::new(name), io::ErrorKind::NotFound.into())),
        }
    }

    /// The first bytes of a file, at most 16.
    pub fn start_of(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path_of(name);
        match self {
            Self::Disk(_) => {
                let mut start = Vec::new();
                let read = input_file::open(&path).and_then(|file| file.take(16).read_to_end(&mut start));
                read.map(|_| start).map_err(|source| FormatError::io(&path, source))
            }
            Self::Memory(_) => self.map(name).map(|bytes| bytes[..bytes.len().min(16)].to_vec()),
        }
    }

    /// Reads a small file whole; `None` if it does not exist, an error if it is larger than `cap_bytes`.
    pub fn read(&self, name: &str, cap_bytes: u64) -> Result<Option<Vec<u8>>> {
        let path = self.path_of(name);
        let bytes = match self {
            Self::Disk(_) => match read_file(&path, cap_bytes) {
                Err(FormatError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    return Ok(None);
                }
                read => read?,
            },
            Self::Memory(files) => match files.get(name) {
                Some(bytes) => bytes.to_vec(),
                None => return Ok(None),
            },
        };
        if bytes.len() as u64 > cap_bytes {
            return Err(Fault::new(path, format!("larger than {} MiB", cap_bytes >> 20)).unsupported());
        }
        Ok(Some(bytes))
    }
}
