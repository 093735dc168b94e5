//! The model inside the program: a small dictionary assistant that answers without any file.

/// `lexicon-qwen3` in Q6_K; its card is in `models/lexicon-qwen3`.
pub static MODEL: &[u8] = include_bytes!("../../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");

/// Its name for clients of a server.
pub const ID: &str = "lexicon-qwen3";

/// Its name in messages.
pub const NAME: &str = "lexicon-qwen3 (bundled)";

/// A question that it answers well, for those who ask nothing.
pub const QUESTION: &str = "What does \"ember\" mean?";
