//! Tests of grammars over a vocabulary of bytes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod gbnf;
mod hostile;
mod masks;
mod numbers;
mod one_of;
mod rewritten;
mod schemas;
mod texts;
mod tool_calls;
