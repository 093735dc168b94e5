use std::io;
use std::path::{Path, PathBuf};

/// The reason why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A text names no repository.
    #[error("{text}: {reason}, expected USER/REPO or USER/REPO:QUANT")]
    Name {
        /// The text.
        text: String,
        /// The mistake in the text.
        reason: &'static str,
    },
    /// An environment variable has a value that makes no sense.
    #[error("{variable}={value}: {expected} expected")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// The value found.
        value: String,
        /// The value expected.
        expected: &'static str,
    },
    /// The server refuses the repository or a file of it.
    #[error("{what}: {status}: {meaning}{hint}")]
    Refused {
        /// The repository or file.
        what: String,
        /// The status of HTTP.
        status: u16,
        /// The status in words.
        meaning: &'static str,
        /// A remedy, on a line of its own; may be empty.
        hint: String,
    },
    /// The server could not be reached, or the connection broke.
    #[error("{url}: {reason}")]
    Unreachable {
        /// The address.
        url: String,
        /// The reason, in the network's words.
        reason: String,
    },
    /// The connection broke too often in succession.
    #[error(
        "{file}: the connection broke after {done_bytes} of {total_bytes} bytes: {reason}\nhint: the same command goes on from there"
    )]
    Broken {
        /// The file.
        file: String,
        /// Number of bytes that were kept.
        done_bytes: u64,
        /// Number of bytes of the whole file.
        total_bytes: u64,
        /// The reason, in the network's words.
        reason: String,
    },
    /// An answer of the server makes no sense.
    #[error("{url}: the server's answer is not understood: {reason}")]
    Answer {
        /// The address.
        url: String,
        /// The mistake in the answer.
        reason: String,
    },
    /// A file has another content than the server announced. The download was discarded.
    #[error("{file}: {what} is {found}, expected {expected}; the download was thrown away")]
    Content {
        /// The file.
        file: String,
        /// The size, or the name of the hash.
        what: &'static str,
        /// The value found.
        found: String,
        /// The value that the server announced.
        expected: String,
    },
    /// The repository lacks the requested file or type.
    #[error("{repo}: no {wanted}{}", list(.found))]
    NotThere {
        /// The repository.
        repo: String,
        /// The requested file or type.
        wanted: String,
        /// Names of files that may have been meant.
        found: Vec<String>,
    },
    /// The model is not in the cache, and downloads are forbidden.
    #[error("{repo}: not in {}, and HF_HUB_OFFLINE or --offline forbids a download", .cache.display())]
    NotCached {
        /// The repository.
        repo: String,
        /// The cache's folder.
        cache: PathBuf,
    },
    /// A path in the cache leads out of the cache.
    #[error("{}: leads out of the cache", .path.display())]
    OutsideCache {
        /// The path.
        path: PathBuf,
    },
    /// The file is being downloaded by another process.
    #[error("{file}: another process is downloading it")]
    Busy {
        /// The file.
        file: String,
    },
    /// A file operation failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Connections over TLS are not possible on this processor.
    #[error("{0}\nhint: download the files elsewhere and name them with -m")]
    NoTls(brasa_tls::TlsError),
    /// The caller stopped the download. Bytes so far are kept.
    #[error("interrupted")]
    Interrupted,
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, HubError>;

impl HubError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// Some of the names, for a hint.
fn list(names: &[String]) -> String {
    const MOST: usize = 40;
    if names.is_empty() {
        return String::new();
    }
    let shown = names[..names.len().min(MOST)].join("\n  ");
    let rest = names.len().saturating_sub(MOST);
    let rest = if rest == 0 { String::new() } else { format!("\n  and {rest} more") };
    format!("; there are\n  {shown}{rest}")
}
