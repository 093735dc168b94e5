//! Serves models over HTTP, in the forms of OpenAI, Anthropic and llama.cpp.
//!
//! ```
//! use brasa_server::{ModelData, ModelSource, Server, ServerOptions};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf").into();
//! let model = ModelSource { id: "lexicon".into(), data: ModelData::Path(path) };
//! let server = Server::bind(ServerOptions { port: 0, models: vec![model], ..ServerOptions::default() })?;
//! println!("listening on {}", server.url());
//! // Another thread, or a signal, ends the server. Here it ends before its first request.
//! server.handle().shut_down();
//! server.run()?;
//! # Ok::<(), brasa_server::ServerError>(())
//! ```
//!
//! This crate knows HTTP, JSON and the forms of three APIs. It sees models through [`brasa`] alone, and knows nothing of flags,
//! terminals and signals.
//!
//! # Layers
//!
//! A request passes `connection` (TLS, silence), `log` (its id and its line in the log), `leftover` (bodies that nobody reads),
//! `hosts`, `cors`, `limits`, `auth` and `pool` (the threads of handlers), and comes to a handler in `api`, one file for each
//! family of endpoints. A handler reads its body, within the `budget` of all requests, through `fields`, which knows the policy
//! for every field, and gets a model from the `registry`. `conversation`, `prompt` and `fill` make token ids of it, `sampling`
//! the options. All forms generate through `generate` (choices and their steps); those of chats read their answers through
//! `answer`. Sounds come as forms, and are transcribed by `api/audio` on threads of their own. `sse` streams, `usage` and
//! `logprobs` show numbers, `metrics` counts, `log_writer` writes the log, `reaper` frees models.

#![forbid(unsafe_code)]
#![allow(clippy::needless_pass_by_value, reason = "JSON is made in place and moved to where it is written")]

mod adapter_files;
mod adapters;
mod answer;
mod api;
mod auth;
mod body;
mod budget;
mod connection;
mod constraint;
mod conversation;
mod cors;
mod custom;
mod defaults;
mod entry;
mod error;
mod fields;
mod fill;
mod generate;
mod hosts;
mod ids;
mod json;
mod known;
mod leftover;
mod limits;
mod listen;
mod loaded;
mod loaded_speech;
mod loaded_text;
mod loading;
mod log;
mod log_writer;
mod logprobs;
mod lost;
mod metrics;
mod names;
mod options;
mod page;
mod pool;
mod presence;
mod prompt;
mod reaper;
mod registry;
mod reply;
mod router;
mod sampling;
mod server;
mod slot_files;
mod slots;
mod sse;
mod state;
mod token_limits;
mod usage;

pub use error::ServerError;
pub use options::{Log, ModelData, ModelSource, ServerOptions, TlsFiles};
pub use server::{Server, ServerHandle};
