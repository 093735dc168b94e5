//! The pre-norm decoder with grouped-query attention and a gated network that all families share.

use brasa_graph::op::RopeLayout;

use crate::keys::{
    ACTIVATION, CONTEXT_LENGTH, FFN_WIDTH, HEAD_DIM, HIDDEN_SIZE, NORM_EPS, NUM_HEADS, NUM_KV_HEADS,
    NUM_LAYERS, TIED, VALUE_DIM, VOCAB_SIZE,
};
use crate::metadata::{Metadata, limits};
use crate::rope_config::{RopeQuery, rope};
use crate::spec::{
    Activation, AttentionSpec, DenseSpec, FfnSpec, Head, KvSpec, LayerSpec, ModelSpec, Norms, ValueSource,
};
use crate::{ModelError, Result};

/// Defaults for keys that a configuration lacks. They are the defaults of the family's class in transformers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub family: &'static str,
    pub layout: RopeLayout,
    pub theta: f32,
    pub norm_eps: f32,
    pub context_length: usize,
    pub activation: Activation,
    pub head_dim: Option<usize>,
    pub num_heads: Option<usize>,
    /// Number of key heads if a `config.json` has no key for it; `None` for the number of query heads.
    pub num_kv_heads: Option<usize>,
    /// Context length before LongRoPE or YaRN stretched it.
    pub original_context: Option<usize>,
}

impl Defaults {
    pub fn new(family: &'static str) -> Self {
        Self {
            family,
            layout: RopeLayout::SplitHalf,
            theta: 10_000.0,
            norm_eps: 1e-6,
            context_length: 2048,
            activation: Activation::Silu,
            head_dim: None,
            num_heads: None,
            num_kv_heads: None,
            original_context: None,
        }
    }
}

/// Query heads, key and value heads, elements of a head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub query: usize,
    pub kv: usize,
    pub dim: usize,
}

impl Heads {
    pub fn checked(self) -> Result<Self> {
        let refuse =
            |what: String, expected: &str| Err(ModelError::Dimensions { what, expected: expected.into() });
        if !self.query.is_multiple_of(self.kv) {
            return refuse(
                format!("{} query heads share {} key heads", self.query, self.kv),
                "a multiple of the key heads",
            );
        }
        if !self.dim.is_multiple_of(2) {
            return refuse(format!("heads of {} elements", self.dim), "an even number");
        }
        Ok(self)
    }
}

/// A decoder whose layers are all equal. Families change the settings in which they differ.
pub(super) fn decoder(meta: &Metadata, defaults: Defaults) -> Result<ModelSpec> {
    let hidden_size = meta.require(HIDDEN_SIZE, limits::WIDTH)?;
    let num_layers = meta.require(NUM_LAYERS, limits::LAYERS)?;
    let context_length = meta.count(CONTEXT_LENGTH, limits::POSITIONS)?;
    let context_length = meta.or_assumed(CONTEXT_LENGTH, context_length, defaults.context_length)?;
    let heads = heads(meta, &defaults, hidden_size)?;
    let attention = AttentionSpec {
        num_heads: heads.query,
        num_kv_heads: heads.kv,
        head_dim: heads.dim,
        qk_norm: false,
        kv: KvSpec::Own { value: ValueSource::Projection, value_norm: false },
        scale: (heads.dim as f32).powf(-0.5),
        window: None,
        softcap: None,
        rope: rope(
            meta,
            RopeQuery {
                layout: defaults.layout,
                head_dim: heads.dim,
                context_length,
                default_theta: defaults.theta,
                default_original: defaults.original_context,
                kind: None,
            },
        )?,
    };
    let activation = activation(meta, defaults.activation)?;
    let widths = meta.count_per_layer(FFN_WIDTH, num_layers, limits::FFN_WIDTH)?;
    let widths = widths.ok_or_else(|| meta.missing(FFN_WIDTH))?;
    let layer = |width: usize| LayerSpec {
        attention: attention.clone(),
        ffn: FfnSpec::Dense(DenseSpec { width, activation }),
        norms: Norms::Pre,
        output_scalar: false,
    };
    Ok(ModelSpec {
        family: defaults.family,
        vocab_size: vocab_size(meta)?,
        hidden_size,
        context_length,
        norm_eps: meta.or_assumed(NORM_EPS, meta.positive(NORM_EPS)?, defaults.norm_eps)?,
        norm_offset: 0.0,
        embedding_scale: None,
        layers: widths.into_iter().map(layer).collect(),
        per_layer_inputs: None,
        head: head(meta)?,
        final_softcap: None,
    })
}

fn heads(meta: &Metadata, defaults: &Defaults, hidden_size: usize) -> Result<Heads> {
    let query = meta.count(NUM_HEADS, limits::HEADS)?.or(defaults.num_heads);
    let query = query.ok_or_else(|| meta.missing(NUM_HEADS))?;
    let silent = !meta.is_gguf() && !meta.mentions(NUM_KV_HEADS);
    let kv = meta.count(NUM_KV_HEADS, limits::HEADS)?.or(defaults.num_kv_heads.filter(|_| silent));
    let kv = kv.unwrap_or(query);
    let dim = match meta.count(HEAD_DIM, limits::HEAD_DIM)?.or(defaults.head_dim) {
        Some(dim) => dim,
        None if hidden_size.is_multiple_of(query) => hidden_size / query,
        None => {
            return Err(ModelError::Dimensions {
                what: format!("width {hidden_size} in {query} heads"),
                expected: "a width that the heads divide, or an explicit head dimension".into(),
            });
        }
    };
    if let Some(value) = meta.count(VALUE_DIM, limits::HEAD_DIM)?.filter(|&value| value != dim) {
        return Err(ModelError::Dimensions {
            what: format!("value heads of {value} elements"),
            expected: format!("{dim}, as the key heads"),
        });
    }
    Heads { query, kv, dim }.checked()
}

/// The size of the vocabulary. In GGUF files the configured number may be outdated; there the rows of the embedding table decide.
pub(super) fn vocab_size(meta: &Metadata) -> Result<usize> {
    let configured = meta.count(VOCAB_SIZE, limits::VOCAB)?;
    let table = || {
        let rows = crate::names::embedding(meta)?.shape.first().copied();
        rows.filter(|rows| (1..=limits::VOCAB).contains(rows))
    };
    if meta.is_gguf()
        && let (Some((key, configured)), Some(rows)) = (meta.value(VOCAB_SIZE), table())
        && key == "vocab_size"
        && configured.as_u64() != Some(rows as u64)
    {
        meta.warn(format!(
            "vocab_size is {configured}, but the embedding table has {rows} rows, which count"
        ));
    }
    let size = if meta.is_gguf() { table().or(configured) } else { configured.or_else(table) };
    size.ok_or_else(|| meta.missing(VOCAB_SIZE))
}

/// The head is tied to the embedding table if the configuration says so or if the checkpoint has no matrix for it.
pub(super) fn head(meta: &Metadata) -> Result<Head> {
    let present = crate::names::head(meta).is_some();
    let declared = meta.bool(TIED)?;
    if declared == Some(false) && !present && crate::names::embedding(meta).is_some() {
        meta.warn("tie_word_embeddings is false, but there is no output matrix: the embedding table is used");
    }
    Ok(if declared == Some(true) || !present { Head::Tied } else { Head::Untied })
}

/// Activations by name. The first name of each activation is the one that is written.
const ACTIVATIONS: [(&str, Activation); 6] = [
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_tanh", Activation::GeluTanh),
    ("gelu", Activation::GeluErf),
];

/// The activation that the configuration names.
pub(super) fn activation(meta: &Metadata, default: Activation) -> Result<Activation> {
    let Some(given) = meta.text(ACTIVATION)? else { return Ok(default) };
    if let Some(activation) = activation_named(given) {
        return Ok(activation);
    }
    let (key, _) = meta.value(ACTIVATION).unwrap_or(("hidden_act", &serde_json::Value::Null));
    Err(meta.bad_value(key, &given.into(), "silu, gelu or gelu_pytorch_tanh"))
}

/// The activation of a name; `None` for an unknown one.
pub(crate) fn activation_named(name: &str) -> Option<Activation> {
    ACTIVATIONS.iter().find(|(known, _)| *known == name).map(|(_, activation)| *activation)
}

/// The name that is written for an activation.
pub(crate) fn activation_name(activation: Activation) -> &'static str {
    ACTIVATIONS.iter().find(|(_, other)| *other == activation).map_or("silu", |(name, _)| name)
}
