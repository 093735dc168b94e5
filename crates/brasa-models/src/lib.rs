//! From a checkpoint's configuration to a graph: one small file per model family.
//!
//! A family's file reads configuration into a [`ModelSpec`], which is data, and contains only the differences of the family. One
//! builder turns any spec and the checkpoint's tensors into a [`Graph`]. Differences come from configuration keys and from which
//! tensors are present, never from parts of names; a key or tensor that is not understood is reported, so that no checkpoint is
//! silently computed wrong.
//!
//! Models of speech ([`load_speech`]) have two graphs, an encoder's and a decoder's; text encoders ([`load_encoder`]) have one or
//! two, without caches. [`ModelKind`] names the kinds.
//!
//! This crate handles configurations, tensor names and model families. It is independent of files, devices and text.
//!
//! ```no_run
//! use brasa_formats::Checkpoint;
//! use brasa_models::{LoadOptions, load};
//!
//! let checkpoint = Checkpoint::open("models/tiny-llama")?;
//! let model = load(&checkpoint, &LoadOptions { strict: true, ..LoadOptions::default() })?;
//! println!("{}: {} layers", model.spec.family, model.spec.layers.len());
//! for warning in &model.warnings {
//!     eprintln!("{warning}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adapter;
mod decoder;
mod encoder;
mod error;
mod family;
mod gguf_form;
mod info;
mod judge;
mod keys;
mod metadata;
mod names;
mod pooling;
mod rope;
mod rope_config;
mod sampling;
mod score_activation;
mod sentence;
mod source;
mod spec;
mod spec_difference;
mod speech;
mod vocabulary;
mod weights;

pub use adapter::{AdaptableLayer, Adapter};
pub use encoder::{
    ClassifierSpec, EncoderExperts, EncoderFfn, EncoderForm, EncoderGgufForm, EncoderLayerSpec, EncoderModel,
    EncoderNorms, EncoderPlace, EncoderSpec, HeadForm, HeadPooling, LearnedPositions, MeanHead,
    build_encoder, encoder_to_gguf, load_encoder, supported_encoders,
};
pub use error::{ModelError, Result};
pub use family::{supported, to_gguf};
pub use gguf_form::GgufForm;
pub use info::ModelInfo;
pub use names::{Change, GgufPlace};
pub use pooling::Pooling;
pub use rope::{RopeScaling, RopeSpec};
pub use sampling::RecommendedSampling;
pub use score_activation::ScoreActivation;
pub use sentence::{DenseActivation, DenseLayer, LogitScore, SentenceConfig};
pub use source::{Source, gguf_pairs};
pub use spec::{
    Activation, AttentionSpec, DenseSpec, ExpertsSpec, FfnSpec, Head, KvSpec, LayerSpec, ModelSpec, Norms,
    PerLayerInputs, Router, ValueSource,
};
pub use speech::{
    ModelKind, SpeechGeneration, SpeechGgufForm, SpeechModel, SpeechSpec, StackSpec, build_speech,
    load_speech, read_speech_spec, speech_to_gguf,
};

pub use vocabulary::padding as padding_note;
pub use weights::HeadCopy;

use brasa_formats::Checkpoint;
use brasa_graph::op::{Attention, KvSource, RouterTopK};
use brasa_graph::pass::prune;
use brasa_graph::{Graph, Node, Op, ValueId};

use crate::metadata::Metadata;
use crate::weights::Weights;

/// Names of all keys of `config.json` that some family reads, or that are refused unless their values are neutral.
pub fn configuration_keys() -> Vec<&'static str> {
    let handled = keys::ALL.iter().flat_map(|key| key.hf).copied();
    let mut names: Vec<_> = handled.chain(judge::neutral_keys()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Names, without the architecture's prefix, of all keys of GGUF that some family reads, that are refused unless they change
/// nothing, or that are ignored.
pub fn gguf_configuration_keys() -> Vec<&'static str> {
    let handled = keys::ALL.iter().flat_map(|key| key.gguf).copied();
    let mut names: Vec<_> = handled.chain(judge::other_gguf_keys()).collect();
    names.retain(|&name| name != Source::VOCABULARY);
    names.sort_unstable();
    names.dedup();
    names
}

/// Most warnings of one kind that are given one by one. Further warnings are counted in one more.
const MOST_WARNINGS: usize = 20;

/// Options of loading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Number of positions that will be used; `None` for the model's own number. Chooses between the two sets of frequencies of
    /// LongRoPE models.
    pub context_length: Option<usize>,
    /// True if unknown keys and tensors are errors instead of warnings.
    pub strict: bool,
}

/// A model ready for a device.
#[derive(Clone, Debug)]
pub struct Model {
    /// The specification that was read from the configuration.
    pub spec: ModelSpec,
    /// The graph, which computes logits `[Outs, vocab_size]`, after any soft-cap.
    pub graph: Graph,
    /// The value of the graph that the head reads: hidden states after the last norm, `[Outs, hidden_size]`.
    pub hidden: ValueId,
    /// The residual stream after each layer, `[Rows, hidden_size]`; after the last layer `[Outs, hidden_size]`.
    pub states: Vec<ValueId>,
    /// A stored copy of the embedding table that no graph reads; `None` for most models.
    pub head_copy: Option<HeadCopy>,
    /// Facts about the model for display.
    pub info: ModelInfo,
    /// Messages about keys and tensors that were ignored.
    pub warnings: Vec<String>,
    /// Names of the tensors that were ignored.
    pub unused_tensors: Vec<String>,
    /// The beginning of the model's tensor names in Hugging Face's spelling, e.g. `model.`.
    pub prefix: &'static str,
}

/// The values that one layer's attention reads.
#[derive(Clone, Copy, Debug)]
pub struct AttentionValues {
    /// Queries after norm and rotation, `[Rows, heads, head_dim]`.
    pub queries: ValueId,
    /// Keys after norm and rotation, `[Rows, kv_heads, head_dim]`. Layers that share a cache have the same value.
    pub keys: ValueId,
    /// Sinks, `[heads]`: for each query head, one more score of the softmax, which belongs to no position. `None` for
    /// attention without sinks.
    pub sinks: Option<ValueId>,
    /// Scale, window and soft-cap.
    pub op: Attention,
}

/// The values by which one layer chooses experts.
#[derive(Clone, Copy, Debug)]
pub struct RouterValues {
    /// A logit for each expert, `[Rows, experts]`; after the last layer's attention `[Outs, experts]`.
    pub logits: ValueId,
    /// The selection bias, a weight `[experts]`; `None` for a router without one.
    pub bias: Option<ValueId>,
    /// The number of experts that are chosen, and the way in which logits become shares.
    pub op: RouterTopK,
}

impl Model {
    /// The graph that computes hidden states after the last norm, `[Outs, hidden_size]`, over the same weights and caches.
    pub fn hidden_graph(&self) -> Graph {
        prune(&self.graph.clone().returning(&[self.hidden]))
    }

    /// The values that each layer's attention reads, and their geometry, first layer first.
    pub fn attentions(&self) -> Vec<AttentionValues> {
        let nodes = self.graph.nodes();
        let keys = |cache| {
            nodes.iter().find_map(|node| match &node.op {
                Op::CacheWrite(write) if write.cache == cache => Some(node.inputs[0]),
                _ => None,
            })
        };
        let attention = |node: &Node| match &node.op {
            Op::Attention(op) => match op.source {
                KvSource::Cache(cache) => {
                    let sinks = node.inputs.get(1).copied();
                    Some(AttentionValues { queries: node.inputs[0], keys: keys(cache)?, sinks, op: *op })
                }
                _ => None,
            },
            _ => None,
        };
        nodes.iter().filter_map(attention).collect()
    }

    /// Each layer's router, first layer first; `None` for layers without experts.
    pub fn routers(&self) -> Vec<Option<RouterValues>> {
        let mut routers = Vec::new();
        for node in self.graph.nodes() {
            match &node.op {
                // A layer's router follows its attention.
                Op::Attention(_) => routers.push(None),
                Op::RouterTopK(op) => {
                    if let Some(router) = routers.last_mut() {
                        *router = Some(RouterValues {
                            logits: node.inputs[0],
                            bias: node.inputs.get(1).copied(),
                            op: *op,
                        });
                    }
                }
                _ => {}
            }
        }
        routers
    }
}

/// Loads a checkpoint as a model: [`build`] from its [`Source`].
///
/// # Errors
///
/// Errors of [`Source::of`] and [`build`].
pub fn load(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Model> {
    build(&Source::of(checkpoint)?, options)
}

/// Reads the configuration and builds the graph. Cheap: matrices stay where they are, only norms, biases and frequency
/// tables are decoded.
///
/// # Errors
///
/// [`ModelError`]: an unsupported architecture, a configuration that makes no sense, a tensor that is missing or of another
/// shape; with [`LoadOptions::strict`] also a key or tensor that is not understood.
pub fn build(source: &Source, options: &LoadOptions) -> Result<Model> {
    source.with_index(options, build_of_files(source, options), |model| &mut model.warnings)
}

fn build_of_files(source: &Source, options: &LoadOptions) -> Result<Model> {
    if ModelKind::of(source) == ModelKind::Speech {
        return Err(ModelError::IsSpeech { architecture: source.architecture().into() });
    }
    let meta = Metadata::new(source, options);
    let spec = family::spec(source, &meta)?;
    let names = meta.names();
    let prefix = names.prefix();
    let (mut warnings, used) = meta.finish()?;
    warnings.extend(vocabulary::check(source, spec.vocab_size)?);
    let weights = Weights::new(source, names, spec.norm_offset, used);
    let (graph, inside) = decoder::decoder(&spec, &weights, decoder::Sight::Causal)?;
    let unused_tensors = unused_tensors(weights, spec.family, options, &mut warnings)?;
    let decoder::Inside { hidden, states, head_copy } = inside;
    let info = ModelInfo::of(source);
    Ok(Model { spec, graph, hidden, states, head_copy, info, warnings, unused_tensors, prefix })
}

/// Names of the tensors that were not used, each with a warning; an error for the first of them if the caller is strict.
fn unused_tensors(
    weights: Weights,
    family: &'static str,
    options: &LoadOptions,
    warnings: &mut Vec<String>,
) -> Result<Vec<String>> {
    let unused_tensors: Vec<String> = weights.unused().into_iter().map(String::from).collect();
    let unused = |tensor: &String| ModelError::UnusedTensor { tensor: tensor.clone(), family };
    if let Some(tensor) = unused_tensors.first().filter(|_| options.strict) {
        return Err(unused(tensor));
    }
    warnings.extend(unused_tensors.iter().take(MOST_WARNINGS).map(|tensor| unused(tensor).to_string()));
    if unused_tensors.len() > MOST_WARNINGS {
        let more = unused_tensors.len() - MOST_WARNINGS;
        warnings.push(format!("{more} more tensors have no place in a {family} model"));
    }
    Ok(unused_tensors)
}

/// Reads the configuration alone; also returns warnings.
///
/// # Errors
///
/// Errors of [`build`] that concern configuration.
pub fn read_spec(source: &Source, options: &LoadOptions) -> Result<(ModelSpec, Vec<String>)> {
    let meta = Metadata::new(source, options);
    let spec = family::spec(source, &meta)?;
    Ok((spec, meta.finish()?.0))
}
