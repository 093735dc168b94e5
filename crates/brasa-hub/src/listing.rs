//! The server's list of a repository's files.

use serde_json::Value;

use crate::name::is_safe;
use crate::{HubError, Result};

/// A commit of a repository and its files.
pub struct Listing {
    /// The commit: 40 hexadecimal digits.
    pub commit: String,
    /// Files with names that can be paths. Others are left out.
    pub files: Vec<RemoteFile>,
}

/// A file in a repository.
#[derive(Clone, Debug)]
pub struct RemoteFile {
    /// Path of the file in the repository: relative and checked.
    pub name: String,
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// The hash of its content.
    pub hash: Hash,
}

/// The hash of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256 of the bytes, for large files.
    Sha256(String),
    /// SHA-1 of git's blob, for files in git itself.
    GitBlob(String),
}

impl Hash {
    /// Hexadecimal digits; the name of the file in the cache's `blobs`.
    pub fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::GitBlob(digits) => digits,
        }
    }

    /// The name of the hash.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::GitBlob(_) => "git's SHA-1",
        }
    }
}

impl Listing {
    /// Reads the answer of `/api/models/USER/REPO/revision/main?blobs=true`.
    pub fn read(url: &str, text: &[u8]) -> Result<Self> {
        let fault = |reason: &str| HubError::Answer { url: url.to_owned(), reason: reason.to_owned() };
        let answer: Value = serde_json::from_slice(text).map_err(|error| fault(&error.to_string()))?;
        let commit = hex(&answer["sha"], 40).ok_or_else(|| fault("no commit (`sha`)"))?;
        let siblings = answer["siblings"].as_array().ok_or_else(|| fault("no files (`siblings`)"))?;
        let files = siblings.iter().filter_map(file).collect();
        Ok(Self { commit, files })
    }
}

/// A file of the list; `None` if its name cannot be a path or if its size or hash is missing.
fn file(entry: &Value) -> Option<RemoteFile> {
    let name = entry["rfilename"].as_str().filter(|name| is_safe(name))?;
    let lfs = &entry["lfs"];
    let (hash, size) = match hex(&lfs["sha256"], 64) {
        Some(digits) => (Hash::Sha256(digits), &lfs["size"]),
        None => (Hash::GitBlob(hex(&entry["blobId"], 40)?), &entry["size"]),
    };
    Some(RemoteFile { name: name.to_owned(), size_bytes: size.as_u64()?, hash })
}

/// Hexadecimal digits of this number, in small letters.
fn hex(value: &Value, digits: usize) -> Option<String> {
    let text = value.as_str()?;
    let fits = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    fits.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{Hash, Listing};

    #[test]
    fn what_could_leave_the_cache_is_left_out() {
        let (commit, large) = ("a".repeat(40), "b".repeat(64));
        let text = format!(
            r#"{{"sha": "{commit}", "siblings": [
                {{"rfilename": "model.gguf", "size": 7, "blobId": "{commit}", "lfs": {{"sha256": "{large}", "size": 7}}}},
                {{"rfilename": "config.json", "size": 3, "blobId": "{commit}"}},
                {{"rfilename": "../x", "size": 3, "blobId": "{commit}"}},
                {{"rfilename": "y", "size": 3, "blobId": "../../../../etc/passwd"}},
                {{"rfilename": "z", "size": -3, "blobId": "{commit}"}},
                {{"rfilename": 5}}, null]}}"#
        );
        let listing = Listing::read("url", text.as_bytes()).unwrap();
        let names: Vec<_> = listing.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["model.gguf", "config.json"]);
        assert_eq!(listing.files[0].hash, Hash::Sha256(large));
        for text in ["", "[]", "{}", r#"{"sha": "../..", "siblings": []}"#, &text.replacen('[', "", 1)] {
            assert!(Listing::read("url", text.as_bytes()).is_err(), "{text}");
        }
    }
}
