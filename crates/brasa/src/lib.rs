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
//! Programs that leave the choice of a [`Backend`] to their user load a [`TextModel`] by way of [`Backends`].
//!
//! This crate fits the rooms below together. It contains no model logic and no kernels.

#![forbid(unsafe_code)]

mod adapter;
mod any_model;
mod array_files;
mod backend;
mod bank;
mod batch;
mod bundle;
#[cfg(feature = "cpu")]
mod ceilings;
mod cross_encoder;
mod dense;
mod device;
mod discover;
mod draft_model;
mod embed;
mod embedder;
mod encoder;
mod error;
mod eval;
mod facts;
mod fine_tuner;
mod fit;
mod hint;
mod inside;
mod inspect;
mod load_times;
mod memory;
mod model;
mod options;
mod probe;
mod rerank;
mod reranker;
mod room;
mod score;
mod sentence;
mod session;
mod session_file;
pub mod statistics;
mod text_model;
mod transcriber;
mod verify;

pub use adapter::{AdapterInfo, AdapterSource};
pub use any_model::AnyModel;
pub use array_files::{load_arrays, save_arrays};
#[cfg(feature = "mlx_lm")]
pub use backend::MlxLm;
pub use backend::{Backend, BackendError, Backends, Unavailable};
pub use batch::{BatchAnswer, InOrder};
pub use brasa_array as array;
pub use brasa_audio as audio;
pub use brasa_engine as engine;
pub use brasa_engine::{
    CacheScope, Canceller, ContextPolicy, FinishReason, Fragment, GenerateOptions, MaskSource, Metrics,
    RequestOptions, Speculation, Token, TokenStream,
};
pub use brasa_formats as formats;
pub use brasa_grammar::{self as grammar, Grammar};
pub use brasa_graph as graph;
pub use brasa_graph::device::{DeviceInfo, KvType, OpTime, Precision};
pub use brasa_graph::sampling::{self, SamplingParams};
pub use brasa_models::{ModelInfo, ModelKind, Pooling, RecommendedSampling};
pub use brasa_speech::{self as speech, Timestamps, TranscribeOptions, TranscriptionTimes};
pub use brasa_tokenizer::{self as tokenizer, Message, Tokenizer};
pub use brasa_train as train;
pub use bundle::{BundleError, SavedBundle, StateBundle};
#[cfg(feature = "cpu")]
pub use ceilings::{Arithmetic, Ceilings};
pub use cross_encoder::PairScores;
pub use device::{array_runner, devices};
pub use discover::{DiscoveredModel, discover, kind_of};
pub use draft_model::DraftModelInfo;
pub use embed::{EmbedOptions, EmbeddingNorm};
pub use embedder::{Embedder, Vectors};
pub use encoder::{Embeddings, Encoder, TokensOptions};
pub use error::Error;
pub use eval::{
    EvalAnswer, EvalCheck, EvalProgress, EvalRequest, EvalStart, FastEvalConfig, FastEvalReport,
    FastEvalRunner, GenerationSpeed, KvRestore, ModelRunner, ProbeCost, PromptCacheUse, Quality,
    StateBundleTrip, Trip, run_fast_eval,
};
pub use facts::RunFacts;
pub use fine_tuner::FineTuner;
pub use fit::{Fit, TextFit};
pub use hint::split_hint;
pub use inside::LayerInside;
pub use inspect::{describe_graph, describe_graph_bytes, open_tokenizer, open_tokenizer_bytes};
pub use load_times::LoadTimes;
pub use memory::{give_back_free_memory, keep_no_large_blocks, peak_memory_bytes, resident_memory_bytes};
pub use model::Model;
pub use model::breakers::DRY_BREAKERS;
pub use model::turn::{AnswerForm, Turn, TurnOptions};
pub use options::{LoadOptions, LoadProgress, OwnDevice};
pub use probe::{ProbeEvent, ProbeKind, Probes, Watch};
pub use rerank::{RerankOptions, RerankPrompts};
pub use reranker::{Reranker, Scores};
pub use score::{Perplexity, Score};
pub use session::{SavedSession, Session, SessionProgress};
pub use session_file::SessionFileError;
pub use text_model::{Class, ClassifyOptions, TextModel, TextStream};
pub use transcriber::{BatchSound, Live, LiveUpdate, Segments, SpeechSpeed, TranscribeBatch, Transcriber};
pub use verify::{Verdict, verify};

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
