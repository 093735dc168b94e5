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
//! This crate implements HTTP, JSON and the forms of three APIs. It uses models through [`brasa`] alone, and contains nothing
//! about flags, terminals and signals.
//!
//! # Layers
//!
//! The code has a module for each stage of a request. A module uses only those above it in this list:
//!
//! - `http`: layers that every request passes. `connection` (TLS, silence), `log` (request ids and the access log), `leftover`
//!   (unread bodies), `hosts`, `cors`, `limits`, `auth`, and `pool` (the threads of handlers). `sse` and `reply` write answers,
//!   `budget` bounds the memory of all requests.
//! - `models`: the served models. The `registry` lists them, `loading` loads and unloads them, `slots` are their places for
//!   requests, `reaper` frees them.
//! - `request`: reading. `body` reads within its bounds, `fields` applies a policy to every field, `conversation`, `prompt` and
//!   `fill` make token ids, `sampling` makes options, `constraint` makes the grammar.
//! - `answer`: running. `generate` starts the choices of a request and reads their steps, `choices` splits those of a chat into
//!   thoughts, content and calls, `usage` and `logprobs` show numbers.
//! - `api`: one file for each family of endpoints, with handlers that use the modules above. `api/audio` transcribes sounds on
//!   threads of their own.
//!
//! `router` maps paths to handlers, `server` starts and ends the server, `state` is shared by all requests, `metrics` counts.

#![forbid(unsafe_code)]
#![allow(clippy::needless_pass_by_value, reason = "JSON is made in place and moved to where it is written")]

mod answer;
mod api;
mod http;
mod metrics;
mod models;
mod options;
mod request;
mod router;
mod server;
mod state;

pub use http::error::ServerError;
pub use options::{Log, ModelData, ModelSource, ServerOptions, TlsFiles};
pub use server::{Server, ServerHandle};
