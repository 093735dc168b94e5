//! Text encoders: BERT and its descendants, in which each row sees all rows.
//!
//! An encoder's graph has no caches. A text is one segment of a step, from its first token to its last, and what comes out is the
//! hidden states of the output rows, or the logits of a head that computes scores of texts.

pub(crate) mod bidirectional;
mod build;
mod family;
mod gguf_form;
mod head;
mod modern_bert;
mod names;
mod spec;

pub use family::supported_encoders;
pub use gguf_form::{EncoderGgufForm, EncoderPlace, encoder_to_gguf};
pub use head::MeanHead;
pub use spec::{
    ClassifierSpec, EncoderExperts, EncoderFfn, EncoderLayerSpec, EncoderNorms, EncoderSpec, HeadForm,
    HeadPooling, LearnedPositions,
};

use std::sync::Arc;

use brasa_formats::Checkpoint;
use brasa_graph::pass::prune;
use brasa_graph::{Graph, ValueId};

use crate::metadata::Metadata;
use crate::source::Source;
use crate::weights::Weights;
use crate::{LoadOptions, ModelInfo, ModelSpec, Result, unused_tensors, vocabulary};
use family::Family;
use names::EncoderNames;

/// The architecture of a text encoder.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EncoderForm {
    /// BERT or one of its descendants.
    Encoder(Box<EncoderSpec>),
    /// A language model in which each row sees all rows.
    Bidirectional(Box<ModelSpec>),
}

/// A text encoder ready for a device.
#[derive(Clone, Debug)]
pub struct EncoderModel {
    /// The specification that was read from the configuration.
    pub form: EncoderForm,
    graph: Arc<Graph>,
    hidden: ValueId,
    logits: Option<ValueId>,
    /// The head that computes scores of texts from the mean of their hidden states, if the checkpoint has one. It is computed
    /// outside the graph.
    pub head: Option<MeanHead>,
    /// Facts about the model for display.
    pub info: ModelInfo,
    /// Messages about keys and tensors that were ignored.
    pub warnings: Vec<String>,
    /// Names of the tensors that were ignored.
    pub unused_tensors: Vec<String>,
}

impl EncoderModel {
    /// The family that read the configuration, e.g. `bert`.
    pub fn family(&self) -> &'static str {
        match &self.form {
            EncoderForm::Encoder(spec) => spec.family,
            EncoderForm::Bidirectional(spec) => spec.family,
        }
    }

    /// Rows of the embedding table.
    pub fn vocab_size(&self) -> usize {
        match &self.form {
            EncoderForm::Encoder(spec) => spec.vocab_size,
            EncoderForm::Bidirectional(spec) => spec.vocab_size,
        }
    }

    /// Width of the hidden states.
    pub fn hidden_size(&self) -> usize {
        match &self.form {
            EncoderForm::Encoder(spec) => spec.hidden_size,
            EncoderForm::Bidirectional(spec) => spec.hidden_size,
        }
    }

    /// Most tokens of a text.
    pub fn context_length(&self) -> usize {
        match &self.form {
            EncoderForm::Encoder(spec) => spec.context_length,
            EncoderForm::Bidirectional(spec) => spec.context_length,
        }
    }

    /// Number of token types, which mark the parts of a text; 0 if the encoder has none.
    pub fn token_types(&self) -> usize {
        match &self.form {
            EncoderForm::Encoder(spec) => spec.token_types,
            EncoderForm::Bidirectional(_) => 0,
        }
    }

    /// The head that computes scores of texts; `None` for encoders that only embed.
    pub fn classifier(&self) -> Option<ClassifierSpec> {
        match &self.form {
            EncoderForm::Encoder(spec) => spec.classifier,
            EncoderForm::Bidirectional(_) => None,
        }
    }

    /// The graph with all results and all weights. [`hidden_graph`](Self::hidden_graph) and [`logits_graph`](Self::logits_graph)
    /// compute one result each.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The graph that computes hidden states after the last norm, `[Outs, hidden_size]`.
    pub fn hidden_graph(&self) -> Graph {
        prune(&Graph::clone(&self.graph).returning(&[self.hidden]))
    }

    /// The graph that computes the logits of the head, `[Outs, labels]`; `None` without a head, and for one that reads
    /// [means](MeanHead). Only the logits of a text's first row have a meaning.
    pub fn logits_graph(&self) -> Option<Graph> {
        Some(prune(&Graph::clone(&self.graph).returning(&[self.logits?])))
    }

    /// Name of the graphs' token-type input, which marks the parts of a text: a number below [`token_types`](Self::token_types) for
    /// each row. Graphs of encoders without token types have no such input.
    pub const TOKEN_TYPES: &str = build::TOKEN_TYPES;
}

/// Loads a checkpoint as a text encoder. Cheap, like [`build`](crate::build).
///
/// # Errors
///
/// [`ModelError`](crate::ModelError): an architecture that is no encoder's, a configuration that makes no sense, a tensor that is
/// missing or of another shape; with [`LoadOptions::strict`] also a key or tensor that is not understood.
pub fn load_encoder(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<EncoderModel> {
    build_encoder(&Source::of(checkpoint)?, options)
}

/// Reads the configuration alone; also returns warnings.
pub(crate) fn read_encoder(source: &Source, options: &LoadOptions) -> Result<(EncoderSpec, Vec<String>)> {
    let meta = Metadata::new(source, options);
    let spec = Family::of(source)?.spec(&meta)?;
    Ok((spec, meta.finish()?.0))
}

/// Reads the configuration of an encoder and builds its graph.
///
/// # Errors
///
/// The errors of [`load_encoder`].
pub fn build_encoder(source: &Source, options: &LoadOptions) -> Result<EncoderModel> {
    source.with_index(options, build_of_files(source, options), |model| &mut model.warnings)
}

fn build_of_files(source: &Source, options: &LoadOptions) -> Result<EncoderModel> {
    if bidirectional::is_bidirectional(source) {
        return bidirectional::build(source, options);
    }
    let family = Family::of(source)?;
    let meta = Metadata::new(source, options);
    let spec = family.spec(&meta)?;
    let (mut warnings, used) = meta.finish()?;
    warnings.extend(vocabulary::check(source, spec.vocab_size)?);
    let weights = Weights::new(source, EncoderNames::of(source, family.style), 0.0, used);
    let build::Built { graph, hidden, logits } = build::encoder(&spec, &weights)?;
    let head = MeanHead::of(&spec, &weights)?;
    let unused_tensors = unused_tensors(weights, spec.family, options, &mut warnings)?;
    Ok(EncoderModel {
        form: EncoderForm::Encoder(Box::new(spec)),
        graph: Arc::new(graph),
        hidden,
        logits,
        head,
        info: ModelInfo::of(source),
        warnings,
        unused_tensors,
    })
}
