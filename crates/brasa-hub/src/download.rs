//! Downloads one file and checks it. Partial contents stay in `blobs/HASH.incomplete` until they are complete and their hash is
//! right.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};
use ureq::Body;
use ureq::http::{Response, StatusCode, header};

use crate::cache::Folder;
use crate::client::Client;
use crate::listing::{Hash, RemoteFile};
use crate::name::RepoName;
use crate::{HubError, Result};

/// Most connections that may break in succession without a byte received in between.
const MOST_FAILURES: u32 = 4;

/// The repository and the commit that files are downloaded from.
pub struct Source<'a> {
    /// The client of the server.
    pub client: &'a Client,
    /// The name of the repository.
    pub repo: &'a RepoName,
    /// The hash of the commit.
    pub commit: &'a str,
    /// The pause after a broken connection.
    pub pause: Duration,
}

/// Downloads a file into the cache if the cache does not have it, and returns the path of its content. `progress` receives the
/// number of bytes so far.
///
/// # Errors
///
/// [`HubError::Content`] if the content is not the one that was announced; other errors keep what has arrived.
pub fn download(
    source: &Source<'_>,
    folder: &Folder,
    file: &RemoteFile,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<PathBuf> {
    let blob = folder.blob(file.hash.digits())?;
    if folder.inside(&blob).is_ok_and(|path| has_size(&path, file.size_bytes)) {
        return Ok(blob);
    }
    let part = blob.with_added_extension("incomplete");
    let mut arrived = Arrived::open(&part, file)?;
    let mut failures = 0;
    while arrived.bytes < file.size_bytes {
        let before = arrived.bytes;
        match arrived.go_on(source, file, progress) {
            Ok(()) => {}
            Err(HubError::Unreachable { reason, .. }) => {
                failures = if arrived.bytes > before { 1 } else { failures + 1 };
                if failures > MOST_FAILURES {
                    let (file, done_bytes, total_bytes) = (file.name.clone(), arrived.bytes, file.size_bytes);
                    return Err(HubError::Broken { file, done_bytes, total_bytes, reason });
                }
                sleep(source.pause * (1 << (2 * (failures - 1))));
            }
            Err(error) => return Err(error),
        }
        if progress(arrived.bytes).is_break() {
            return Err(HubError::Interrupted);
        }
    }
    arrived.finish(file, &part)?;
    fs::rename(&part, &blob).map_err(HubError::io(&part))?;
    Ok(blob)
}

fn has_size(path: &Path, size_bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == size_bytes)
}

/// The part of a file that has arrived.
struct Arrived {
    file: File,
    bytes: u64,
    hasher: Hasher,
}

impl Arrived {
    /// Opens the part that an earlier run left, or an empty one.
    fn open(part: &Path, file: &RemoteFile) -> Result<Self> {
        if fs::symlink_metadata(part).is_ok_and(|found| !found.is_file()) {
            // A link could lead anywhere.
            fs::remove_file(part).map_err(HubError::io(part))?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let opened = options.open(part).map_err(HubError::io(part))?;
        if let Err(fs::TryLockError::WouldBlock) = opened.try_lock() {
            return Err(HubError::Busy { file: file.name.clone() });
        }
        let mut arrived = Self { file: opened, bytes: 0, hasher: Hasher::new(file) };
        arrived.read_again(file).map_err(HubError::io(part))?;
        Ok(arrived)
    }

    /// Hashes what is there.
    fn read_again(&mut self, file: &RemoteFile) -> std::io::Result<()> {
        if self.file.metadata()?.len() > file.size_bytes {
            return self.start_again(file);
        }
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = self.file.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            self.hasher.update(&buffer[..read]);
            self.bytes += read as u64;
        }
    }

    fn start_again(&mut self, file: &RemoteFile) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.bytes = 0;
        self.hasher = Hasher::new(file);
        Ok(())
    }

    /// Reads on until the answer ends.
    fn go_on(
        &mut self,
        source: &Source<'_>,
        file: &RemoteFile,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let response = source.client.file(source.repo, source.commit, &file.name, self.bytes)?;
        let local = Path::new(&file.name);
        if !continues_at(&response, self.bytes) {
            self.start_again(file).map_err(HubError::io(local))?;
            if response.status() != StatusCode::OK {
                let reason = "the server does not go on where the last download ended".to_owned();
                return Err(HubError::Unreachable { url: file.name.clone(), reason });
            }
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 18];
        loop {
            let read = match body.read(&mut buffer) {
                Ok(0) if self.bytes < file.size_bytes => {
                    return Err(HubError::Unreachable {
                        url: file.name.clone(),
                        reason: "the answer ended early".into(),
                    });
                }
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) => {
                    return Err(HubError::Unreachable { url: file.name.clone(), reason: error.to_string() });
                }
            };
            if self.bytes + read as u64 > file.size_bytes {
                self.start_again(file).map_err(HubError::io(local))?;
                return Err(HubError::Content {
                    file: file.name.clone(),
                    what: "the size",
                    found: "larger".into(),
                    expected: format!("{} bytes", file.size_bytes),
                });
            }
            self.file.write_all(&buffer[..read]).map_err(HubError::io(local))?;
            self.hasher.update(&buffer[..read]);
            self.bytes += read as u64;
            if progress(self.bytes).is_break() {
                return Err(HubError::Interrupted);
            }
        }
    }

    /// Compares the hash; a file with another one is removed.
    fn finish(self, file: &RemoteFile, part: &Path) -> Result<()> {
        self.file.sync_all().map_err(HubError::io(part))?;
        let found = self.hasher.digits();
        if found == file.hash.digits() {
            return Ok(());
        }
        fs::remove_file(part).map_err(HubError::io(part))?;
        let expected = file.hash.digits().to_owned();
        Err(HubError::Content { file: file.name.clone(), what: file.hash.name(), found, expected })
    }
}

/// True if the answer's body begins at byte `start` of the file.
fn continues_at(response: &Response<Body>, start: u64) -> bool {
    match response.status() {
        StatusCode::OK => start == 0,
        StatusCode::PARTIAL_CONTENT => {
            let range = response.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
            range.is_some_and(|range| range.starts_with(&format!("bytes {start}-")))
        }
        _ => false,
    }
}

enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    fn new(file: &RemoteFile) -> Self {
        match file.hash {
            Hash::Sha256(_) => Self::Sha256(Sha256::new()),
            Hash::GitBlob(_) => {
                Self::GitBlob(Sha1::new().chain_update(format!("blob {}\0", file.size_bytes)))
            }
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    fn digits(self) -> String {
        let bytes = match self {
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
            Self::GitBlob(hasher) => hasher.finalize().to_vec(),
        };
        let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or_default();
        bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }
}
