//! Tests of the facade on trained and random models. One binary: linking is a large part of what tests cost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapters;
mod adapters_come_and_go;
mod array_files;
mod backends;
mod bundles;
mod drafts;
mod embedders;
mod embeddings;
mod encoders;
mod engine;
mod eval;
mod guide;
mod info;
mod inside;
mod limits;
#[cfg(unix)]
mod mlx_lm;
mod precision;
mod probes;
mod quantised;
mod schedules;
mod session_files;
mod speech;
