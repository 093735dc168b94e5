//! Gemma 1 (Gemma Team 2024, arXiv:2403.08295), and the parts that all Gemmas share.

use super::base::{Defaults, decoder};
use crate::Result;
use crate::keys::LEGACY_ACTIVATION;
use crate::metadata::Metadata;
use crate::spec::{Activation, ModelSpec};

/// Llama with a tanh-GELU gate, embeddings times √width, wide heads, and norms stored as `w − 1`.
pub(super) fn gemma(meta: &Metadata) -> Result<ModelSpec> {
    let defaults = Defaults {
        context_length: 8192,
        head_dim: Some(256),
        num_kv_heads: Some(16),
        activation: Activation::GeluTanh,
        ..Defaults::new("gemma")
    };
    let mut spec = decoder(meta, defaults)?;
    scale_and_offset(meta, &mut spec);
    // The first releases say `gelu` and mean its tanh form.
    if meta.text(LEGACY_ACTIVATION)? == Some("gelu") {
        for layer in &mut spec.layers {
            if let crate::spec::FfnSpec::Dense(dense) = &mut layer.ffn {
                dense.activation = Activation::GeluTanh;
            }
        }
    }
    Ok(spec)
}

/// Gemma 1 to 3: embeddings times √width; norm weights are stored without their 1, which GGUF's converter adds.
pub(super) fn scale_and_offset(meta: &Metadata, spec: &mut ModelSpec) {
    spec.embedding_scale = Some((spec.hidden_size as f32).sqrt());
    spec.norm_offset = if meta.is_gguf() { 0.0 } else { 1.0 };
}
