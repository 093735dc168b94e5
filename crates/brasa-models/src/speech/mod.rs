//! Speech recognition: an encoder of sound and a decoder of text over one set of weights.
//!
//! Whisper (Radford et al. 2022, arXiv:2212.04356) is the only family so far. A [`SpeechSpec`] holds a checkpoint's settings;
//! [`build`](build_speech) turns it and the tensors into two graphs that declare the same caches and memories, so that they share
//! one pool.

mod alignment;
mod decoder;
mod encoder;
mod generation;
mod gguf_form;
pub(crate) mod mlx;
mod names;
mod spec;
mod stack;
mod tensors;

pub use generation::SpeechGeneration;
pub use gguf_form::{SpeechGgufForm, speech_to_gguf};
pub use spec::{SpeechSpec, StackSpec};

use brasa_formats::Checkpoint;
use brasa_graph::{Graph, ValueId};

use crate::encoder::bidirectional;
use crate::metadata::Metadata;
use crate::source::Source;
use crate::{LoadOptions, MOST_WARNINGS, ModelError, ModelInfo, Result, supported_encoders, vocabulary};

/// The kind of model that a checkpoint holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelKind {
    /// The model continues text; [`load`](crate::load) reads it.
    Text,
    /// The model turns speech into text; [`load_speech`] reads it.
    Speech,
    /// The model computes vectors or scores of texts; [`load_encoder`](crate::load_encoder) reads it.
    Encoder,
}

impl ModelKind {
    /// The name of the kind, for programs: `text`, `speech` or `encoder`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Speech => "speech",
            Self::Encoder => "encoder",
        }
    }

    /// The kind of the model in `source`, by the name of its architecture. Unknown architectures count as text.
    pub fn of(source: &Source) -> Self {
        if names::ARCHITECTURES.contains(&source.architecture()) {
            Self::Speech
        } else if supported_encoders(source.container()).contains(&source.architecture())
            || bidirectional::is_bidirectional(source)
        {
            Self::Encoder
        } else {
            Self::Text
        }
    }
}

/// A model of speech, ready for a device.
#[derive(Clone, Debug)]
pub struct SpeechModel {
    /// The specification that was read from the configuration.
    pub spec: SpeechSpec,
    /// The encoder's graph: log-mel frames `mel` `[2·Rows, num_mel_bins]` in, the encoder's output `[Rows, hidden_size]` out;
    /// writes the memories. A segment is one window, and all of its rows have to be in one step.
    pub encoder: Graph,
    /// The decoder's graph: token ids in, logits `[Outs, vocab_size]` out. Reads the memories.
    pub decoder: Graph,
    /// The keys that the encoder writes to the memory of each layer of the decoder, `[Rows, heads, head_dim]`.
    pub cross_keys: Vec<ValueId>,
    /// The queries of the decoder's layers to their memories, `[Rows, heads, head_dim]`.
    pub cross_queries: Vec<ValueId>,
    /// The file's filter bank, `[num_mel_bins, frequencies]`; `None` if the file has none, which stands for Slaney's.
    pub mel_filters: Option<Vec<f32>>,
    /// Facts about the model for display.
    pub info: ModelInfo,
    /// Messages about keys and tensors that were ignored.
    pub warnings: Vec<String>,
}

/// Loads a checkpoint as a model of speech: [`build_speech`] from its [`Source`].
///
/// # Errors
///
/// Errors of [`Source::of`] and [`build_speech`].
pub fn load_speech(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<SpeechModel> {
    build_speech(&Source::of(checkpoint)?, options)
}

/// Reads the configuration alone; also returns warnings.
///
/// # Errors
///
/// Errors of [`build_speech`] that concern configuration.
pub fn read_speech_spec(source: &Source, options: &LoadOptions) -> Result<(SpeechSpec, Vec<String>)> {
    let meta = Metadata::new(source, options);
    let spec = SpeechSpec::read(&meta)?;
    Ok((spec, meta.finish()?.0))
}

/// Reads the configuration and builds both graphs. Cheap: matrices stay where they are.
///
/// # Errors
///
/// [`ModelError`]: an architecture that is no model of speech, a configuration that makes no sense, a tensor that is missing or
/// of another shape; with [`LoadOptions::strict`] also a key or tensor that is not understood.
pub fn build_speech(source: &Source, options: &LoadOptions) -> Result<SpeechModel> {
    source.with_index(options, build_of_files(source, options), |model| &mut model.warnings)
}

fn build_of_files(source: &Source, options: &LoadOptions) -> Result<SpeechModel> {
    if ModelKind::of(source) != ModelKind::Speech {
        let (architecture, supported) = (source.architecture().to_owned(), names::ARCHITECTURES.join(", "));
        let is_known = ModelKind::of(source) == ModelKind::Encoder
            || crate::supported(source.container()).contains(&source.architecture());
        return Err(if is_known {
            ModelError::IsText { architecture, supported }
        } else {
            ModelError::UnknownArchitecture { architecture, supported: format!("for speech {supported}") }
        });
    }
    let meta = Metadata::new(source, options);
    let spec = SpeechSpec::read(&meta)?;
    let (mut warnings, _) = meta.finish()?;
    warnings.extend(vocabulary::check(source, spec.vocab_size)?);
    let tensors = tensors::Tensors::new(source);
    let (encoder, cross_keys) = encoder::encoder(&spec, &tensors)?;
    let (decoder, cross_queries) = decoder::decoder(&spec, &tensors)?;
    let mel_filters = tensors.mel_filters(spec.num_mel_bins)?;
    let unused = tensors.unused();
    let complaint = |tensor: &&str| ModelError::UnusedTensor { tensor: (*tensor).into(), family: "whisper" };
    if let Some(tensor) = unused.first().filter(|_| options.strict) {
        return Err(complaint(tensor));
    }
    warnings.extend(unused.iter().take(MOST_WARNINGS).map(|tensor| complaint(tensor).to_string()));
    let info = ModelInfo {
        is_supported: true,
        num_layers: Some(spec.decoder.layers),
        hidden_size: Some(spec.hidden_size),
        intermediate_size: Some(spec.decoder.ffn_width),
        num_heads: Some(spec.decoder.heads),
        num_kv_heads: Some(spec.decoder.heads),
        head_dim: Some(spec.hidden_size / spec.decoder.heads),
        vocab_size: Some(spec.vocab_size),
        context_length: Some(spec.decoder.positions),
        ..ModelInfo::of(source)
    };
    Ok(SpeechModel { spec, encoder, decoder, cross_keys, cross_queries, mel_filters, info, warnings })
}
