//! From Hugging Face and GGUF checkpoints to quantised GGUF files
