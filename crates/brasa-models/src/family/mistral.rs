//! Mistral 7B and its descendants (Jiang et al. 2023, arXiv:2310.06825).

use super::base::{Defaults, decoder};
use super::layers::window;
use super::llama::layout;
use crate::Result;
use crate::metadata::Metadata;
use crate::spec::ModelSpec;

/// Llama with a window on every layer, if the configuration has one.
pub(super) fn mistral(meta: &Metadata) -> Result<ModelSpec> {
    let defaults = Defaults {
        layout: layout(meta),
        context_length: 4096 * 32,
        num_kv_heads: Some(8),
        ..Defaults::new("mistral")
    };
    let mut spec = decoder(meta, defaults)?;
    let window = window(meta, Some(4096))?;
    spec.attentions().for_each(|attention| attention.window = window);
    Ok(spec)
}
