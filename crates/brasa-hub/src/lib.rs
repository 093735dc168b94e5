//! Models from Hugging Face's hub, downloaded into its usual cache.
//!
//! [`Hub::fetch`] finds the files of a model in a repository, downloads the missing ones and returns the path to open. The cache has
//! the layout of the `hf` command, so that both use each other's files. Everything that a server says is treated as written
//! by an enemy: names are checked before they become paths, sizes and hashes after the download, and no path leaves the cache.
//!
//! This crate knows neither what is in a model's files nor any terminal.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use brasa_hub::{Hub, Wanted};
//!
//! let hub = Hub::from_env()?;
//! let wanted = Wanted::parse("Qwen/Qwen3-0.6B-GGUF:Q8_0")?;
//! let fetched = hub.fetch(&wanted, &mut |at| {
//!     println!("{} {} of {} bytes", at.file, at.done_bytes, at.total_bytes);
//!     ControlFlow::Continue(())
//! })?;
//! println!("{}", fetched.path.display());
//! # Ok::<(), brasa_hub::HubError>(())
//! ```
#![forbid(unsafe_code)]

mod cache;
mod choose;
mod client;
mod download;
mod error;
mod fetch;
mod listing;
mod name;
mod tls;

pub use error::{HubError, Result};
pub use fetch::{Fetched, Hub, Progress};
pub use name::{RepoName, Wanted};
pub use tls::config as tls_config;
