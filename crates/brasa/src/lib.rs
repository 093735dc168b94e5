//! Run language models on the machine you have.
//!
//! ```
//! use brasa::{GenerateOptions, LoadOptions, Message, Model};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
//! let model = Model::load(path, &LoadOptions::default())?;
//! let mut answer = String::new();
//! for fragment in model.chat(&[Message::new("user", "What does \"ember\" mean?")], &GenerateOptions::default())? {
//!     answer += &fragment?.text;
//! }
//! assert!(answer.contains("ember"));
//! # Ok::<(), brasa::Error>(())
//! ```
//!
//! A [`Model`] is a file made ready: its tokenizer, its chat template, its graph compiled for a device, and an
//! engine that serves any number of [token streams](TokenStream) at once. It is a handle: clone it, send it, share it. A
//! [`Session`] keeps the keys and values of a conversation between requests.
//!
//! An [`Encoder`] is a text encoder made ready, such as BERT: it makes vectors of texts and generates nothing. [`Embedder`] is whichever
//! of the two a file holds, [`Reranker`] judges documents with either, and [`AnyModel`] is any model.
//!
//! [`GenerateOptions::default`] takes the most probable token for every model; what a checkpoint's makers recommend
//! instead is [`Model::recommended_sampling`].
//!
//! A [`Transcriber`] turns speech into text. A [`FineTuner`] makes low-rank adapters of a model.
//!
//! Programs that leave the choice of a [`Backend`] to their user load a [`TextModel`] by way of [`Backends`]. One of
//! them runs a Python program, in a module of its own, for models that Brasa does not know: `MlxLm`.
//!
//! [`Probes`] report what happens inside a generation. [`eval`] measures a model, or any program that generates text.
//!
//! This crate fits the rooms below together. It contains no model logic and no kernels.

#![forbid(unsafe_code)]

// Models of text, and the ways to run them.
mod any_model;
mod backend;
mod draft_model;
mod load_times;
mod model;
mod options;
mod text_model;

// Requests to a model, and texts kept between requests.
mod batch;
mod bundle;
mod score;
mod session;
mod session_file;

// Vectors of texts, and relevance.
mod cross_encoder;
mod dense;
mod embed;
mod embed_options;
mod embedder;
mod encoder;
mod rerank;
mod reranker;
mod sentence;

// Speech.
mod transcriber;

// Adapters: trained, loaded and exchanged.
mod adapter;
mod adapter_source;
mod bank;
mod fine_tuner;

// Files of models and of arrays.
mod array_files;
mod discover;
mod inspect;
mod verify;

// Devices and memory.
#[cfg(feature = "cpu")]
mod ceilings;
mod device;
mod fit;
mod memory;
mod room;

// Looking inside a model, and measuring.
pub mod eval;
mod facts;
mod inside;
mod probe;
pub mod statistics;

mod error;
mod hint;

// Models of text, and the ways to run them.
pub use any_model::AnyModel;
#[cfg(feature = "mlx_lm")]
pub use backend::MlxLm;
pub use backend::{Backend, BackendError, Backends, Unavailable};
pub use draft_model::DraftModelInfo;
pub use load_times::LoadTimes;
pub use model::Model;
pub use model::breakers::DRY_BREAKERS;
pub use model::turn::{AnswerForm, Turn, TurnOptions};
pub use options::{LoadOptions, LoadProgress, OwnDevice};
pub use text_model::{Class, ClassifyOptions, TextModel, TextStream};

// Requests to a model, and texts kept between requests.
pub use batch::{BatchAnswer, InOrder};
pub use bundle::{BundleError, SavedBundle, StateBundle};
pub use score::{Perplexity, Score};
pub use session::{SavedSession, Session, SessionProgress};
pub use session_file::SessionFileError;

// Vectors of texts, and relevance.
pub use cross_encoder::PairScores;
pub use embed_options::{EmbedOptions, EmbeddingNorm, TokensOptions};
pub use embedder::{Embedder, Vectors};
pub use encoder::{Embeddings, Encoder};
pub use rerank::{RerankOptions, RerankPrompts};
pub use reranker::{Reranker, Scores};

// Speech.
pub use transcriber::{BatchSound, Live, LiveUpdate, Segments, SpeechSpeed, TranscribeBatch, Transcriber};

// Adapters: trained, loaded and exchanged.
pub use adapter::AdapterInfo;
pub use adapter_source::AdapterSource;
pub use fine_tuner::FineTuner;

// Files of models and of arrays.
pub use array_files::{load_arrays, save_arrays};
pub use discover::{DiscoveredModel, discover, kind_of};
pub use inspect::{describe_graph, describe_graph_bytes, open_tokenizer, open_tokenizer_bytes};
pub use verify::{Verdict, verify};

// Devices and memory.
#[cfg(feature = "cpu")]
pub use ceilings::{Arithmetic, Ceilings};
pub use device::{array_runner, devices};
pub use fit::{Fit, TextFit};
pub use memory::{give_back_free_memory, keep_no_large_blocks, peak_memory_bytes, resident_memory_bytes};

// Looking inside a model, and measuring. The fast evaluation has a module of its own, `eval`.
pub use facts::RunFacts;
pub use inside::LayerInside;
pub use probe::{ProbeEvent, ProbeKind, Probes, Watch};

// Errors.
pub use error::Error;
pub use hint::split_hint;

// Types of the rooms below that requests and answers are made of.
pub use brasa_engine::{
    CacheScope, Canceller, ContextPolicy, FinishReason, Fragment, GenerateOptions, MaskSource, Metrics,
    RequestOptions, Speculation, Token, TokenStream,
};
pub use brasa_grammar::Grammar;
pub use brasa_graph::device::{DeviceInfo, KvType, OpTime, Precision};
pub use brasa_graph::sampling::SamplingParams;
pub use brasa_models::{ModelInfo, ModelKind, Pooling, RecommendedSampling};
pub use brasa_speech::{Timestamps, TranscribeOptions, TranscriptionTimes};
pub use brasa_tokenizer::{Message, Tokenizer};

// The rooms below, whole.
pub use brasa_array as array;
pub use brasa_audio as audio;
pub use brasa_engine as engine;
pub use brasa_formats as formats;
pub use brasa_grammar as grammar;
pub use brasa_graph as graph;
pub use brasa_graph::sampling;
pub use brasa_speech as speech;
pub use brasa_tokenizer as tokenizer;
pub use brasa_train as train;

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
