//! Language models that were turned into encoders: each row sees all rows.

use std::sync::Arc;

use brasa_graph::pass::prune;

use super::{EncoderForm, EncoderModel};
use crate::decoder::{Sight, decoder};
use crate::keys::BIDIRECTIONAL;
use crate::metadata::Metadata;
use crate::source::Source;
use crate::weights::Weights;
use crate::{LoadOptions, ModelInfo, ModelSpec, Result, family, unused_tensors, vocabulary};

/// Classes with checkpoints that are encoders if `use_bidirectional_attention` is true. Other classes with this setting are refused
/// as language models.
const CLASSES: [&str; 1] = ["Gemma3TextModel"];

/// True for a language model that is configured as an encoder: each row attends to all rows.
pub(crate) fn is_bidirectional(source: &Source) -> bool {
    let says = source.values.get("use_bidirectional_attention").and_then(serde_json::Value::as_bool);
    let class = source.class().is_none_or(|class| CLASSES.contains(&class));
    source.architecture() == "gemma3_text" && class && says == Some(true)
}

/// EmbeddingGemma (Schechter Vera et al. 2025, arXiv:2509.20354).
///
/// Gemma 3 whose rows all see each other. The window of its configuration is split: half of it lies to either side.
pub(super) fn build(source: &Source, options: &LoadOptions) -> Result<EncoderModel> {
    let meta = Metadata::new(source, options);
    meta.bool(BIDIRECTIONAL)?;
    let spec = bidirectional(family::gemma3(&meta)?);
    let names = meta.names();
    let (mut warnings, used) = meta.finish()?;
    warnings.extend(vocabulary::check(source, spec.vocab_size)?);
    let weights = Weights::new(source, names, spec.norm_offset, used);
    let (graph, inside) = decoder(&spec, &weights, Sight::Bidirectional)?;
    let unused_tensors = unused_tensors(weights, spec.family, options, &mut warnings)?;
    Ok(EncoderModel {
        // Tokens are looked up and never predicted.
        graph: Arc::new(prune(&graph.returning(&[inside.hidden]))),
        hidden: inside.hidden,
        logits: None,
        head: None,
        form: EncoderForm::Bidirectional(Box::new(spec)),
        info: ModelInfo::of(source),
        warnings,
        unused_tensors,
    })
}

fn bidirectional(mut spec: ModelSpec) -> ModelSpec {
    for layer in &mut spec.layers {
        layer.attention.window = layer.attention.window.map(|window| window / 2 + 1);
    }
    spec
}
