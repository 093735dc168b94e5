//! Sequences, KV pages, steps and sampling: what turns a compiled program into a stream of tokens.
//!
//! One thread owns the program and the KV pool. Callers hand it [requests](Request) and receive tokens; every
//! step that the thread runs carries rows of all active requests, prompt chunks and single decode tokens alike,
//! so several streams share each pass over the weights. What a request costs, when it stops and why is decided
//! here and nowhere else.
//!
//! This crate knows token ids, steps and pages. It sees devices through [`brasa_graph::device`], text through
//! [`TextDecoder`], and knows nothing of model families or files.

#![forbid(unsafe_code)]

mod command;
mod config;
mod delivery;
mod engine;
mod error;
mod executor;
mod generation;
mod kv;
mod metrics;
mod options;
mod pages;
mod prefix;
mod request;
mod stop;
mod stream;
mod worker;

pub use brasa_graph::step::Outs;
pub use config::EngineConfig;
pub use engine::Engine;
pub use error::EngineError;
pub use executor::{Executor, Part, Text};
pub use metrics::Metrics;
pub use options::{ContextPolicy, GenerateOptions};
pub use request::{FinishReason, Fragment, PlainIds, Request, SessionId, TextDecoder, Token};
pub use stream::{Canceller, TokenStream};
