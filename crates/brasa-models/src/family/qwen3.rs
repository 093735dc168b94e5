//! Qwen3, dense (Qwen Team 2025, arXiv:2505.09388).

use super::base::{Defaults, decoder};
use super::qwen2::windows;
use crate::Result;
use crate::metadata::Metadata;
use crate::spec::ModelSpec;

/// Llama, plus an RMS norm on every query and key head before RoPE.
pub(super) fn qwen3(meta: &Metadata) -> Result<ModelSpec> {
    let defaults = Defaults {
        context_length: 32_768,
        head_dim: Some(128),
        num_kv_heads: Some(32),
        ..Defaults::new("qwen3")
    };
    let mut spec = decoder(meta, defaults)?;
    windows(meta, &mut spec)?;
    spec.attentions().for_each(|attention| attention.qk_norm = true);
    Ok(spec)
}
