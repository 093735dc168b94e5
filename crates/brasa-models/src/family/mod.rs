//! Families of models. Each function turns a configuration into a [`ModelSpec`], and states only the family's differences.
//! [`write`] turns the configuration into GGUF's keys.

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
mod write;

pub(crate) use base::{activation_name, activation_named};
pub(crate) use gemma3::gemma3;
pub(crate) use layers::kinds;
pub use write::to_gguf;

use crate::metadata::Metadata;
use crate::source::Source;
use crate::{ModelError, ModelKind, ModelSpec, Result};
use brasa_formats::Container;

/// A family: its names in configurations, and the function that reads its configuration.
struct Family {
    /// `model_type` in `config.json`.
    hf: &'static [&'static str],
    /// Classes of transformers, as `architectures` in `config.json` names them.
    classes: &'static [&'static str],
    /// `general.architecture` in GGUF. Where several families share one, the first of them reads it.
    gguf: &'static str,
    /// Reads the configuration.
    spec: fn(&Metadata) -> Result<ModelSpec>,
}

const FAMILIES: &[Family] = &[
    Family {
        hf: &["llama"],
        classes: &["LlamaForCausalLM", "LLaMAForCausalLM"],
        gguf: "llama",
        spec: llama::llama,
    },
    Family { hf: &["mistral"], classes: &["MistralForCausalLM"], gguf: "llama", spec: mistral::mistral },
    Family { hf: &["mixtral"], classes: &["MixtralForCausalLM"], gguf: "llama", spec: mixtral::mixtral },
    Family { hf: &["qwen2"], classes: &["Qwen2ForCausalLM"], gguf: "qwen2", spec: qwen2::qwen2 },
    Family { hf: &["qwen3"], classes: &["Qwen3ForCausalLM"], gguf: "qwen3", spec: qwen3::qwen3 },
    Family {
        hf: &["qwen3_moe"],
        classes: &["Qwen3MoeForCausalLM"],
        gguf: "qwen3moe",
        spec: qwen3_moe::qwen3_moe,
    },
    Family { hf: &["gemma"], classes: &["GemmaForCausalLM"], gguf: "gemma", spec: gemma::gemma },
    Family { hf: &["gemma2"], classes: &["Gemma2ForCausalLM"], gguf: "gemma2", spec: gemma2::gemma2 },
    Family {
        hf: &["gemma3_text", "gemma3"],
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        gguf: "gemma3",
        spec: gemma3::gemma3,
    },
    Family {
        hf: &["gemma4_text", "gemma4"],
        classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
        gguf: "gemma4",
        spec: gemma4::gemma4,
    },
    Family { hf: &["phi3"], classes: &["Phi3ForCausalLM"], gguf: "phi3", spec: phi3::phi3 },
];

impl Family {
    fn names(&self, container: Container) -> &[&'static str] {
        match container {
            Container::HuggingFace => self.hf,
            Container::Gguf => std::slice::from_ref(&self.gguf),
        }
    }

    fn of(source: &Source) -> Result<&'static Self> {
        let container = source.container();
        if ModelKind::of(source) == ModelKind::Encoder {
            return Err(ModelError::IsEncoder { architecture: source.architecture().into() });
        }
        let unknown = |architecture: &str| ModelError::UnknownArchitecture {
            architecture: architecture.into(),
            supported: supported(container).join(", "),
        };
        let named = |family: &&Self| family.names(container).contains(&source.architecture());
        let family = FAMILIES.iter().find(named).ok_or_else(|| unknown(source.architecture()))?;
        // transformers goes by the model type. A class that is not this family's (a classifier, a draft head, a model
        // with code of its own) computes something else all the same.
        match source.class() {
            Some(class) if !family.classes.contains(&class) => Err(unknown(class)),
            _ => Ok(family),
        }
    }
}

/// Reads the configuration with the family that the checkpoint names.
pub(crate) fn spec(source: &Source, meta: &Metadata) -> Result<ModelSpec> {
    (Family::of(source)?.spec)(meta)
}

/// The architecture's name in GGUF, of the family that [`ModelSpec::family`] names.
pub(crate) fn gguf_architecture(family: &str) -> &'static str {
    FAMILIES.iter().find(|known| known.hf.contains(&family)).map_or("unknown", |known| known.gguf)
}

/// Names of all architectures that are understood in `container`.
pub fn supported(container: Container) -> Vec<&'static str> {
    let mut names: Vec<_> = FAMILIES.iter().flat_map(|family| family.names(container)).copied().collect();
    names.dedup();
    names
}
