//! Families of encoders: each turns configuration into an [`EncoderSpec`].

use brasa_formats::Container;
use brasa_graph::op::RopeLayout;
use serde_json::Value;

use super::modern_bert::modern_bert;
use super::names::{BERT, EncoderNames, GTE, JINA_V2, JINA_XLM_R, MODERN_BERT, NOMIC, Style};
use super::spec::{
    ClassifierSpec, EncoderExperts, EncoderFfn, EncoderLayerSpec, EncoderNorms, EncoderSpec, HeadForm,
    HeadPooling, LearnedPositions,
};
use crate::family::activation_named;
use crate::keys::{
    EMBEDDING_POOLER, ENCODER_ACTIVATION, ENCODER_CAUSAL, ENCODER_CONTEXT_LENGTH, ENCODER_FFN_WIDTH,
    ENCODER_HEADS, ENCODER_HIDDEN_SIZE, ENCODER_LAYERS, EXPERTS_PER_TOKEN, FEED_FORWARD_TYPE, HEAD_DIM,
    IS_DECODER, LAYER_NORM_EPS, MAX_ALIBI_BIAS, MOE_EVERY, NUM_EXPERTS, PAD_TOKEN, PARALLEL_BLOCK,
    POSITION_TYPE, PRE_NORM, ROTARY_BASE, ROTARY_FRACTION, ROTARY_INTERLEAVED, TIED, TOKEN_TYPES,
    USE_RMS_NORM, VALUE_DIM, VOCAB_SIZE,
};
use crate::metadata::{Metadata, limits};
use crate::names::{Spelling, first};
use crate::rope::RopeSpec;
use crate::rope_config::{RopeQuery, rope};
use crate::source::Source;
use crate::spec::Activation;
use crate::{ModelError, Result};

/// A family of encoders: its names in configurations, the spelling of its tensors, and the function that reads its configuration.
pub(super) struct Family {
    /// `model_type` in `config.json`.
    hf: &'static [&'static str],
    /// Classes of transformers, as `architectures` in `config.json` names them, without the ending that names the task.
    classes: &'static [&'static str],
    /// `general.architecture` in GGUF.
    gguf: Option<&'static str>,
    pub style: &'static Style,
    /// Reads the configuration.
    spec: fn(&Reader<'_, '_>) -> Result<EncoderSpec>,
}

/// Endings of a family's class names, after the family's own name. Heads that predict tokens are ignored.
const TASKS: [&str; 4] = ["Model", "ForMaskedLM", "ForPreTraining", JUDGES];

/// The ending of classes whose head computes scores of texts.
const JUDGES: &str = "ForSequenceClassification";

const FAMILIES: &[Family] = &[
    Family { hf: &["bert"], classes: &["Bert"], gguf: Some("bert"), style: &BERT, spec: bert },
    // The hub's own code for it says that it is BERT, and only the class tells them apart.
    Family {
        hf: &["bert"],
        classes: &["JinaBert"],
        gguf: Some("jina-bert-v2"),
        style: &JINA_V2,
        spec: jina_v2,
    },
    Family {
        hf: &["roberta", "xlm-roberta", "camembert"],
        classes: &["Roberta", "XLMRoberta", "Camembert"],
        gguf: None,
        style: &BERT,
        spec: roberta,
    },
    // Jina Reranker v2: only the spelling of tensors tells them apart.
    Family { hf: &["xlm-roberta"], classes: &["XLMRoberta"], gguf: None, style: &JINA_XLM_R, spec: roberta },
    Family {
        hf: &["nomic_bert"],
        classes: &["NomicBert"],
        gguf: Some("nomic-bert"),
        style: &NOMIC,
        spec: nomic_bert,
    },
    Family { hf: &[], classes: &[], gguf: Some("nomic-bert-moe"), style: &NOMIC, spec: nomic_bert_moe },
    Family {
        hf: &["modernbert"],
        classes: &["ModernBert"],
        gguf: Some("modern-bert"),
        style: &MODERN_BERT,
        spec: modern_bert,
    },
    Family {
        hf: &["jina_embeddings_v3"],
        classes: &["JinaEmbeddingsV3"],
        gguf: None,
        style: &JINA_XLM_R,
        spec: jina_v3,
    },
    Family { hf: &["new", "gte"], classes: &["New", "Gte"], gguf: None, style: &GTE, spec: gte },
];

/// Names of all architectures of encoders that are understood in `container`.
pub fn supported_encoders(container: Container) -> Vec<&'static str> {
    let names = FAMILIES.iter().flat_map(|family| match container {
        Container::HuggingFace => family.hf.to_vec(),
        Container::Gguf => family.gguf.into_iter().collect(),
    });
    let mut found = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

impl Family {
    /// The family of a checkpoint.
    pub fn of(source: &Source) -> Result<&'static Self> {
        let container = source.container();
        let unknown = |architecture: &str| ModelError::UnknownArchitecture {
            architecture: architecture.into(),
            supported: supported_encoders(container).join(", "),
        };
        let named = |family: &&Self| match container {
            Container::HuggingFace => family.hf.contains(&source.architecture()),
            Container::Gguf => family.gguf == Some(source.architecture()),
        };
        let families = FAMILIES.iter().filter(named);
        let first = families.clone().next().ok_or_else(|| unknown(source.architecture()))?;
        let Some(class) = source.class() else { return Ok(first) };
        let found: Vec<_> = families.filter(|family| family.has_class(class)).collect();
        let spelled = |family: &&&Self| EncoderNames::of(source, family.style).spell(source);
        found.iter().find(spelled).or(found.first()).copied().ok_or_else(|| unknown(class))
    }

    fn has_class(&self, class: &str) -> bool {
        let task = |family| class.strip_prefix(family);
        let known = |task: &str| TASKS.contains(&task) && (task != JUDGES || self.style.has_head());
        self.classes.iter().filter_map(task).any(known)
    }

    /// Reads the configuration.
    pub fn spec(&self, meta: &Metadata<'_>) -> Result<EncoderSpec> {
        (self.spec)(&Reader { meta, names: EncoderNames::of(meta.source(), self.style) })
    }
}

/// Configuration, and the tensors whose shapes complete it.
pub(super) struct Reader<'a, 'm> {
    pub meta: &'a Metadata<'m>,
    names: EncoderNames,
}

impl Reader<'_, '_> {
    /// The number of rows of a tensor of the whole encoder; `None` if there is no such tensor.
    fn rows(&self, name: &str) -> Option<usize> {
        first(self.meta.source(), &self.names.global(name))?.shape.first().copied()
    }

    /// True if the layers have a gate matrix.
    fn is_gated(&self) -> bool {
        let has = |name| first(self.meta.source(), &self.names.layer(0, name)).is_some();
        ["ffn_gate.weight", "ffn_gate_up.weight", "ffn_up_gate.weight"].into_iter().any(has)
    }

    /// The head that computes scores of texts; `None` if the checkpoint has none.
    fn classifier(&self) -> Result<Option<ClassifierSpec>> {
        let source = self.meta.source();
        let judges = match source.container() {
            Container::HuggingFace => source.class().is_some_and(|class| class.ends_with(JUDGES)),
            Container::Gguf => self.rows("cls.output.weight").is_some(),
        };
        if !judges {
            return Ok(None);
        }
        let names = self.names.global("cls.output.weight").join(" or ");
        let labels = self.rows("cls.output.weight").ok_or(ModelError::MissingTensor { tensor: names })?;
        Ok(Some(ClassifierSpec { labels, pooling: HeadPooling::First, form: HeadForm::Tanh }))
    }

    /// The settings that all families have, with a post-norm block.
    pub fn encoder(&self, family: &'static str, defaults: &Defaults) -> Result<EncoderSpec> {
        let meta = self.meta;
        let hidden_size = meta.require(ENCODER_HIDDEN_SIZE, limits::WIDTH)?;
        let num_heads = meta.require(ENCODER_HEADS, limits::HEADS)?;
        if !hidden_size.is_multiple_of(num_heads) {
            return Err(ModelError::Dimensions {
                what: format!("width {hidden_size} in {num_heads} heads"),
                expected: "a width that the heads divide".into(),
            });
        }
        let head_dim = hidden_size / num_heads;
        for key in [HEAD_DIM, VALUE_DIM] {
            if meta.count(key, limits::HEAD_DIM)?.is_some_and(|found| found != head_dim) {
                let (name, value) = meta.value(key).unwrap_or(("head_dim", &Value::Null));
                return Err(meta.bad_value(name, value, "the width divided by the heads"));
            }
        }
        for key in [ENCODER_CAUSAL, IS_DECODER] {
            if meta.bool(key)? == Some(true) {
                let (name, value) = meta.value(key).unwrap_or(("is_causal", &Value::Null));
                return Err(meta.bad_value(name, value, "false: rows of an encoder see each other"));
            }
        }
        // Whether heads that predict tokens share the embedding table: nothing here reads them.
        meta.bool(TIED)?;
        let vocab_size = match self.rows("token_embd.weight").filter(|_| meta.is_gguf()) {
            Some(rows) => rows,
            None => meta.require(VOCAB_SIZE, limits::VOCAB)?,
        };
        let token_types = match self.rows("token_types.weight").filter(|_| meta.is_gguf()) {
            Some(rows) => rows,
            None if meta.is_gguf() => 0,
            None if meta.mentions(TOKEN_TYPES) => meta.count_or_zero(TOKEN_TYPES, limits::VOCAB)?,
            None => defaults.token_types,
        };
        let layer = EncoderLayerSpec {
            num_heads,
            head_dim,
            rope: None,
            alibi: false,
            qk_norm: false,
            window: None,
            ffn: EncoderFfn {
                width: meta.require(ENCODER_FFN_WIDTH, limits::FFN_WIDTH)?,
                activation: activation(meta, defaults.activation)?,
                gated: self.is_gated(),
                experts: None,
            },
        };
        Ok(EncoderSpec {
            family,
            vocab_size,
            hidden_size,
            context_length: meta.or_assumed(
                ENCODER_CONTEXT_LENGTH,
                meta.count(ENCODER_CONTEXT_LENGTH, limits::POSITIONS)?,
                defaults.context_length,
            )?,
            norm_eps: meta.or_assumed(LAYER_NORM_EPS, meta.positive(LAYER_NORM_EPS)?, 1e-12)?,
            token_types,
            positions: None,
            norms: EncoderNorms::Post,
            layers: vec![layer; meta.require(ENCODER_LAYERS, limits::LAYERS)?],
            classifier: self.classifier()?,
        })
    }
}

/// Rotates the heads of all layers.
fn rotate(spec: &mut EncoderSpec, rope: &RopeSpec) {
    for layer in &mut spec.layers {
        layer.rope = Some(rope.clone());
    }
}

/// Defaults for keys that a configuration lacks.
pub(super) struct Defaults {
    pub context_length: usize,
    pub token_types: usize,
    pub activation: Activation,
}

/// BERT (Devlin et al. 2018, arXiv:1810.04805).
///
/// Also RoBERTa and XLM-R in GGUF, where the unused rows of their position tables are cut off.
fn bert(reader: &Reader<'_, '_>) -> Result<EncoderSpec> {
    learned(reader, "bert", 0, 2)
}

/// RoBERTa (Liu et al. 2019, arXiv:1907.11692) and XLM-R (Conneau et al. 2019, arXiv:1911.02116).
///
/// BERT whose first position is after that of the padding token, which has the row of its own id.
fn roberta(reader: &Reader<'_, '_>) -> Result<EncoderSpec> {
    let padding = reader.meta.count_or_zero(PAD_TOKEN, limits::VOCAB)?;
    let padding = if reader.meta.mentions(PAD_TOKEN) { padding } else { 1 };
    // A key of Jina's code.
    expect_text(reader.meta, EMBEDDING_POOLER, "mean")?;
    learned(reader, "roberta", padding + 1, 2)
}

/// An encoder with learned positions, of which a text's first is row `first`.
fn learned(
    reader: &Reader<'_, '_>,
    family: &'static str,
    first: usize,
    token_types: usize,
) -> Result<EncoderSpec> {
    let meta = reader.meta;
    expect_text(meta, POSITION_TYPE, "absolute")?;
    let defaults = Defaults { context_length: 512, token_types, activation: Activation::GeluErf };
    let mut spec = reader.encoder(family, &defaults)?;
    let stored = match reader.rows("position_embd.weight").filter(|_| meta.is_gguf()) {
        Some(rows) => rows,
        None => spec.context_length,
    };
    if stored <= first {
        return Err(ModelError::Dimensions {
            what: format!("{stored} positions, of which {first} are not used"),
            expected: "more positions".into(),
        });
    }
    spec.positions = Some(LearnedPositions { stored, first });
    spec.context_length = spec.context_length.min(stored - first);
    Ok(spec)
}

/// Nomic BERT (Nussbaum et al. 2024, arXiv:2402.01613).
///
/// BERT with rotary positions, and a gated network without biases.
fn nomic_bert(reader: &Reader<'_, '_>) -> Result<EncoderSpec> {
    let meta = reader.meta;
    if meta.count_or_zero(MOE_EVERY, limits::LAYERS)? > 0 {
        let (name, value) = meta.value(MOE_EVERY).unwrap_or((MOE_EVERY.hf[0], &Value::Null));
        return Err(meta.bad_value(name, value, "0: a Nomic BERT with experts is read from GGUF alone"));
    }
    for key in [PRE_NORM, PARALLEL_BLOCK, ROTARY_INTERLEAVED, USE_RMS_NORM] {
        if meta.bool(key)? == Some(true) {
            return Err(meta.bad_value(key.hf[0], &Value::Bool(true), "false"));
        }
    }
    let defaults = Defaults { context_length: 2048, token_types: 2, activation: Activation::Silu };
    let mut spec = reader.encoder("nomic_bert", &defaults)?;
    let head_dim = spec.layers[0].head_dim;
    let theta = meta.positive(ROTARY_BASE)?.unwrap_or(1000.0);
    let mut rope = rotary(meta, head_dim, spec.context_length, theta)?;
    if let Some(fraction) = meta.number(ROTARY_FRACTION)? {
        let rotated = (head_dim as f32 * fraction) as usize;
        if !(0.0..=1.0).contains(&fraction) || rotated == 0 || !rotated.is_multiple_of(2) {
            let expected = "a share of the head that is an even number of elements";
            return Err(meta.bad_value(ROTARY_FRACTION.hf[0], &fraction.into(), expected));
        }
        rope.rotary_dim = rotated;
    }
    rotate(&mut spec, &rope);
    Ok(spec)
}

/// Nomic Embed v2 (Nussbaum & Duderstadt 2025, arXiv:2502.07972).
///
/// BERT with rotary positions, and experts in place of the network in some layers.
fn nomic_bert_moe(reader: &Reader<'_, '_>) -> Result<EncoderSpec> {
    let meta = reader.meta;
    let defaults = Defaults { context_length: 512, token_types: 1, activation: Activation::GeluErf };
    let mut spec = reader.encoder("nomic_bert_moe", &defaults)?;
    let theta = meta.positive(ROTARY_BASE)?.unwrap_or(10_000.0);
    let rope = rotary(meta, spec.layers[0].head_dim, spec.context_length, theta)?;
    rotate(&mut spec, &rope);
    let count = meta.require(NUM_EXPERTS, limits::EXPERTS)?;
    let per_row = meta.require(EXPERTS_PER_TOKEN, limits::EXPERTS)?;
    if per_row > count {
        return Err(ModelError::Dimensions {
            what: format!("{per_row} experts for a row, of {count}"),
            expected: "at most as many as there are".into(),
        });
    }
    let every = meta.require(MOE_EVERY, limits::LAYERS)?;
    for layer in spec.layers.iter_mut().skip(1).step_by(every).filter(|_| every > 1) {
        layer.ffn.experts = Some(EncoderExperts { count, per_row });
    }
    Ok(spec)
}

/// GTE v1.5 and multilingual GTE (Zhang et al. 2024, arXiv:2407.19669).
///
/// BERT with rotary positions, and a gated network.
fn gte(reader: &Reader<'_, '_>) -> Result<EncoderSpec> {
    let meta = reader.meta;
    expect_text(meta, POSITION_TYPE, "rope")?;
    let defaults = Defaults { context_length: 8192, token_types: 1, activation: Activation::GeluErf };
    let mut spec = reader.encoder("gte", &defaults)?;
    let theta = if meta.source().architecture() == "gte" { 160_000.0 } else { 10_000.0 };
    let rope = rotary(meta, spec.layers[0].head_dim, spec.context_length, theta)?;
    rotate(&mut spec, &rope);
    Ok(spec)
}

/// Jina Embeddings v2 (Günther et al. 2023, arXiv:2310.19923).
///
/// BERT with ALiBi, and a gated network. Some models norm queries and keys, and norm twice after attention.
fn jina_v2(reader: &Reader<'_, '_>) -> Result<EncoderSpec> {
    let meta = reader.meta;
    // Silence means learned positions.
    let positions = meta.text(POSITION_TYPE)?.unwrap_or("absolute");
    if !meta.is_gguf() && positions != "alibi" {
        return Err(meta.bad_value(POSITION_TYPE.hf[0], &positions.into(), "alibi"));
    }
    expect_text(meta, FEED_FORWARD_TYPE, "geglu")?;
    expect_text(meta, EMBEDDING_POOLER, "mean")?;
    if let Some(slope) = meta.number(MAX_ALIBI_BIAS)?.filter(|slope| (slope - 8.0).abs() > f32::EPSILON) {
        return Err(meta.bad_value(MAX_ALIBI_BIAS.gguf[0], &slope.into(), "8"));
    }
    let defaults = Defaults { context_length: 512, token_types: 2, activation: Activation::GeluErf };
    let mut spec = reader.encoder("jina_bert_v2", &defaults)?;
    let has = |name| first(meta.source(), &reader.names.layer(0, name)).is_some();
    let qk_norm = has("attn_q_norm.weight");
    if qk_norm && meta.is_gguf() {
        let what = "a Jina v2 with norms of queries and keys is not read from GGUF, which does not say which half of the \
                    network's matrix is the gate; its Hugging Face folder is read";
        return Err(ModelError::Config { what: what.into() });
    }
    if has("attn_norm_2.weight") {
        spec.norms = EncoderNorms::PostTwice;
    }
    for layer in &mut spec.layers {
        // Whatever `hidden_act` says, which the code passes over.
        layer.ffn = EncoderFfn { activation: Activation::GeluErf, gated: true, ..layer.ffn };
        (layer.alibi, layer.qk_norm) = (true, qk_norm);
    }
    Ok(spec)
}

/// Jina Embeddings v3 as transformers has it, without adapters (Sturua et al. 2024, arXiv:2409.10173).
///
/// XLM-R with rotary positions.
fn jina_v3(reader: &Reader<'_, '_>) -> Result<EncoderSpec> {
    let meta = reader.meta;
    let defaults = Defaults { context_length: 8194, token_types: 1, activation: Activation::GeluErf };
    let mut spec = reader.encoder("jina_embeddings_v3", &defaults)?;
    let rope = rotary(meta, spec.layers[0].head_dim, spec.context_length, 20_000.0)?;
    rotate(&mut spec, &rope);
    Ok(spec)
}

fn rotary(meta: &Metadata<'_>, head_dim: usize, context_length: usize, theta: f32) -> Result<RopeSpec> {
    let query = RopeQuery {
        layout: RopeLayout::SplitHalf,
        head_dim,
        context_length,
        default_theta: theta,
        default_original: None,
        kind: None,
    };
    rope(meta, query)
}

/// Fails if `key` has another text than `expected`. A missing key is fine.
pub(super) fn expect_text(meta: &Metadata<'_>, key: crate::keys::Key, expected: &str) -> Result<()> {
    match meta.text(key)? {
        Some(found) if found != expected => Err(meta.bad_value(key.hf[0], &found.into(), expected)),
        _ => Ok(()),
    }
}

/// The activation that the configuration names. Nomic's `swiglu` is the gated network with SiLU.
fn activation(meta: &Metadata<'_>, default: Activation) -> Result<Activation> {
    let Some(given) = meta.text(ENCODER_ACTIVATION)? else { return Ok(default) };
    let given = if given == "swiglu" { "silu" } else { given };
    activation_named(given).ok_or_else(|| {
        meta.bad_value(ENCODER_ACTIVATION.hf[0], &given.into(), "gelu, gelu_new, silu or swiglu")
    })
}
