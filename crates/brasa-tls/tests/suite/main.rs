//! Certificates and keys that fit, and those that do not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use brasa_tls::{TlsError, server};

fn key(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keys").join(name)
}

/// The error for a certificate and a key that do not serve.
fn refusal(certificate: &Path, key: &Path) -> String {
    server(certificate, key).expect_err("they serve").to_string()
}

/// A file with this content.
fn file(name: &str, content: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

#[test]
fn keys_of_every_kind_fit_their_certificates() {
    for (certificate, of) in [
        ("p256.pem", "p256.key.pem"),
        ("p256.pem", "p256.sec1.pem"),
        ("ed25519.pem", "ed25519.key.pem"),
        ("rsa.pem", "rsa.key.pem"),
        ("rsa.pem", "rsa.pkcs1.pem"),
    ] {
        let config = server(&key(certificate), &key(of));
        assert!(config.is_ok(), "{certificate} {of}: {:?}", config.err());
    }
    // Both in one file.
    let both = [std::fs::read(key("p256.pem")).unwrap(), std::fs::read(key("p256.key.pem")).unwrap()];
    let both = file("both.pem", &both.concat());
    assert!(server(&both, &both).is_ok());
}

#[test]
fn keys_of_other_certificates_are_refused() {
    let names = ["p256", "ed25519", "rsa"];
    for certificate in names {
        for other in names.into_iter().filter(|other| *other != certificate) {
            let (certificate, other) = (key(&format!("{certificate}.pem")), key(&format!("{other}.key.pem")));
            let error = server(&certificate, &other).expect_err("they serve");
            assert!(matches!(error, TlsError::Mismatch { .. }), "{error}");
            let said = error.to_string();
            assert!(said.contains("another key") && said.contains(other.to_str().unwrap()), "{said}");
        }
    }
}

#[test]
fn files_that_do_not_serve_are_refused_by_name() {
    let (certificate, of) = (key("p256.pem"), key("p256.key.pem"));
    let nowhere = key("nowhere.pem");
    assert!(refusal(&nowhere, &of).contains("nowhere.pem"));
    assert!(refusal(&certificate, &nowhere).contains("nowhere.pem"));
    assert!(refusal(&of, &of).ends_with("p256.key.pem: no certificate in it"));
    assert!(refusal(&certificate, &certificate).ends_with("p256.pem: no private key in it"));
    let said = refusal(&certificate, &key("encrypted.key.pem"));
    assert!(said.contains("encrypted.key.pem: the key is encrypted\nhint: "), "{said}");
    // Text that is none, PEM around nonsense, and a file without an end.
    let pem = |kind: &str, inner: &str| format!("-----BEGIN {kind}-----\n{inner}\n-----END {kind}-----\n");
    for (name, content) in [
        ("empty.pem", Vec::new()),
        ("noise.pem", vec![0xff; 1000]),
        ("cut.pem", b"-----BEGIN CERTIFICATE-----\nMIIB".to_vec()),
        ("no_base64.pem", pem("CERTIFICATE", "?!").into_bytes()),
        ("no_der.pem", pem("CERTIFICATE", "AAAA").into_bytes()),
        ("large.pem", vec![b'x'; (1 << 20) + 1]),
    ] {
        let said = refusal(&file(name, &content), &of);
        assert!(said.contains(&format!("{name}: ")), "{said}");
    }
    let said = refusal(&certificate, &file("no_key.pem", pem("PRIVATE KEY", "AAAA").as_bytes()));
    assert!(said.contains("no_key.pem: the key is not understood"), "{said}");
    #[cfg(target_os = "linux")]
    assert!(refusal(Path::new("/dev/zero"), &of).contains("larger than"));
}
