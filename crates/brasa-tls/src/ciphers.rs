//! The ciphers, and the instructions that they need.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

use crate::{Result, TlsError};

/// Graviola's ciphers.
///
/// # Errors
///
/// [`TlsError::Processor`] on a processor without the instructions that the ciphers need.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn ciphers() -> Result<Arc<CryptoProvider>> {
    match missing() {
        None => Ok(Arc::new(rustls_graviola::default_provider())),
        Some(missing) => Err(TlsError::Processor { missing }),
    }
}

/// No ciphers: there are none for this processor.
///
/// # Errors
///
/// [`TlsError::Processor`], always.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn ciphers() -> Result<Arc<CryptoProvider>> {
    Err(TlsError::Processor { missing: "the instructions of x86-64 or aarch64" })
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
