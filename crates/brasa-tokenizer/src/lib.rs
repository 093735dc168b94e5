//! Text to token ids and back, and chat templates.
//!
//! A [`Tokenizer`] is made from Hugging Face's files ([`Tokenizer::from_directory`], [`Tokenizer::from_json`]) or from
//! the metadata of a GGUF file ([`Tokenizer::from_gguf`]). It needs neither weights nor a supported architecture.
//!
//! ```
//! use brasa_tokenizer::{AddSpecial, HfFiles, ParseSpecial, Tokenizer};
//!
//! let file = r#"{"version": "1.0", "added_tokens": [], "decoder": {"type": "ByteLevel"},
//!     "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
//!     "model": {"type": "BPE", "vocab": {"h": 0, "i": 1, "hi": 2, "!": 3}, "merges": ["h i"]}}"#;
//! let tokenizer = Tokenizer::from_json(&HfFiles { tokenizer: file, ..HfFiles::default() })?;
//! let ids = tokenizer.encode("hi!", AddSpecial::AsModel, ParseSpecial::No)?;
//! assert_eq!(ids, [2, 3]);
//! assert_eq!(tokenizer.decode(&ids, true)?, "hi!");
//! # Ok::<(), brasa_tokenizer::TokenizerError>(())
//! ```
//!
//! This crate is independent of models, devices and sources of text.

#![forbid(unsafe_code)]

mod added;
mod charsmap;
mod chat;
mod container;
mod decode;
mod engine;
mod error;
mod gguf;
mod gguf_doubts;
mod json;
mod normalize;
mod pair;
mod pattern;
mod pieces;
mod post;
mod pre;
mod special;
mod split;
mod spm;
mod steps;
mod tokenizer;
mod unigram;
mod vocabulary;
mod words;

pub use chat::{
    AnswerEvent, AnswerParser, AnswerPart, BuiltinTemplate, ChatOptions, ChatTemplate, CivilTime, Content,
    EncodedTurns, InputReader, Message, OtherAnswers, TemplateGuess, ThoughtMarks, Thoughts, ToolChoice,
    ToolFormat, TrainedTurns, exact_json, exact_number, exact_value, json_kind,
};
pub use decode::DecodeStream;
pub use error::{Result, TokenizerError};
pub use gguf::GgufVocabulary;
pub use json::HfFiles;
pub use pair::PairTemplate;
pub use special::{END_OF_GENERATION, SpecialTokens};
pub use steps::pre_tokenizer_name;
pub use tokenizer::{AddSpecial, ParseSpecial, Tokenizer};
pub use vocabulary::{TokenKind, Vocabulary};
