//! Tests of conversions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod convert;
mod gguf_keys;
mod same_specification;

/// A folder in memory where the system has one: thousands of files are written and made durable.
fn scratch() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}
