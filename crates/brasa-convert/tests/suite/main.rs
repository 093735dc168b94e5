//! Tests of conversions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod convert;
mod gguf_keys;
mod same_specification;
