//! From a checkpoint's configuration to a graph: one small file per model family.
//!
//! A family's file reads configuration into a [`ModelSpec`], which is data, and says only how the family differs.
//! One builder turns any spec and the checkpoint's tensors into a [`Graph`]. Differences come from
//! configuration keys and from which tensors are present, never from parts of names; a key or tensor that nobody
//! understands is reported, so that no checkpoint is silently computed wrong.
//!
//! This crate knows configurations, tensor names and model families. It does not know files, devices or text.
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

mod decoder;
mod error;
mod family;
mod info;
mod keys;
mod metadata;
mod names;
mod rope;
mod rope_config;
mod sampling;
mod source;
mod spec;
mod weights;

pub use error::{ModelError, Result};
pub use family::supported;
pub use info::ModelInfo;
pub use rope::{RopeScaling, RopeSpec};
pub use sampling::RecommendedSampling;
pub use source::{Source, gguf_pairs};
pub use spec::{
    Activation, AttentionSpec, DenseSpec, ExpertsSpec, FfnSpec, Head, KvSpec, LayerSpec, ModelSpec, Norms,
    PerLayerInputs, Router, ValueSource,
};

use brasa_formats::Checkpoint;
use brasa_graph::Graph;

use crate::metadata::Metadata;
use crate::weights::Weights;

/// How to load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Positions that will be used; the model's own where `None`. Chooses between the two sets of frequencies that
    /// LongRoPE models have.
    pub context_length: Option<usize>,
    /// True where keys and tensors that nobody understands are errors instead of warnings.
    pub strict: bool,
}

/// A model ready for a device.
#[derive(Clone, Debug)]
pub struct Model {
    /// What it is.
    pub spec: ModelSpec,
    /// What it computes: logits `[Outs, vocab_size]`, after any soft-cap.
    pub graph: Graph,
    /// What to tell people about it.
    pub info: ModelInfo,
    /// What was passed over, for people.
    pub warnings: Vec<String>,
}

/// Loads a checkpoint as a model: [`build`] from its [`Source`].
///
/// # Errors
///
/// Those of [`Source::of`] and [`build`].
pub fn load(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Model> {
    build(&Source::of(checkpoint)?, options)
}

/// Reads the configuration and builds the graph. Cheap: matrices stay where they are, only norms, biases and frequency
/// tables are decoded.
///
/// # Errors
///
/// [`ModelError`]: an unsupported architecture, a configuration that makes no sense, a tensor that is missing or of
/// another shape; with [`LoadOptions::strict`] also a key or tensor that nobody understands.
pub fn build(source: &Source, options: &LoadOptions) -> Result<Model> {
    let meta = Metadata::new(source, options);
    let spec = family::spec(source, &meta)?;
    let names = meta.names();
    let (mut warnings, used) = meta.finish()?;
    let weights = Weights::new(source, names, &spec, used);
    let graph = decoder::decoder(&spec, &weights)?;
    for tensor in weights.unused() {
        let unused = ModelError::UnusedTensor { tensor: tensor.into(), family: spec.family };
        if options.strict {
            return Err(unused);
        }
        warnings.push(unused.to_string());
    }
    Ok(Model { spec, graph, info: ModelInfo::of(source), warnings })
}

/// Reads the configuration alone; also returns warnings.
///
/// # Errors
///
/// Those of [`build`] that concern configuration.
pub fn read_spec(source: &Source, options: &LoadOptions) -> Result<(ModelSpec, Vec<String>)> {
    let meta = Metadata::new(source, options);
    let spec = family::spec(source, &meta)?;
    Ok((spec, meta.finish()?.0))
}
