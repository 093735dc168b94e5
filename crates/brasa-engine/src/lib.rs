//! Sequences, KV pages, steps and sampling: turns a compiled program into streams of tokens.
//!
//! One thread owns the program and the KV pool. Callers hand it [requests](Request) and receive tokens; every step that the
//! thread runs carries rows of all active requests, prompt chunks and single decode tokens alike, so several streams share each
//! pass over the weights. This crate alone decides what a request costs, when it stops and why. A second thread makes text of the
//! tokens, searches for stop strings and wakes readers, so that no text is processed between two steps.
//!
//! This crate works on token ids, steps and pages. It uses devices through [`brasa_graph::device`] and text through
//! [`TextDecoder`], and contains nothing about model families or files.
//!
//! # Words
//!
//! - A [`Sequence`] is a text whose keys and values are cached: its tokens and its pages. It has one
//!   [id](Sequence::id) for life, and a [`CacheScope`] that says with whom it may share.
//! - A *step* computes rows of several sequences. [`SequenceRows`] are the rows of one of them, which the device sees as a
//!   `Segment`.
//! - A *chain* is a step and the steps of the tokens that are drawn after it. [`SequenceChain`] is one sequence's part in it,
//!   which the device sees as a `Segment` and a `RowDraw`.
//! - A *generation* is a [`Request`] on its way: a sequence, the tokens still to be computed, and the way of drawn tokens to
//!   the reader. It is *waiting* for a place, *active*, or *parked* while its reader is behind.
//! - *Drafts* are tokens that are guessed ahead and computed in one step with the last token, and kept as far as they are drawn.
//!   A *draft model* is a second program that guesses them.
//! - An *encoder* computes whole texts, each in one step, on a thread of its own: [`EncoderEngine`]. It needs steps alone, no
//!   pages and no sessions.
//! - A *session* holds a sequence between requests. A *snapshot* is its text on the way to a file, a *restoration* on the way back. The *prefixes* are pages of texts that have ended, for any request that
//!   begins alike.
//!
//! # Layers
//!
//! Files import downwards only: `snapshot` (texts that leave and come back), `engine` (the handle), `worker` (the thread), `generation`, `answer`, `command`, `drafter` (a draft
//! model), `executor` (steps and chains over sequences), `draft` (guesses), `kv` (pages within a budget), `outlook`, `prefix`, `sequence`, `held_states` and `pages`; beside them `text` (the
//! thread that makes text of tokens), `stop`, `stream`, `delivery` (the queue to a reader), `gate` (counts to wait for), `queue`
//! (the bound on waiting requests), `stats` and `sessions`; below all the plain types of requests, options, errors and metrics.
//!
//! `schedule` decides who is served, by which rows, and who gives way: pure functions from plain data to decisions. The worker
//! describes the requests and carries out the decisions.

#![forbid(unsafe_code)]

mod adapter_rows;
mod answer;
mod command;
mod config;
mod delivery;
mod draft;
mod drafter;
mod encoder;
mod engine;
mod error;
mod executor;
mod gate;
mod generation;
mod held_states;
mod kv;
mod metrics;
mod options;
mod outlook;
mod page_costs;
mod pages;
mod prefix;
mod queue;
mod request;
mod schedule;
mod scope;
mod sequence;
mod sessions;
mod snapshot;
mod stats;
mod stop;
mod stream;
pub mod testing;
mod text;
mod worker;

pub use adapter_rows::AdapterRows;
pub use brasa_graph::chain::Flow;
pub use brasa_graph::step::{Outs, SequenceId};
pub use config::EngineConfig;
pub use drafter::DraftModel;
pub use encoder::{EncoderConfig, EncoderEngine, EncoderOutput, EncoderRows, EncoderText, EncoderVectors};
pub use engine::{Engine, EngineParts};
pub use error::EngineError;
pub use executor::{Executor, MakeProgram, Reads, SequenceChain, SequenceRows, StepError, StepOut};
pub use kv::pages_bytes;
pub use metrics::Metrics;
pub use options::{ContextPolicy, GenerateOptions, MaskSource, RequestOptions, Speculation};
pub use page_costs::PageCosts;
pub use request::{
    FinishReason, Fragment, PlainIds, ReadRequest, ReadValue, Request, SessionId, TextDecoder, Token,
};
pub use scope::CacheScope;
pub use sequence::Sequence;
pub use snapshot::{Restoration, Snapshot, SnapshotState};
pub use stats::EngineStats;
pub use stream::{Canceller, ReadRows, TokenStream};
