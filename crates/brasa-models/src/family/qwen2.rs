//! Qwen2 and Qwen2.5 (Qwen Team 2024, arXiv:2407.10671, arXiv:2412.15115).

use super::base::{Defaults, decoder};
use super::layers::{kinds, window};
use crate::Result;
use crate::keys::{FULL_LAYERS, USE_WINDOW};
use crate::metadata::{Metadata, limits};
use crate::rope_config::LayerKind;
use crate::spec::ModelSpec;

/// Llama with biases on Q, K and V, whose presence is seen from the tensors.
pub(super) fn qwen2(meta: &Metadata) -> Result<ModelSpec> {
    let mut spec =
        decoder(meta, Defaults { context_length: 32_768, num_kv_heads: Some(32), ..Defaults::new("qwen2") })?;
    windows(meta, &mut spec)?;
    Ok(spec)
}

/// Sets the windows: if they are switched on, the first layers still attend to all rows.
///
/// llama.cpp has no windows in this family; a GGUF file that carries window and layer kinds means them.
pub(super) fn windows(meta: &Metadata, spec: &mut ModelSpec) -> Result<()> {
    let layers = spec.layers.len();
    let (window, kinds) = if meta.is_gguf() {
        (window(meta, None)?, kinds(meta, layers, |_| LayerKind::Sliding)?)
    } else {
        let used = meta.bool(USE_WINDOW)? == Some(true);
        let window = window(meta, Some(4096))?.filter(|_| used);
        let listed = meta.mentions(FULL_LAYERS);
        let full = if listed { meta.count_or_zero(FULL_LAYERS, limits::LAYERS)? } else { 28 };
        let sliding = |layer| window.is_some() && layer >= full;
        let kinds =
            kinds(meta, layers, |layer| if sliding(layer) { LayerKind::Sliding } else { LayerKind::Full })?;
        (window, kinds)
    };
    for (attention, kind) in spec.attentions().zip(kinds) {
        attention.window = window.filter(|_| kind == LayerKind::Sliding);
    }
    Ok(())
}
