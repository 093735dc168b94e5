//! Fine-tuning of language models.
//!
//! [`data`] reads examples and turns them into steps of token ids; [`optimizer`] turns gradients into new values; a [`Trainer`]
//! changes a [low-rank adapter](lora), or the model's own [`Parameters`], on a device, update by update; and a [run] evaluates
//! the model, keeps checkpoints and resumes from them bit for bit.
//!
//! ```
//! use brasa_train::data::{DataOptions, Dataset, Examples};
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-qwen2");
//! let tokenizer = brasa_tokenizer::Tokenizer::from_directory(folder.as_ref())?;
//! let template = tokenizer.chat_template()?;
//! let examples = Examples { tokenizer: &tokenizer, template: Some(&template), vocab_size: 4096 };
//! let rows = r#"{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]}"#;
//! let data = Dataset::read_from(rows.as_bytes(), "train.jsonl", &examples, &DataOptions::default())?;
//! assert_eq!(data.report.rows, 1);
//! // The answer and the token that ends it.
//! let document = &data.documents[0];
//! let learned: Vec<u32> = document.targets().map(|(at, _)| document.tokens[at]).collect();
//! assert_eq!(tokenizer.decode(&learned, false)?, "two<|im_end|>");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate is independent of devices, model families and terminals.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod data;
mod error;
mod graphs;
mod judge;
mod learned;
pub mod lora;
mod memory;
pub mod metrics;
mod noise;
mod objective;
pub mod optimizer;
mod parameters;
mod random;
mod recompute;
pub mod run;
mod token_loss;
mod trainer;

pub use error::{Result, TrainError};
pub use memory::MemoryPlan;
pub use noise::Noise;
pub use objective::{Objective, Preference};
pub use parameters::{Extent, Parameter, Parameters, Role, Stored};
pub use random::Random;
pub use recompute::Activations;
pub use token_loss::{LearnedTokens, TokenLoss};
pub use trainer::{Evaluation, Found, Resources, TrainOptions, Trainer, Update};
