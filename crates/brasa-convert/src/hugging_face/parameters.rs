//! The architecture's numbers: `{architecture}.…` keys.

use brasa_formats::gguf::{Array, Metadata};

use super::config::Config;
use super::family::Family;
use super::rope::Rope;
use crate::{ConvertError, Recipe, Result};

/// Writes everything that the family's graph needs to know; returns what GGUF cannot say, or llama.cpp does not read.
pub fn describe(metadata: &mut Metadata, config: &Config, recipe: Recipe) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let architecture = config.family.architecture();
    let rope = Rope::of(config);
    let layers = config.layers()?;
    let mut out = Keys { metadata, architecture };

    out.put("block_count", layers);
    out.put_some("context_length", config.integer("max_position_embeddings")?);
    out.put("embedding_length", config.require("hidden_size")?);
    out.put("feed_forward_length", config.require("intermediate_size")?);
    out.put("attention.head_count", config.require("num_attention_heads")?);
    out.put("attention.head_count_kv", config.kv_heads()?);
    rope.describe(out.metadata, architecture, &mut notes)?;
    if matches!(config.family, Family::Gemma | Family::Gemma2) && rope.theta() == Some(10_000.0) {
        // What every reader assumes is left unsaid there.
        out.metadata.remove(&format!("{architecture}.rope.freq_base"));
    }
    out.put("attention.layer_norm_rms_epsilon", number(config, "rms_norm_eps")?);
    if !matches!(config.family, Family::Gemma | Family::Gemma2) {
        out.put_some("expert_count", config.experts()?);
        let used = config.integer("num_experts_per_tok")?;
        out.put_some("expert_used_count", used.or(config.integer("top_k_experts")?));
    }
    let head_dim = match config.integer("head_dim")? {
        None if matches!(config.model_type.as_str(), "llama" | "mistral") => Some(config.head_dim()?),
        given => given,
    };
    if let Some(head_dim) = head_dim {
        out.put("attention.key_length", head_dim);
        out.put("attention.value_length", head_dim);
    }
    out.metadata.insert("general.file_type", recipe.file_type());

    match config.family {
        Family::Llama => {
            out.put_some("vocab_size", config.integer("vocab_size")?);
            out.put("rope.dimension_count", config.head_dim()?);
            // Mistral's; llama.cpp passes over it and sees everything.
            out.put_some("attention.sliding_window", config.integer("sliding_window")?);
        }
        Family::Gemma => {}
        Family::Qwen2 | Family::Qwen3 => qwen_window(&mut out, config, &mut notes)?,
        Family::Qwen3Moe => qwen3_moe(&mut out, config, &mut notes)?,
        Family::Gemma2 => {
            out.put("attn_logit_softcapping", number(config, "attn_logit_softcapping")?);
            out.put("final_logit_softcapping", number(config, "final_logit_softcapping")?);
            out.put("attention.sliding_window", config.require("sliding_window")?);
            gemma_attention(&mut out, config, Gemma { period: 2, layers_of_27b: 46 }, &mut notes)?;
        }
        Family::Gemma3 => gemma3(&mut out, config, &mut notes)?,
        Family::Gemma4 => gemma4(&mut out, config, &rope, layers)?,
        Family::Phi3 => phi3(&mut out, config, &rope)?,
    }
    Ok(notes)
}

/// Qwen can be given a window, after some layers that see everything.
fn qwen_window(out: &mut Keys<'_>, config: &Config, notes: &mut Vec<String>) -> Result<()> {
    let Some(window) = config.integer("sliding_window")?.filter(|_| config.flag("use_sliding_window")) else {
        return Ok(());
    };
    let layers = config.layers()?;
    let full = config.integer("max_window_layers")?.unwrap_or(28);
    let sliding = config.sliding_layers().unwrap_or_else(|| (0..layers).map(|layer| layer >= full).collect());
    out.put("attention.sliding_window", window);
    out.put("attention.sliding_window_pattern", Array::of(sliding));
    notes.push("use_sliding_window is true: llama.cpp has no window here and sees everything".into());
    Ok(())
}

fn qwen3_moe(out: &mut Keys<'_>, config: &Config, notes: &mut Vec<String>) -> Result<()> {
    if config.flag("use_sliding_window") && config.get("sliding_window").is_some() {
        notes.push(
            "use_sliding_window is true, which has no key in GGUF: every layer will see everything".into(),
        );
    }
    out.put("expert_feed_forward_length", config.require("moe_intermediate_size")?);
    if !config.flag("norm_topk_prob") {
        out.put("expert_weights_norm", false);
        notes.push(
            "norm_topk_prob is false: llama.cpp makes the experts' shares add up to one all the same".into(),
        );
    }
    let listed =
        config.get("mlp_only_layers").and_then(|layers| layers.as_array().map(Vec::len)).unwrap_or(0);
    let uneven = config.integer("decoder_sparse_step")?.unwrap_or(1) != 1;
    if listed > 0 || uneven {
        let key = if uneven { "decoder_sparse_step" } else { "mlp_only_layers" };
        let problem = "dense layers among sparse ones have no GGUF form in this architecture";
        return Err(ConvertError::config(key, problem));
    }
    Ok(())
}

/// What llama.cpp takes for granted in a generation of Gemma.
#[derive(Clone, Copy)]
struct Gemma {
    /// Every so many layers, one sees everything.
    period: usize,
    /// The number of layers of its 27B model, which divides scores by the root of width / heads.
    layers_of_27b: u32,
}

/// Windows and score scale, where they are not what readers take for granted.
fn gemma_attention(out: &mut Keys<'_>, config: &Config, usual: Gemma, notes: &mut Vec<String>) -> Result<()> {
    let layers = config.layers()?;
    let every =
        |period: usize| (0..layers as usize).map(|layer| (layer + 1) % period != 0).collect::<Vec<_>>();
    let period =
        config.integer("sliding_window_pattern")?.map_or(usual.period, |period| period.max(1) as usize);
    let sliding = config.sliding_layers().unwrap_or_else(|| every(period));
    if sliding != every(usual.period) {
        out.put("attention.sliding_window_pattern", Array::of(sliding));
    }
    let scalar = config.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    let expected = if layers == usual.layers_of_27b {
        config.require("hidden_size")? / config.require("num_attention_heads")?.max(1)
    } else {
        config.head_dim()?
    };
    if (scalar - f64::from(expected)).abs() > 1e-6 {
        out.put("attention.scale", scalar.powf(-0.5) as f32);
        notes.push(format!("query_pre_attn_scalar is {scalar}: llama.cpp takes it for {expected}"));
    }
    Ok(())
}

fn gemma3(out: &mut Keys<'_>, config: &Config, notes: &mut Vec<String>) -> Result<()> {
    if config.get("attn_logit_softcapping").is_some() {
        return Err(ConvertError::config("attn_logit_softcapping", "set, Gemma 3 has none in GGUF"));
    }
    out.put_some("final_logit_softcapping", config.number("final_logit_softcapping")?.map(|cap| cap as f32));
    if config.integer("sliding_window_pattern")? != Some(1) {
        out.put("attention.sliding_window", config.require("sliding_window")?);
    }
    gemma_attention(out, config, Gemma { period: 6, layers_of_27b: 62 }, notes)
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
    if let Some(factor) = factor {
        // The tensors of factors say which scaling it is.
        out.metadata.remove("phi3.rope.scaling.type");
        out.put("rope.scaling.attn_factor", factor as f32);
    }
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
