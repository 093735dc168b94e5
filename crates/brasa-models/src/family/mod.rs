//! Families: each turns configuration into a [`ModelSpec`], and says only how it differs.

mod base;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod layers;
mod llama;
mod mistral;
mod mixtral;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;

use crate::metadata::Metadata;
use crate::source::Source;
use crate::{ModelError, ModelSpec, Result};
use brasa_formats::Container;

/// A family: the names that its configurations go by, and how to read them.
struct Family {
    /// `model_type` in `config.json`.
    hf: &'static [&'static str],
    /// `general.architecture` in GGUF. Mistral and Mixtral are `llama` there.
    gguf: &'static [&'static str],
    /// Reads the configuration.
    spec: fn(&Metadata) -> Result<ModelSpec>,
}

const FAMILIES: &[Family] = &[
    Family { hf: &["llama"], gguf: &["llama"], spec: llama::llama },
    Family { hf: &["mistral"], gguf: &[], spec: mistral::mistral },
    Family { hf: &["mixtral"], gguf: &[], spec: mixtral::mixtral },
    Family { hf: &["qwen2"], gguf: &["qwen2"], spec: qwen2::qwen2 },
    Family { hf: &["qwen3"], gguf: &["qwen3"], spec: qwen3::qwen3 },
    Family { hf: &["qwen3_moe"], gguf: &["qwen3moe"], spec: qwen3_moe::qwen3_moe },
    Family { hf: &["gemma"], gguf: &["gemma"], spec: gemma::gemma },
    Family { hf: &["gemma2"], gguf: &["gemma2"], spec: gemma2::gemma2 },
    Family { hf: &["gemma3_text", "gemma3"], gguf: &["gemma3"], spec: gemma3::gemma3 },
    Family { hf: &["gemma4_text", "gemma4"], gguf: &["gemma4"], spec: gemma4::gemma4 },
    Family { hf: &["phi3"], gguf: &["phi3"], spec: phi3::phi3 },
];

impl Family {
    fn names(&self, container: Container) -> &'static [&'static str] {
        match container {
            Container::HuggingFace => self.hf,
            Container::Gguf => self.gguf,
        }
    }
}

/// Reads the configuration of whichever family the checkpoint names.
pub(crate) fn spec(source: &Source, meta: &Metadata) -> Result<ModelSpec> {
    let container = source.container();
    let named = |family: &&Family| family.names(container).contains(&source.architecture());
    let family = FAMILIES.iter().find(named).ok_or_else(|| ModelError::UnknownArchitecture {
        architecture: source.architecture().into(),
        supported: supported(container).join(", "),
    })?;
    (family.spec)(meta)
}

/// Names of all architectures that are understood in `container`.
pub fn supported(container: Container) -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|family| family.names(container)).copied().collect()
}
