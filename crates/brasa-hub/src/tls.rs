//! TLS: rustls with Graviola's ciphers, which need no C compiler, and Mozilla's root certificates or those of `SSL_CERT_FILE`.

use std::path::Path;
use std::sync::Arc;

use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::{HubError, Result};

/// The configuration of TLS on this machine.
///
/// # Errors
///
/// [`HubError::NoTls`] on a processor without the instructions that the ciphers need.
pub fn config() -> Result<TlsConfig> {
    let mut builder = TlsConfig::builder();
    if let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) {
        builder = builder.root_certs(RootCerts::Specific(Arc::new(certificates(path.as_ref())?)));
    }
    Ok(with_ciphers(builder)?.build())
}

fn certificates(path: &Path) -> Result<Vec<ureq::tls::Certificate<'static>>> {
    let text = std::fs::read(path).map_err(HubError::io(path))?;
    let certificates = parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    Ok(certificates.collect())
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn with_ciphers(builder: ureq::tls::TlsConfigBuilder) -> Result<ureq::tls::TlsConfigBuilder> {
    match missing() {
        None => Ok(builder.unversioned_rustls_crypto_provider(Arc::new(rustls_graviola::default_provider()))),
        Some(missing) => Err(HubError::NoTls { missing }),
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn with_ciphers(_: ureq::tls::TlsConfigBuilder) -> Result<ureq::tls::TlsConfigBuilder> {
    Err(HubError::NoTls { missing: "x86-64 or aarch64" })
}

/// The instructions that the ciphers need and this processor does not have.
#[cfg(target_arch = "x86_64")]
fn missing() -> Option<&'static str> {
    let present = [
        ("AES-NI", is_x86_feature_detected!("aes")),
        ("SSSE3", is_x86_feature_detected!("ssse3")),
        ("PCLMULQDQ", is_x86_feature_detected!("pclmulqdq")),
        ("BMI1", is_x86_feature_detected!("bmi1")),
        ("BMI2", is_x86_feature_detected!("bmi2")),
        ("ADX", is_x86_feature_detected!("adx")),
        ("AVX", is_x86_feature_detected!("avx")),
        ("AVX2", is_x86_feature_detected!("avx2")),
    ];
    present.into_iter().find(|(_, present)| !present).map(|(name, _)| name)
}

/// The instructions that the ciphers need and this processor does not have.
#[cfg(target_arch = "aarch64")]
fn missing() -> Option<&'static str> {
    let present = [
        ("NEON", std::arch::is_aarch64_feature_detected!("neon")),
        ("AES", std::arch::is_aarch64_feature_detected!("aes")),
        ("PMULL", std::arch::is_aarch64_feature_detected!("pmull")),
        ("SHA2", std::arch::is_aarch64_feature_detected!("sha2")),
    ];
    present.into_iter().find(|(_, present)| !present).map(|(name, _)| name)
}
