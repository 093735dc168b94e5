//! Tests of the command, run as people and scripts run it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agreement;
mod bench;
mod chat;
mod command;
mod encoders;
mod eval;
mod hub;
mod inputs;
mod inspect;
mod memory;
mod outputs;
mod serve;
mod signals;
#[cfg(unix)]
mod terminal;
mod train;
mod train_model;
mod train_served;
mod transcribe;
mod whisper_bin;
mod words;
