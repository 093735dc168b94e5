//! Gemma 4, text, dense and mixture of experts.
//!
//! Source: the models' public definitions in transformers and MLX-LM; no paper describes all of it.

use brasa_graph::op::{Gating, RopeLayout};
use serde_json::Value;

use super::base::{Defaults, Heads, activation, head, vocab_size};
use super::layers::{every, kinds, window};
use super::mixtral::expert_counts;
use crate::keys::{
    CONTEXT_LENGTH, DOUBLE_WIDE, EXPERT_WIDTH, FFN_WIDTH, FINAL_SOFTCAP, GLOBAL_HEAD_DIM, GLOBAL_KV_HEADS,
    HAS_EXPERTS, HIDDEN_SIZE, KEY_IS_VALUE, LOCAL_HEAD_DIM, LOCAL_VALUE_DIM, NORM_EPS, NUM_EXPERTS,
    NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS, PER_LAYER_CONFIG, PER_LAYER_VOCAB, PER_LAYER_WIDTH, ROPE_PARAMETERS,
    SHARED_KV, VALUE_DIM,
};
use crate::metadata::{Metadata, limits};
use crate::names::in_layer;
use crate::rope::{RopeScaling, RopeSpec};
use crate::rope_config::{LayerKind, RopeQuery, rope};
use crate::spec::{
    Activation, AttentionSpec, DenseSpec, ExpertsSpec, FfnSpec, KvSpec, LayerSpec, ModelSpec, Norms,
    PerLayerInputs, Router, ValueSource,
};
use crate::{ModelError, Result};

/// Gemma 3 with norms stored as they are, scores unscaled, normed values, full layers of other geometry (wider heads,
/// fewer of them, values equal to keys, most of the head unrotated), and, by size, shared caches, per-layer inputs or
/// experts beside the dense network.
pub(super) fn gemma4(meta: &Metadata) -> Result<ModelSpec> {
    let num_layers = meta.require(NUM_LAYERS, limits::LAYERS)?;
    let hidden_size = meta.require(HIDDEN_SIZE, limits::WIDTH)?;
    let context_length =
        meta.or_assumed(CONTEXT_LENGTH, meta.count(CONTEXT_LENGTH, limits::POSITIONS)?, 131_072)?;
    let kinds = layer_kinds(meta, num_layers)?;
    let window = window(meta, Some(512))?;
    let shared_from = num_layers.saturating_sub(meta.count_or_zero(SHARED_KV, limits::LAYERS)?);
    let heads = heads(meta, &kinds)?;
    let activation = activation(meta, Activation::GeluTanh)?;
    let widths = widths(meta, num_layers, shared_from)?;
    let experts = experts(meta, activation)?;
    let key_is_value = meta.bool(KEY_IS_VALUE)?.unwrap_or(false);

    let mut layers = Vec::with_capacity(num_layers);
    for (index, &kind) in kinds.iter().enumerate() {
        let Heads { query, kv, dim } = heads[index];
        let sliding = kind == LayerKind::Sliding;
        let no_value = if meta.is_gguf() {
            in_layer(meta, index, "attn_k.weight").is_some()
                && in_layer(meta, index, "attn_v.weight").is_none()
        } else {
            key_is_value && !sliding
        };
        let kv_source = if index < shared_from {
            let value = if no_value { ValueSource::Key } else { ValueSource::Projection };
            KvSpec::Own { value, value_norm: true }
        } else {
            KvSpec::Shared { layer: last_of_kind(&kinds[..shared_from], kind)? }
        };
        let dense = DenseSpec { width: widths[index], activation };
        let routed = !meta.is_gguf() || in_layer(meta, index, "ffn_gate_inp.weight").is_some();
        layers.push(LayerSpec {
            attention: AttentionSpec {
                num_heads: query,
                num_kv_heads: kv,
                head_dim: dim,
                qk_norm: true,
                kv: kv_source,
                scale: 1.0,
                window: window.filter(|_| sliding),
                softcap: None,
                rope: layer_rope(meta, kind, dim, context_length)?,
            },
            ffn: match experts {
                Some(experts) if routed => FfnSpec::DenseAndExperts(dense, experts),
                _ => FfnSpec::Dense(dense),
            },
            norms: Norms::PreAndPost,
            output_scalar: in_layer(meta, index, "layer_output_scale.weight").is_some(),
        });
    }
    let vocab_size = vocab_size(meta)?;
    Ok(ModelSpec {
        family: "gemma4",
        vocab_size,
        hidden_size,
        context_length,
        norm_eps: meta.or_assumed(NORM_EPS, meta.positive(NORM_EPS)?, 1e-6)?,
        norm_offset: 0.0,
        embedding_scale: Some((hidden_size as f32).sqrt()),
        layers,
        per_layer_inputs: per_layer_inputs(meta, vocab_size, activation)?,
        head: head(meta)?,
        final_softcap: meta.cap(FINAL_SOFTCAP)?,
    })
}

/// The kinds of the layers by default: five layers with a window, then one without; outside GGUF the last layer has none either.
pub(super) fn layer_kinds(meta: &Metadata, num_layers: usize) -> Result<Vec<LayerKind>> {
    let mut kinds = kinds(meta, num_layers, every(6))?;
    if !meta.is_gguf()
        && let Some(last) = kinds.last_mut()
    {
        *last = LayerKind::Full;
    }
    Ok(kinds)
}

/// Elements of a head, in layers without settings of their own.
pub(super) struct HeadDims {
    pub local: usize,
    pub global: usize,
}

/// Elements of a head in layers with a window and in layers without.
pub(super) fn head_dims(meta: &Metadata) -> Result<HeadDims> {
    Ok(HeadDims {
        local: meta.count(LOCAL_HEAD_DIM, limits::HEAD_DIM)?.unwrap_or(256),
        global: meta.count(GLOBAL_HEAD_DIM, limits::HEAD_DIM)?.unwrap_or(512),
    })
}

/// Head counts and widths of each layer.
fn heads(meta: &Metadata, kinds: &[LayerKind]) -> Result<Vec<Heads>> {
    let layers = kinds.len();
    let query = meta.count_per_layer(NUM_HEADS, layers, limits::HEADS)?.unwrap_or_else(|| vec![8; layers]);
    let local_kv = meta.count_per_layer(NUM_KV_HEADS, layers, limits::HEADS)?;
    let local_kv = local_kv.unwrap_or_else(|| vec![4; layers]);
    let HeadDims { local: local_dim, global: global_dim } = head_dims(meta)?;
    for (key, dim) in [(VALUE_DIM, global_dim), (LOCAL_VALUE_DIM, local_dim)] {
        if let Some(value) = meta.count(key, limits::HEAD_DIM)?.filter(|&value| value != dim) {
            return Err(ModelError::Dimensions {
                what: format!("value heads of {value} elements"),
                expected: format!("{dim}, as the key heads"),
            });
        }
    }
    // The count of the full layers applies only together with values equal to keys.
    let global_kv = meta.count(GLOBAL_KV_HEADS, limits::HEADS)?;
    let global_kv = global_kv.filter(|_| meta.bool(KEY_IS_VALUE).ok().flatten() == Some(true));
    let overrides = meta.object(PER_LAYER_CONFIG)?;
    let mut heads = Vec::with_capacity(layers);
    for (index, &kind) in kinds.iter().enumerate() {
        let mut own = Heads { query: query[index], kv: local_kv[index], dim: local_dim };
        match overrides {
            // Newer exports list what differs layer by layer.
            Some(all) => {
                for (key, value) in
                    all.get(&index.to_string()).and_then(Value::as_object).into_iter().flatten()
                {
                    let name = format!("per_layer_config.{index}.{key}");
                    let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
                    match (key.as_str(), number.filter(|&n| (1..=limits::HEAD_DIM).contains(&n))) {
                        ("head_dim", Some(dim)) => own.dim = dim,
                        ("num_key_value_heads", Some(kv)) => own.kv = kv,
                        _ => {
                            let expected = "head_dim and num_key_value_heads, above zero";
                            return Err(meta.bad_value(&name, value, expected));
                        }
                    }
                }
            }
            None if kind == LayerKind::Full => {
                own.dim = global_dim;
                own.kv = global_kv.unwrap_or(own.kv);
            }
            None => {}
        }
        heads.push(own.checked()?);
    }
    Ok(heads)
}

/// Widths of the dense networks; twice as wide if a layer saves its keys and values.
fn widths(meta: &Metadata, layers: usize, shared_from: usize) -> Result<Vec<usize>> {
    let mut widths =
        meta.count_per_layer(FFN_WIDTH, layers, limits::FFN_WIDTH)?.ok_or_else(|| meta.missing(FFN_WIDTH))?;
    if meta.bool(DOUBLE_WIDE)? == Some(true) {
        widths.iter_mut().skip(shared_from).for_each(|width| *width *= 2);
    }
    Ok(widths)
}

fn experts(meta: &Metadata, activation: Activation) -> Result<Option<ExpertsSpec>> {
    let wanted = if meta.is_gguf() {
        meta.count_or_zero(NUM_EXPERTS, limits::EXPERTS)? > 0
    } else {
        meta.bool(HAS_EXPERTS)? == Some(true)
    };
    let width = meta.count(EXPERT_WIDTH, limits::FFN_WIDTH)?;
    if !wanted {
        // Null or idle: read, so that they do not count as unknown.
        for key in [NUM_EXPERTS, crate::keys::EXPERTS_PER_TOKEN] {
            meta.count_or_zero(key, limits::EXPERTS)?;
        }
        return Ok(None);
    }
    let (num_experts, experts_per_token) = expert_counts(meta)?;
    Ok(Some(ExpertsSpec {
        num_experts,
        experts_per_token,
        expert: DenseSpec { width: width.ok_or_else(|| meta.missing(EXPERT_WIDTH))?, activation },
        gating: Gating::SOFTMAX_CHOSEN,
        router: Router::Normed,
    }))
}

/// The last layer of `kind` that has a cache. Later layers of this kind read its cache.
fn last_of_kind(owners: &[LayerKind], kind: LayerKind) -> Result<usize> {
    owners.iter().rposition(|&owner| owner == kind).ok_or_else(|| ModelError::Dimensions {
        what: format!(
            "a layer shares keys and values, but none of the first {} is of its kind",
            owners.len()
        ),
        expected: "one to share with".into(),
    })
}

pub(super) fn layer_rope(
    meta: &Metadata,
    kind: LayerKind,
    head_dim: usize,
    context_length: usize,
) -> Result<RopeSpec> {
    let default_theta = if kind == LayerKind::Full { 1e6 } else { 1e4 };
    let layout: RopeLayout = Defaults::new("gemma4").layout;
    let query = RopeQuery {
        layout,
        head_dim,
        context_length,
        default_theta,
        default_original: None,
        kind: Some(kind),
    };
    let mut spec = rope(meta, query)?;
    if !meta.is_gguf() && kind == LayerKind::Full && meta.value(ROPE_PARAMETERS).is_none() {
        spec.scaling = RopeScaling::Proportional { rotated: head_dim / 8, factor: 1.0 };
    }
    Ok(spec)
}

fn per_layer_inputs(
    meta: &Metadata,
    vocab_size: usize,
    activation: Activation,
) -> Result<Option<PerLayerInputs>> {
    // transformers takes 256 where a configuration is silent.
    let silent = !meta.is_gguf() && !meta.mentions(PER_LAYER_WIDTH);
    let width = if silent { 256 } else { meta.count_or_zero(PER_LAYER_WIDTH, limits::WIDTH)? };
    let rows = meta.count(PER_LAYER_VOCAB, limits::VOCAB)?.unwrap_or(vocab_size);
    if width > 0 && rows != vocab_size {
        return Err(ModelError::Dimensions {
            what: format!("per-layer inputs for {rows} tokens"),
            expected: format!("{vocab_size}, the vocabulary"),
        });
    }
    Ok((width > 0).then_some(PerLayerInputs { width, activation }))
}
