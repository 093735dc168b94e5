//! ModernBERT: which layers see a window, and how their heads turn.

use brasa_graph::op::RopeLayout;
use serde_json::Value;

use super::family::{Defaults, Reader, expect_text};
use super::spec::{ClassifierSpec, EncoderNorms, EncoderSpec, HeadForm, HeadPooling};
use crate::family::{activation_named, kinds};
use crate::keys::{
    CLASSIFIER_ACTIVATION, CLASSIFIER_POOLING, ENCODER_GLOBAL_THETA, ENCODER_LOCAL_THETA, GLOBAL_EVERY,
    LOCAL_ATTENTION, NORM_EPS, POSITION_TYPE, VOCAB_SIZE,
};
use crate::metadata::limits;
use crate::rope_config::{LayerKind, RopeQuery, rope};
use crate::spec::Activation;
use crate::{ModelError, Result};

/// The number in GGUF for a head that reads the mean of all states.
pub(super) const POOLING_MEAN: usize = 1;
/// The number in GGUF for a head that reads the first row's state.
pub(super) const POOLING_FIRST: usize = 2;

/// ModernBERT (Warner et al. 2024, arXiv:2412.13663).
///
/// Norms come before attention and network; the network is gated; positions are rotary. Most layers attend within a window and
/// use a smaller base of rotation than the others.
pub(super) fn modern_bert(reader: &Reader<'_, '_>) -> Result<EncoderSpec> {
    let meta = reader.meta;
    expect_text(meta, POSITION_TYPE, "absolute")?;
    let defaults = Defaults { context_length: 8192, token_types: 0, activation: Activation::GeluErf };
    let mut spec = reader.encoder("modernbert", &defaults)?;
    spec.norms = EncoderNorms::Pre;
    if meta.is_gguf() {
        // Files without a head have its key all the same.
        meta.value(CLASSIFIER_POOLING);
    }
    spec.classifier = spec.classifier.map(|head| classifier(reader, head)).transpose()?;
    let by_period = |period: usize| {
        move |layer: usize| if layer.is_multiple_of(period) { LayerKind::Full } else { LayerKind::Sliding }
    };
    // GGUF has one key for a list of layers and for the period, which counts from the first layer here.
    let kinds = match meta.value(GLOBAL_EVERY) {
        Some((_, Value::Number(_))) if meta.is_gguf() => {
            (0..spec.layers.len()).map(by_period(meta.require(GLOBAL_EVERY, limits::LAYERS)?)).collect()
        }
        _ if meta.is_gguf() => kinds(meta, spec.layers.len(), by_period(3))?,
        _ => {
            let period = meta.count(GLOBAL_EVERY, limits::LAYERS)?.unwrap_or(3);
            kinds(meta, spec.layers.len(), by_period(period))?
        }
    };
    // What llama.cpp's converter writes besides: the other name of the same number, and that no positions are stretched.
    if meta.is_gguf() {
        meta.positive(NORM_EPS)?;
        meta.count(VOCAB_SIZE, limits::VOCAB)?;
    }
    // Half of the window lies to either side.
    let local = meta.or_assumed(LOCAL_ATTENTION, meta.count(LOCAL_ATTENTION, limits::POSITIONS)?, 128)?;
    let global_theta = meta.positive(ENCODER_GLOBAL_THETA)?;
    let global_theta = meta.or_assumed(ENCODER_GLOBAL_THETA, global_theta, 160_000.0)?;
    let local_theta = meta.positive(ENCODER_LOCAL_THETA)?;
    let local_theta = meta.or_assumed(ENCODER_LOCAL_THETA, local_theta, 10_000.0)?;
    for (layer, kind) in spec.layers.iter_mut().zip(kinds) {
        if !layer.ffn.gated {
            return Err(ModelError::MissingTensor { tensor: "layers.0.mlp.Wi.weight".into() });
        }
        let is_full = kind == LayerKind::Full;
        layer.window = (!is_full).then_some(local / 2 + 1);
        let query = RopeQuery {
            layout: RopeLayout::SplitHalf,
            head_dim: layer.head_dim,
            context_length: spec.context_length,
            default_theta: if is_full { global_theta } else { local_theta },
            default_original: None,
            kind: Some(kind),
        };
        layer.rope = Some(rope(meta, query)?);
    }
    Ok(spec)
}

fn classifier(reader: &Reader<'_, '_>, head: ClassifierSpec) -> Result<ClassifierSpec> {
    let meta = reader.meta;
    if meta.is_gguf() {
        // As llama.cpp reads files that are silent. No file says the head's function, which is the published models'.
        let pooling = match meta.count(CLASSIFIER_POOLING, limits::LAYERS)? {
            None | Some(POOLING_MEAN) => HeadPooling::Mean,
            Some(POOLING_FIRST) => HeadPooling::First,
            Some(other) => {
                let expected = format!("{POOLING_MEAN} or {POOLING_FIRST}");
                return Err(meta.bad_value(CLASSIFIER_POOLING.gguf[0], &other.into(), &expected));
            }
        };
        return Ok(ClassifierSpec {
            labels: head.labels,
            pooling,
            form: HeadForm::Normed(Activation::GeluErf),
        });
    }
    let text = |key: crate::keys::Key, default| Ok::<_, ModelError>(meta.text(key)?.unwrap_or(default));
    let pooling = match text(CLASSIFIER_POOLING, "cls")? {
        "cls" => HeadPooling::First,
        "mean" => HeadPooling::Mean,
        other => return Err(meta.bad_value("classifier_pooling", &Value::from(other), "cls or mean")),
    };
    let name = text(CLASSIFIER_ACTIVATION, "gelu")?;
    let activation = activation_named(name).ok_or_else(|| {
        meta.bad_value("classifier_activation", &Value::from(name), "gelu, gelu_new or silu")
    })?;
    Ok(ClassifierSpec { labels: head.labels, pooling, form: HeadForm::Normed(activation) })
}
