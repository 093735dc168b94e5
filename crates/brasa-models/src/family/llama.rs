//! Llama 1, 2, 3, 3.1 and 3.2 (Touvron et al. 2023, arXiv:2302.13971, arXiv:2307.09288; Llama Team 2024, arXiv:2407.21783), and
//! GGUF's architecture `llama`.

use brasa_graph::op::RopeLayout;

use super::base::{Defaults, decoder};
use super::layers::window;
use super::mixtral::experts;
use crate::Result;
use crate::keys::NUM_EXPERTS;
use crate::metadata::{Metadata, limits};
use crate::spec::ModelSpec;

/// The plain decoder. In GGUF the name covers Mistral (a window) and Mixtral (experts) too.
///
/// GGUF's converter permutes the rows of Q and K so that RoPE pairs neighbours; elsewhere it pairs halves.
pub(super) fn llama(meta: &Metadata) -> Result<ModelSpec> {
    let mut spec = decoder(meta, Defaults { layout: layout(meta), ..Defaults::new("llama") })?;
    if meta.is_gguf() {
        // llama.cpp passes over the window of this architecture; a file that carries one means it.
        let window = window(meta, None)?;
        spec.attentions().for_each(|attention| attention.window = window);
        if meta.count_or_zero(NUM_EXPERTS, limits::EXPERTS)? > 0 {
            spec.family = "mixtral";
            experts(meta, &mut spec)?;
        }
    }
    Ok(spec)
}

/// The layout of RoPE's pairs of elements in Llama and its descendants.
pub(super) fn layout(meta: &Metadata) -> RopeLayout {
    if meta.is_gguf() { RopeLayout::Interleaved } else { RopeLayout::SplitHalf }
}
