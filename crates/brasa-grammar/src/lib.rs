//! Masks of tokens that may come next, from grammars: JSON of a schema, a regular expression, or a text of a context-free grammar.
//!
//! [`Grammars`] belongs to one model: it holds the bytes of every token. [`Grammars`] compiles a [`Grammar`] to a
//! [`CompiledGrammar`], which makes one mask for each generation. A mask is computed on another thread while the model's forward
//! pass runs. If a mask allows a single token, the masks after it are computed too, and the mask reports the forced tokens.
//!
//! ```
//! use brasa_engine::MaskSource;
//! use brasa_grammar::{Grammar, Grammars};
//! use brasa_tokenizer::{HfFiles, Tokenizer};
//!
//! let file = r#"{"version": "1.0", "added_tokens": [{"id": 3, "content": "</s>", "special": true, "single_word": false,
//!     "lstrip": false, "rstrip": false, "normalized": false}], "decoder": {"type": "ByteLevel"},
//!     "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
//!     "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "</s>": 3}, "merges": ["a b"]}}"#;
//! let tokenizer = Tokenizer::from_json(&HfFiles { tokenizer: file, ..HfFiles::default() })?;
//! let grammars = Grammars::new(tokenizer.into(), 4);
//! let mut mask = grammars.compile(&Grammar::Regex("(ab)+".into()))?.start();
//! let mut words = [0];
//! mask.fill(&[], &mut words)?;
//! assert_eq!(words, [0b0101], "a and ab, but neither b nor the end");
//! mask.accept(2);
//! mask.fill(&[], &mut words)?;
//! assert_eq!(words, [0b1101], "a, ab or the end");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Grammars may come from untrusted clients: sizes, depths, work and memory are bounded, and a grammar beyond a bound is an error
//! of its own request. This crate is independent of models and devices. `llguidance` parses; GBNF, llama.cpp's notation, is
//! [converted](gbnf) to its form.

#![forbid(unsafe_code)]

mod cache;
mod compile;
mod compilers;
mod error;
pub mod gbnf;
mod grammar;
mod lark;
mod limits;
mod literals;
mod mask;
mod parser;
mod pool;
mod schema;
mod shapes;
mod stop;
mod thoughts;
mod vocabulary;

pub use compile::Grammars;
pub use error::GrammarError;
pub use grammar::Grammar;
pub use literals::Literals;
pub use mask::CompiledGrammar;
pub use stop::Stop;
