//! The families that have a GGUF form, and what `config.json` leaves unsaid about them.

use serde_json::{Map, Value, json};

use crate::ConvertError;

/// A family of architectures that share one conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama, Mistral, Mixtral.
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Gemma,
    Gemma2,
    Gemma3,
    Gemma4,
    Phi3,
}

const KNOWN: &str = "Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE, Gemma 1 to 4 (text) and Phi-3";

impl Family {
    /// The family of `architectures[0]`, or of `model_type` where that is not given.
    pub fn of(config: &Map<String, Value>) -> Result<Self, ConvertError> {
        let architecture = config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let model_type = config.get("model_type").and_then(Value::as_str);
        let by_architecture = match architecture {
            Some("LlamaForCausalLM" | "MistralForCausalLM" | "MixtralForCausalLM") => Some(Self::Llama),
            Some("Qwen2ForCausalLM") => Some(Self::Qwen2),
            Some("Qwen3ForCausalLM") => Some(Self::Qwen3),
            Some("Qwen3MoeForCausalLM") => Some(Self::Qwen3Moe),
            Some("GemmaForCausalLM") => Some(Self::Gemma),
            Some("Gemma2ForCausalLM") => Some(Self::Gemma2),
            Some("Gemma3ForCausalLM" | "Gemma3ForConditionalGeneration") => Some(Self::Gemma3),
            Some("Gemma4ForCausalLM" | "Gemma4ForConditionalGeneration") => Some(Self::Gemma4),
            Some("Phi3ForCausalLM") => Some(Self::Phi3),
            _ => None,
        };
        let by_model_type = match model_type {
            Some("llama" | "mistral" | "mixtral") => Some(Self::Llama),
            Some("qwen2") => Some(Self::Qwen2),
            Some("qwen3") => Some(Self::Qwen3),
            Some("qwen3_moe") => Some(Self::Qwen3Moe),
            Some("gemma") => Some(Self::Gemma),
            Some("gemma2") => Some(Self::Gemma2),
            Some("gemma3" | "gemma3_text") => Some(Self::Gemma3),
            Some("gemma4" | "gemma4_text") => Some(Self::Gemma4),
            Some("phi3") => Some(Self::Phi3),
            _ => None,
        };
        let found = if architecture.is_some() { by_architecture } else { by_model_type };
        found.ok_or_else(|| ConvertError::UnsupportedArchitecture {
            name: architecture.or(model_type).unwrap_or("(none given)").to_owned(),
            known: KNOWN,
        })
    }

    /// The value of `general.architecture` and prefix of the keys.
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
            Self::Gemma => "gemma",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
            Self::Gemma4 => "gemma4",
            Self::Phi3 => "phi3",
        }
    }

    /// True for Gemma 1 to 3, whose checkpoints hold norm weights minus one.
    pub const fn norms_are_offsets(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3)
    }

    /// True where the norm after attention is a norm of its own and not the one before the feed-forward part.
    pub const fn has_post_norms(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3 | Self::Gemma4)
    }

    pub const fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3 | Self::Gemma4)
    }

    /// What the reference implementation takes for a key that `config.json` does not have.
    #[expect(clippy::match_same_arms, reason = "one line per fact of a family")]
    pub fn default_of(self, model_type: &str, key: &str) -> Option<Value> {
        let value = match (self, key) {
            (Self::Gemma, "num_attention_heads" | "num_key_value_heads") => json!(16),
            (Self::Gemma2 | Self::Gemma3, "num_attention_heads") => json!(8),
            (Self::Gemma2 | Self::Gemma3, "num_key_value_heads") => json!(4),
            (Self::Gemma | Self::Gemma2 | Self::Gemma3 | Self::Gemma4, "head_dim") => json!(256),
            (Self::Gemma4, "global_head_dim") => json!(512),
            (Self::Gemma4, "num_kv_shared_layers") => json!(0),
            (Self::Gemma | Self::Gemma2, "max_position_embeddings") => json!(8192),
            (Self::Gemma3 | Self::Gemma4, "max_position_embeddings") => json!(131_072),
            (Self::Gemma2, "sliding_window") => json!(4096),
            (Self::Gemma3, "sliding_window") => json!(4096),
            (Self::Gemma4, "sliding_window") => json!(512),
            (Self::Gemma2, "attn_logit_softcapping") => json!(50.0),
            (Self::Gemma2, "final_logit_softcapping") => json!(30.0),
            (Self::Gemma3, "rope_theta") => json!(1_000_000.0),
            (Self::Gemma3, "rope_local_base_freq") => json!(10_000.0),
            (Self::Gemma | Self::Gemma2 | Self::Gemma3 | Self::Gemma4, "tie_word_embeddings") => json!(true),
            (Self::Qwen3, "head_dim") => json!(128),
            (Self::Qwen2 | Self::Qwen3 | Self::Qwen3Moe, "max_position_embeddings") => json!(32_768),
            (Self::Qwen3Moe, "num_experts") => json!(128),
            (Self::Qwen3Moe, "num_experts_per_tok") => json!(8),
            (Self::Qwen3Moe, "moe_intermediate_size") => json!(768),
            (Self::Llama, "num_local_experts") if model_type == "mixtral" => json!(8),
            (Self::Llama, "num_experts_per_tok") if model_type == "mixtral" => json!(2),
            (Self::Llama, "rms_norm_eps") if model_type == "mixtral" => json!(1e-5),
            (Self::Llama, "rope_theta") if model_type == "mixtral" => json!(1_000_000.0),
            (Self::Llama, "sliding_window") if model_type == "mistral" => json!(4096),
            (Self::Gemma2 | Self::Gemma3, "query_pre_attn_scalar") => json!(256),
            (Self::Llama, "max_position_embeddings") if model_type == "llama" => json!(2048),
            (Self::Llama, "max_position_embeddings") => json!(131_072),
            (Self::Phi3, "rms_norm_eps") => json!(1e-5),
            (Self::Phi3, "max_position_embeddings" | "original_max_position_embeddings") => json!(4096),
            (_, "rms_norm_eps") => json!(1e-6),
            (_, "rope_theta") => json!(10_000.0),
            _ => return None,
        };
        Some(value)
    }
}
