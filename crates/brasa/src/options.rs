//! How to load a model.

use brasa_graph::device::{KvType, Precision};

/// How to load a model. The default suits the machine.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Device by name; `None` for the best one present. See [`devices`](crate::devices).
    pub device: Option<String>,
    /// Positions of the context; `None` for the model's own limit, at most 131,072.
    pub context: Option<usize>,
    /// Threads of the CPU device; `None` for as many as this process may use.
    pub threads: Option<usize>,
    /// Instruction set of the CPU device by name; `None` for the best, or the one that `BRASA_ISA` names.
    pub isa: Option<String>,
    /// How exactly to compute.
    pub precision: Precision,
    /// Forbids what makes a row's result depend on how many others are computed with it: prompts in bf16.
    /// Then answers are the same, bit for bit, whatever else is served meanwhile and however a prompt is cut into
    /// chunks. Reference precision always is.
    pub deterministic: bool,
    /// Element type of cached keys and values; `None` for f16, or f32 in reference precision.
    pub kv_type: Option<KvType>,
    /// Most rows of a step: a prompt is computed in chunks of this many tokens.
    pub chunk: usize,
    /// Requests served at once; further ones wait.
    pub max_sequences: usize,
    /// Makes warnings about the checkpoint errors: unknown configuration keys, unused tensors.
    pub strict: bool,
    /// Pre-tokenizer by its GGUF name, for files that name none or an unknown one.
    pub pre_tokenizer: Option<String>,
    /// A Jinja chat template in place of the checkpoint's.
    pub chat_template: Option<String>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: None,
            context: None,
            threads: None,
            isa: None,
            precision: Precision::Fast,
            deterministic: false,
            kv_type: None,
            chunk: 512,
            max_sequences: 16,
            strict: false,
            pre_tokenizer: None,
            chat_template: None,
        }
    }
}

/// How far loading has come.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// Weight bytes that are ready.
    pub done_bytes: u64,
    /// Weight bytes in all.
    pub total_bytes: u64,
}
