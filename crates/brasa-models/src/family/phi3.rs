//! Phi-3 and Phi-4-mini (Abdin et al. 2024, arXiv:2404.14219).

use super::base::{Defaults, decoder};
use super::layers::window;
use crate::Result;
use crate::metadata::Metadata;
use crate::spec::ModelSpec;

/// Context length before stretching, if the configuration is silent.
pub(super) const ORIGINAL_CONTEXT: usize = 4096;

/// Llama with Q, K and V in one tensor, gate and up in another, a window, and LongRoPE for long contexts.
///
/// llama.cpp runs these models without their window; we follow transformers.
pub(super) fn phi3(meta: &Metadata) -> Result<ModelSpec> {
    let defaults = Defaults {
        norm_eps: 1e-5,
        context_length: 4096,
        original_context: Some(ORIGINAL_CONTEXT),
        ..Defaults::new("phi3")
    };
    let mut spec = decoder(meta, defaults)?;
    let window = window(meta, None)?;
    spec.attentions().for_each(|attention| attention.window = window);
    Ok(spec)
}
