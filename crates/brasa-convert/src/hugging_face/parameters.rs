//! The architecture's numbers: `{architecture}.…` keys.

use brasa_formats::gguf::{Array, Metadata};

use super::config::Config;
use super::family::Family;
use super::rope::Rope;
use crate::{ConvertError, Recipe, Result};

/// Writes everything that the family's graph needs to know.
pub fn describe(metadata: &mut Metadata, config: &Config, recipe: Recipe) -> Result<()> {
    let architecture = config.family.architecture();
    let rope = Rope::of(config);
    let layers = config.require("num_hidden_layers")?;
    let mut out = Keys { metadata, architecture };

    out.put("block_count", layers);
    out.put_some("context_length", config.integer("max_position_embeddings")?);
    out.put("embedding_length", config.require("hidden_size")?);
    out.put("feed_forward_length", config.require("intermediate_size")?);
    out.put("attention.head_count", config.require("num_attention_heads")?);
    out.put("attention.head_count_kv", config.kv_heads()?);
    rope.describe(out.metadata, architecture)?;
    out.put("attention.layer_norm_rms_epsilon", number(config, "rms_norm_eps")?);
    if !matches!(config.family, Family::Gemma | Family::Gemma2) {
        out.put_some("expert_count", config.experts()?);
        let used = config.integer("num_experts_per_tok")?;
        out.put_some("expert_used_count", used.or(config.integer("top_k_experts")?));
    }
    if let Some(head_dim) = config.integer("head_dim")? {
        out.put("attention.key_length", head_dim);
        out.put("attention.value_length", head_dim);
    }
    out.metadata.insert("general.file_type", recipe.file_type());

    match config.family {
        Family::Llama => {
            out.put_some("vocab_size", config.integer("vocab_size")?);
            out.put("rope.dimension_count", config.head_dim()?);
        }
        Family::Qwen2 | Family::Qwen3 | Family::Gemma => {}
        Family::Qwen3Moe => {
            out.put("expert_feed_forward_length", config.require("moe_intermediate_size")?);
        }
        Family::Gemma2 => {
            out.put("attn_logit_softcapping", number(config, "attn_logit_softcapping")?);
            out.put("final_logit_softcapping", number(config, "final_logit_softcapping")?);
            out.put("attention.sliding_window", config.require("sliding_window")?);
        }
        Family::Gemma3 => gemma3(&mut out, config)?,
        Family::Gemma4 => gemma4(&mut out, config, &rope, layers)?,
        Family::Phi3 => phi3(&mut out, config, &rope)?,
    }
    Ok(())
}

fn gemma3(out: &mut Keys<'_>, config: &Config) -> Result<()> {
    if config.get("attn_logit_softcapping").is_some() {
        return Err(ConvertError::config("attn_logit_softcapping", "set, Gemma 3 has none in GGUF"));
    }
    out.put_some("final_logit_softcapping", config.number("final_logit_softcapping")?.map(|cap| cap as f32));
    if config.integer("sliding_window_pattern")? != Some(1) {
        out.put("attention.sliding_window", config.require("sliding_window")?);
    }
    // llama.cpp takes every sixth layer for a full one where nothing else is said.
    if let Some(sliding) = config.sliding_layers() {
        let every_sixth =
            sliding.iter().enumerate().all(|(layer, sliding)| *sliding == ((layer + 1) % 6 != 0));
        if !every_sixth {
            return Err(ConvertError::config(
                "layer_types",
                "GGUF knows only one full layer in six for Gemma 3",
            ));
        }
    }
    Ok(())
}

fn gemma4(out: &mut Keys<'_>, config: &Config, rope: &Rope, layers: u32) -> Result<()> {
    out.put_some("final_logit_softcapping", config.number("final_logit_softcapping")?.map(|cap| cap as f32));
    out.put("attention.sliding_window", config.require("sliding_window")?);
    let shared = config.integer("num_kv_shared_layers")?.unwrap_or(0);
    out.put("attention.shared_kv_layers", shared);
    out.put("embedding_length_per_layer_input", config.integer("hidden_size_per_layer_input")?.unwrap_or(0));
    let sliding = config
        .sliding_layers()
        .ok_or_else(|| ConvertError::config("layer_types", "missing, expected a list"))?;
    out.put("attention.sliding_window_pattern", Array::of(sliding.iter().copied()));

    let (full_dim, sliding_dim) = (config.require("global_head_dim")?, config.require("head_dim")?);
    out.put("attention.key_length", full_dim);
    out.put("attention.value_length", full_dim);
    out.put("attention.key_length_swa", sliding_dim);
    out.put("attention.value_length_swa", sliding_dim);
    let of_expert = config.integer("expert_intermediate_size")?.or(config.integer("moe_intermediate_size")?);
    out.put_some("expert_feed_forward_length", of_expert);
    if config.flag("use_double_wide_mlp") {
        let width = config.require("intermediate_size")? as i32;
        let first_shared = layers.saturating_sub(shared);
        let widths = (0..layers).map(|layer| if layer < first_shared { width } else { 2 * width });
        out.put("feed_forward_length", Array::of(widths));
    }
    if let Some(full_heads) = config.integer("num_global_key_value_heads")? {
        let sliding_heads = config.kv_heads()?;
        let heads = sliding.iter().map(|&sliding| if sliding { sliding_heads } else { full_heads } as i32);
        out.put("attention.head_count_kv", Array::of(heads));
    }
    out.put("rope.dimension_count", full_dim);
    out.put("rope.dimension_count_swa", (f64::from(sliding_dim) * rope.sliding_rotary_share()) as u32);
    Ok(())
}

fn phi3(out: &mut Keys<'_>, config: &Config, rope: &Rope) -> Result<()> {
    let original = config.require("original_max_position_embeddings")?;
    out.put("rope.scaling.original_context_length", original);
    let share = config.number("partial_rotary_factor")?.unwrap_or(1.0);
    let rotated = (share * f64::from(config.require("hidden_size")?)) as u32;
    out.put("rope.dimension_count", rotated / config.require("num_attention_heads")?.max(1));
    // 0 tells llama.cpp that this model has no window.
    out.put("attention.sliding_window", config.integer("sliding_window")?.unwrap_or(0));
    let context = f64::from(config.require("max_position_embeddings")?);
    let factor = rope.longrope_attention_factor(context, f64::from(original));
    out.put_some("rope.scaling.attn_factor", factor.map(|factor| factor as f32));
    Ok(())
}

fn number(config: &Config, key: &str) -> Result<f32> {
    let number =
        config.number(key)?.ok_or_else(|| ConvertError::config(key, "missing, expected a number"))?;
    Ok(number as f32)
}

/// Keys under the architecture's prefix.
struct Keys<'a> {
    metadata: &'a mut Metadata,
    architecture: &'static str,
}

impl Keys<'_> {
    fn put(&mut self, key: &str, value: impl Into<brasa_formats::gguf::Value>) {
        self.metadata.insert(format!("{}.{key}", self.architecture), value);
    }

    fn put_some(&mut self, key: &str, value: Option<impl Into<brasa_formats::gguf::Value>>) {
        if let Some(value) = value {
            self.put(key, value);
        }
    }
}
