//! Gemma 2 (Gemma Team 2024, arXiv:2408.00118).

use super::base::{Defaults, decoder};
use super::gemma::scale_and_offset;
use super::layers::{every, kinds, window};
use crate::Result;
use crate::keys::{ATTENTION_SCALE, ATTENTION_SOFTCAP, FINAL_SOFTCAP, Key, QUERY_SCALAR};
use crate::metadata::Metadata;
use crate::rope_config::LayerKind;
use crate::spec::{Activation, ModelSpec, Norms};

/// Gemma, plus norms after both sublayers, soft-caps on scores and logits, and a window on every second layer.
pub(super) fn gemma2(meta: &Metadata) -> Result<ModelSpec> {
    let defaults = Defaults {
        context_length: 8192,
        head_dim: Some(256),
        num_kv_heads: Some(4),
        activation: Activation::GeluTanh,
        ..Defaults::new("gemma2")
    };
    let mut spec = decoder(meta, defaults)?;
    scale_and_offset(meta, &mut spec);
    spec.final_softcap = cap(meta, FINAL_SOFTCAP, 30.0)?;
    let softcap = cap(meta, ATTENTION_SOFTCAP, 50.0)?;
    let scale = attention_scale(meta, &spec, 46)?;
    let window = window(meta, Some(4096))?;
    let kinds = kinds(meta, spec.layers.len(), every(2))?;
    for (layer, kind) in spec.layers.iter_mut().zip(kinds) {
        layer.norms = Norms::PreAndPost;
        layer.attention.scale = scale;
        layer.attention.softcap = softcap;
        layer.attention.window = window.filter(|_| kind == LayerKind::Sliding);
    }
    Ok(spec)
}

/// A soft-cap: the configured value (`null` means none), or `default` if the configuration has no key for it.
fn cap(meta: &Metadata, key: Key, default: f32) -> Result<Option<f32>> {
    if meta.mentions(key) { meta.cap(key) } else { meta.or_assumed(key, None, default).map(Some) }
}

/// Scores are divided by the root of a configured scalar, not of the head's width. GGUF files do not carry it: there
/// the 27B models, whose number of layers is `odd_layers`, are the ones that divide by the root of width / heads.
pub(super) fn attention_scale(meta: &Metadata, spec: &ModelSpec, odd_layers: usize) -> Result<f32> {
    let Some(layer) = spec.layers.first() else { return Ok(1.0) };
    let attention = &layer.attention;
    if let Some(scale) = meta.number(ATTENTION_SCALE)?.filter(|&scale| scale > 0.0) {
        return Ok(scale);
    }
    let scalar = if !meta.is_gguf() {
        meta.positive(QUERY_SCALAR)?.unwrap_or(256.0)
    } else if spec.layers.len() == odd_layers {
        (spec.hidden_size / attention.num_heads) as f32
    } else {
        attention.head_dim as f32
    };
    Ok(scalar.powf(-0.5))
}
