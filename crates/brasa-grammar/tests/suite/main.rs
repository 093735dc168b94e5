//! Tests of grammars over a vocabulary of bytes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod gbnf;
mod hostile;
mod masks;
mod one_of;
mod schemas;
mod texts;
mod tool_calls;
