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
//! The code has a room for each stage of a request, and a room knows only those above it in this list:
//!
//! - `http` is what every request passes: `connection` (TLS, silence), `log` (its id and its line in the log), `leftover` (bodies
//!   that are never read), `hosts`, `cors`, `limits`, `auth`, and `pool` (the threads of handlers). `sse` and `reply` write answers,
//!   `budget` bounds the memory of all requests.
//! - `models` knows the models: the `registry` lists them, `loading` loads and unloads them, `slots` are their places for
//!   requests, `reaper` frees them.
//! - `request` reads: `body` within its bounds, `fields` with a policy for every field, `conversation`, `prompt` and `fill` make
//!   token ids, `sampling` the options, `constraint` the grammar.
//! - `answer` runs: `generate` starts the choices of a request and reads their steps, `choices` splits those of a chat into
//!   thoughts, content and calls, `usage` and `logprobs` show numbers.
//! - `api` has a file for each family of endpoints, whose handlers join the rooms above. Sounds are transcribed by `api/audio` on
//!   threads of their own.
//!
//! `router` says which handler a path leads to, `server` starts and ends it all, `state` is what requests share, `metrics`
//! counts.

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
