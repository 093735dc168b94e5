//! Tests of the engine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine;
