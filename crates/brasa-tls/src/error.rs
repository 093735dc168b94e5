use std::io;
use std::path::PathBuf;

/// The reason why TLS is not possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The processor lacks instructions that the ciphers need.
    #[error("TLS needs a processor with {missing}")]
    Processor {
        /// The missing instructions.
        missing: &'static str,
    },
    /// A file cannot be read.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file does not hold a certificate or key as expected.
    #[error("{}: {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The mistake, possibly with a hint.
        problem: String,
    },
    /// A certificate belongs to another key.
    #[error(
        "{}: the certificate is for another key than that in {}", .certificate.display(), .key.display()
    )]
    Mismatch {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, TlsError>;
