//! TLS with Mozilla's root certificates or those of `SSL_CERT_FILE`.

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
    let ciphers = brasa_tls::ciphers().map_err(HubError::NoTls)?;
    let mut builder = TlsConfig::builder().unversioned_rustls_crypto_provider(ciphers);
    if let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) {
        builder = builder.root_certs(RootCerts::Specific(Arc::new(certificates(path.as_ref())?)));
    }
    Ok(builder.build())
}

fn certificates(path: &Path) -> Result<Vec<ureq::tls::Certificate<'static>>> {
    let text = std::fs::read(path).map_err(HubError::io(path))?;
    let certificates = parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    Ok(certificates.collect())
}
