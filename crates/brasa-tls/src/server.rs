//! A server's certificate and key.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{InconsistentKeys, ServerConfig};

use crate::{Result, TlsError, ciphers};

/// Most bytes of a file with certificates or a key.
const LARGEST_FILE_BYTES: u64 = 1 << 20;

/// The configuration of an HTTP/1.1 server with a certificate (PEM, followed by those that vouch for it) and its key (PEM; RSA,
/// ECDSA with P-256 or P-384, or Ed25519). Clients show no certificates.
///
/// # Errors
///
/// [`TlsError::Io`], [`TlsError::File`] for a file without a certificate or key, and for one that is not understood;
/// [`TlsError::Mismatch`]; [`TlsError::Processor`].
pub fn server(certificates: &Path, key: &Path) -> Result<ServerConfig> {
    let chain = read_certificates(certificates)?;
    let private_key = read_key(key)?;
    let builder = ServerConfig::builder_with_provider(ciphers()?)
        .with_safe_default_protocol_versions()
        .map_err(|error| fault(key, error.to_string()))?;
    let config = builder.with_no_client_auth().with_single_cert(chain, private_key);
    let mut config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::Mismatch { certificate: certificates.to_owned(), key: key.to_owned() }
        }
        rustls::Error::InvalidCertificate(problem) => {
            fault(certificates, format!("the certificate is not understood: {problem}"))
        }
        other => fault(key, format!("the key is not understood: {other}")),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<std::result::Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| fault(path, error.to_string()))?;
    if certificates.is_empty() { Err(fault(path, "no certificate in it".into())) } else { Ok(certificates) }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let text = read(path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let is_encrypted = text.windows(9).any(|word| word == b"ENCRYPTED");
        fault(
            path,
            match error {
                PemError::NoItemsFound if is_encrypted => {
                    "the key is encrypted\nhint: `openssl pkey -in KEY -out PLAIN_KEY` decrypts it".into()
                }
                PemError::NoItemsFound => "no private key in it".into(),
                other => other.to_string(),
            },
        )
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let io = |source| TlsError::Io { path: path.to_owned(), source };
    let mut text = Vec::new();
    File::open(path).map_err(io)?.take(LARGEST_FILE_BYTES + 1).read_to_end(&mut text).map_err(io)?;
    if text.len() as u64 > LARGEST_FILE_BYTES {
        return Err(fault(path, format!("larger than {LARGEST_FILE_BYTES} bytes")));
    }
    Ok(text)
}

fn fault(path: &Path, problem: String) -> TlsError {
    TlsError::File { path: path.to_owned(), problem }
}
