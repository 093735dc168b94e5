//! Run language models on the machine you have.
//!
//! ```no_run
//! use brasa::{GenerateOptions, LoadOptions, Message, Model};
//!
//! let model = Model::load("Qwen3-0.6B-Q4_K_M.gguf", &LoadOptions::default())?;
//! let mut stream = model.chat(&[Message::new("user", "Why is the sky blue?")], &GenerateOptions::default())?;
//! for token in &mut stream {
//!     print!("{}", token?.text);
//! }
//! println!("{}", stream.tail());
//! # Ok::<(), brasa::Error>(())
//! ```
//!
//! A [`Model`] is a file made ready: its tokenizer, its chat template, its graph compiled for a device, and an
//! engine that serves any number of [token streams](TokenStream) at once. A [`Session`] keeps the keys and values of a
//! conversation between requests.
//!
//! This crate fits the rooms below together. It contains no model logic and no kernels.

#![forbid(unsafe_code)]

#[cfg(feature = "cpu")]
mod ceilings;
mod device;
mod discover;
mod error;
mod inspect;
mod load_times;
mod memory;
mod model;
mod options;
mod score;
mod session;

pub use brasa_engine as engine;
pub use brasa_engine::{ContextPolicy, FinishReason, GenerateOptions, Metrics, Token, TokenStream};
pub use brasa_formats as formats;
pub use brasa_graph::device::{DeviceInfo, KvType, OpTime, Precision};
pub use brasa_graph::sampling::{self, SamplingParams};
pub use brasa_models::ModelInfo;
pub use brasa_tokenizer::{self as tokenizer, Message, Tokenizer};
#[cfg(feature = "cpu")]
pub use ceilings::{Arithmetic, Ceilings};
pub use device::devices;
pub use discover::{DiscoveredModel, discover};
pub use error::Error;
pub use inspect::{describe_graph, describe_graph_bytes, open_tokenizer, open_tokenizer_bytes};
pub use load_times::LoadTimes;
pub use memory::peak_memory_bytes;
pub use model::Model;
pub use options::{LoadOptions, LoadProgress};
pub use score::{Perplexity, Score};
pub use session::Session;
