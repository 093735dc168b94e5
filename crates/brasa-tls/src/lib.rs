//! TLS: rustls with Graviola's ciphers, which need no C compiler.
//!
//! Downloads take the ciphers alone ([`ciphers`]); a server also reads its certificate and its key ([`server`]).
//!
//! This crate knows neither HTTP nor which certificates a client trusts.
//!
//! ```no_run
//! use std::path::Path;
//!
//! let config = brasa_tls::server(Path::new("certificate.pem"), Path::new("key.pem"))?;
//! assert_eq!(config.alpn_protocols, [b"http/1.1"]);
//! # Ok::<(), brasa_tls::TlsError>(())
//! ```

#![forbid(unsafe_code)]

mod ciphers;
mod error;
mod server;

pub use ciphers::ciphers;
pub use error::{Result, TlsError};
pub use rustls;
pub use server::server;
