//! Gemma 3, text (Gemma Team 2025, arXiv:2503.19786).

use super::base::{Defaults, decoder};
use super::gemma::scale_and_offset;
use super::gemma2::attention_scale;
use super::layers::{every, kinds, window};
use crate::Result;
use crate::keys::FINAL_SOFTCAP;
use crate::metadata::Metadata;
use crate::rope_config::{LayerKind, RopeQuery, rope};
use crate::spec::{Activation, ModelSpec, Norms};

/// Gemma 2 with QK-norm in place of soft-caps, a window on five layers of six, and a slower RoPE on the sixth.
pub(crate) fn gemma3(meta: &Metadata) -> Result<ModelSpec> {
    let defaults = Defaults {
        context_length: 131_072,
        theta: 1e6,
        head_dim: Some(256),
        num_heads: Some(8),
        num_kv_heads: Some(4),
        activation: Activation::GeluTanh,
        ..Defaults::new("gemma3")
    };
    let mut spec = decoder(meta, defaults)?;
    scale_and_offset(meta, &mut spec);
    spec.final_softcap = meta.cap(FINAL_SOFTCAP)?;
    let scale = attention_scale(meta, &spec, 62)?;
    let window = window(meta, if meta.is_gguf() { None } else { Some(4096) })?;
    let mut kinds = kinds(meta, spec.layers.len(), every(6))?;
    if window.is_none() {
        kinds.fill(LayerKind::Full);
    }
    for (layer, kind) in spec.layers.iter_mut().zip(kinds) {
        layer.norms = Norms::PreAndPost;
        layer.attention.qk_norm = true;
        layer.attention.scale = scale;
        layer.attention.window = window.filter(|_| kind == LayerKind::Sliding);
        layer.attention.rope = rope(
            meta,
            RopeQuery {
                layout: defaults.layout,
                head_dim: layer.attention.head_dim,
                context_length: spec.context_length,
                default_theta: if kind == LayerKind::Full { 1e6 } else { 1e4 },
                default_original: None,
                kind: Some(kind),
            },
        )?;
    }
    Ok(spec)
}
