//! Whisper's decoding procedure (Radford et al. 2022, arXiv:2212.04356, §4.5), whole, over any device.
//!
//! A [`Recogniser`] encodes windows of sound and decodes tokens. Everything else is here: which tokens may come next ([`Rules`]), greedy
//! and beam search and draws at rising temperatures ([`WindowTask`]), how windows follow each other ([`Seeker`]), languages, and times
//! of words ([`timing`]). [`Transcription`] puts them together, window by window.
//!
//! The rules are those of OpenAI's own program, and are tested against its functions. This crate knows no tensors, files or families of
//! models; [`Programs`] runs the graphs of an encoder and a decoder as a recogniser.
//!
//! ```no_run
//! use brasa_audio::{LogMel, MelFilters};
//! use brasa_speech::{Recogniser, SpeechVocabulary, TranscribeOptions, Transcription};
//! use std::ops::ControlFlow;
//!
//! # fn example(recogniser: &mut dyn Recogniser, vocabulary: &SpeechVocabulary, samples: &[f32]) -> brasa_speech::Result<()> {
//! let log_mel = LogMel::new(MelFilters::slaney(80)?);
//! let options = TranscribeOptions::default();
//! let features = log_mel.features(samples)?;
//! let mut transcription = Transcription::new(&recogniser.shape(), vocabulary, features, options)?;
//! while let Some(segments) = transcription.advance(recogniser, &mut || ControlFlow::Continue(()))? {
//!     for segment in segments {
//!         println!("{}", segment.text);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod agreement;
mod compression;
mod error;
mod grammar;
mod language;
mod languages;
mod numbers;
mod options;
mod programs;
mod recogniser;
mod rules;
mod seek;
mod times;
pub mod timing;
mod tokens;
mod transcription;
mod vocabulary;
mod window;

pub use agreement::Agreement;
pub use compression::compression_ratio;
pub use error::{Result, SpeechError};
pub use grammar::TextGrammar;
pub use language::detect_language;
pub use languages::{language_code, language_name};
pub use options::{MOST_TEXTS, Task, Timestamps, TranscribeOptions};
pub use programs::{Programs, SpeechGraphs};
pub use recogniser::{CrossScores, Recogniser, Rows, Shape, TextId, WindowId};
pub use rules::Rules;
pub use seek::{Cut, Seeker, Window};
pub use times::{Timed, TranscriptionTimes};
pub use tokens::{SpeechTokens, TIMESTAMP_S};
pub use transcription::{Transcription, advance_together};
pub use vocabulary::SpeechVocabulary;
pub use window::{Criteria, Procedure, WindowTask, WindowText, run_tasks};
