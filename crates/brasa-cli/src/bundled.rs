//! The model inside the program: a small dictionary assistant that answers without any file.

/// The model `lexicon-qwen3` in Q6_K; its card is in `models/lexicon-qwen3`.
pub static MODEL: &[u8] = include_bytes!("../../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");

/// Name of the built-in model for clients of a server.
pub const ID: &str = "lexicon-qwen3";

/// Name of the built-in model in messages.
pub const NAME: &str = "lexicon-qwen3 (bundled)";

/// A question that the built-in model answers well, used if there is no prompt.
pub const QUESTION: &str = "What does \"ember\" mean?";
