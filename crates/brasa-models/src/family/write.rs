//! A checkpoint's configuration as GGUF keys: those that llama.cpp's converter writes, and more if GGUF readers would assume
//! something else otherwise.

use brasa_formats::gguf;
use brasa_graph::op::{Gating, RopeLayout};

use super::base::activation_name;
use super::layers::{every, kinds};
use super::{Family, gemma4, phi3};
use crate::gguf_form::GgufForm;
use crate::keys::{
    ACTIVATION, ATTENTION_SCALE, ATTENTION_SOFTCAP, CONTEXT_LENGTH, EXPERT_WIDTH, EXPERTS_PER_TOKEN,
    FFN_WIDTH, FINAL_SOFTCAP, HEAD_DIM, HIDDEN_SIZE, Key, LAYER_TYPES, LOCAL_HEAD_DIM, LOCAL_VALUE_DIM,
    NORM_EPS, NORM_TOPK, NUM_EXPERTS, NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS, PER_LAYER_WIDTH, QUERY_SCALAR,
    ROPE_ATTENTION_FACTOR, ROPE_DIM, ROPE_LOCAL_DIM, ROPE_LOCAL_THETA, ROPE_ORIGINAL, ROPE_SCALING_FACTOR,
    ROPE_SCALING_TYPE, ROPE_THETA, SHARED_KV, VALUE_DIM, VOCAB_SIZE, WINDOW, YARN_ATTENTION_FACTOR,
    YARN_BETA_FAST, YARN_BETA_SLOW,
};
use crate::metadata::{Metadata, limits};
use crate::rope::{RopeScaling, RopeSpec, yarn_magnitude};
use crate::rope_config::{LayerKind, RopeQuery, rope};
use crate::source::Source;
use crate::spec::{Activation, AttentionSpec, FfnSpec, KvSpec, ModelSpec};
use crate::{LoadOptions, ModelError, Result, read_spec};

/// Converts the configuration of a Hugging Face or MLX checkpoint to GGUF's keys.
///
/// # Errors
///
/// Errors of [`read_spec`]; [`ModelError::NoGgufForm`] for a setting that GGUF cannot express.
pub fn to_gguf(source: &Source) -> Result<GgufForm> {
    let options = LoadOptions::default();
    let meta = Metadata::new(source, &options);
    let family = Family::of(source)?;
    let spec = (family.spec)(&meta)?;
    let mut form = GgufForm {
        architecture: family.gguf,
        pairs: Vec::new(),
        factors: Vec::new(),
        joined_experts: family.gguf == "gemma4",
        notes: Vec::new(),
        spec,
        names: meta.names(),
    };
    Writer { source, meta: &meta, form: &mut form }.write()?;
    Ok(form)
}

struct Writer<'a> {
    source: &'a Source,
    meta: &'a Metadata<'a>,
    form: &'a mut GgufForm,
}

/// RoPE settings of full layers, and of layers with a window if the family distinguishes them.
struct Ropes {
    full: RopeSpec,
    sliding: Option<RopeSpec>,
}

impl Writer<'_> {
    fn write(mut self) -> Result<()> {
        let spec = self.form.spec.clone();
        let Some(first) = spec.layers.first() else { return Ok(()) };
        let attention = &first.attention;
        let experts = spec.layers.iter().find_map(|layer| match layer.ffn {
            FfnSpec::Experts(experts) | FfnSpec::DenseAndExperts(_, experts) => Some(experts),
            FfnSpec::Dense(_) => None,
        });

        self.put(NUM_LAYERS, spec.layers.len() as u32);
        self.put(CONTEXT_LENGTH, spec.context_length as u32);
        self.put(HIDDEN_SIZE, spec.hidden_size as u32);
        let configured = self.meta.count(FFN_WIDTH, limits::FFN_WIDTH).ok().flatten();
        let widths = spec.layers.iter().map(|layer| match layer.ffn {
            FfnSpec::Dense(dense) | FfnSpec::DenseAndExperts(dense, _) => dense.width,
            FfnSpec::Experts(experts) => configured.unwrap_or(experts.expert.width),
        });
        self.put_by_layer(FFN_WIDTH, widths.collect());
        let by_layer = |of: fn(&AttentionSpec) -> usize| spec.layers.iter().map(move |x| of(&x.attention));
        self.put_by_layer(NUM_HEADS, by_layer(|attention| attention.num_heads).collect());
        self.put_by_layer(NUM_KV_HEADS, by_layer(|attention| attention.num_kv_heads).collect());

        let ropes = self.ropes(&spec)?;
        self.rope(&ropes)?;
        self.put(NORM_EPS, spec.norm_eps);
        if let Some(experts) = experts {
            self.put(NUM_EXPERTS, experts.num_experts as u32);
            self.put(EXPERTS_PER_TOKEN, experts.experts_per_token as u32);
        }
        // llama.cpp's converter leaves the width of heads unsaid in these families where the checkpoint does.
        let unsaid = matches!(spec.family, "mixtral" | "qwen2" | "qwen3_moe" | "phi3");
        let divided = attention.q_dim() == spec.hidden_size;
        if !unsaid || !divided || self.meta.value(HEAD_DIM).is_some() {
            self.put(HEAD_DIM, attention.head_dim as u32);
            self.put(VALUE_DIM, attention.head_dim as u32);
        }
        self.activation(&spec);

        match spec.family {
            "llama" | "mistral" | "mixtral" => {
                self.put(VOCAB_SIZE, spec.vocab_size as u32);
                self.put(ROPE_DIM, ropes.full.rotary_dim as u32);
                if let Some(window) = attention.window {
                    // llama.cpp passes over it and sees everything.
                    self.put(WINDOW, window as u32);
                }
                if let Some(experts) = experts.filter(|experts| Some(experts.expert.width) != configured) {
                    self.put(EXPERT_WIDTH, experts.expert.width as u32);
                }
            }
            "qwen2" | "qwen3" => self.qwen_windows(&spec),
            "qwen3_moe" => self.qwen3_moe(&spec)?,
            "gemma2" => {
                self.put(ATTENTION_SOFTCAP, attention.softcap.unwrap_or(0.0));
                self.put(FINAL_SOFTCAP, spec.final_softcap.unwrap_or(0.0));
                if attention.softcap.is_none() || spec.final_softcap.is_none() {
                    self.note("a soft-cap is switched off: llama.cpp divides by it and computes no numbers");
                }
                self.put(WINDOW, window_of(&spec).unwrap_or(0) as u32);
                self.gemma_attention(&spec, Gemma { period: 2, layers_of_27b: 46 })?;
            }
            "gemma3" => {
                self.put_some(FINAL_SOFTCAP, spec.final_softcap);
                self.put_some(WINDOW, window_of(&spec).map(|window| window as u32));
                self.gemma_attention(&spec, Gemma { period: 6, layers_of_27b: 62 })?;
            }
            "gemma4" => self.gemma4(&spec, &ropes)?,
            "phi3" => self.phi3(&spec, &ropes)?,
            _ => {}
        }
        let whole = |rope: &RopeSpec| rope.rotary_dim == attention.head_dim;
        let said = matches!(spec.family, "llama" | "mistral" | "mixtral" | "phi3" | "gemma4");
        if !(said || whole(&ropes.full) && ropes.sliding.as_ref().is_none_or(whole)) {
            self.put(ROPE_DIM, ropes.full.rotary_dim as u32);
            self.put_some(ROPE_LOCAL_DIM, ropes.sliding.as_ref().map(|rope| rope.rotary_dim as u32));
        }
        Ok(())
    }

    fn put(&mut self, key: Key, value: impl Into<gguf::Value>) {
        let name = format!("{}.{}", self.form.architecture, key.gguf[0]);
        let value = value.into();
        match self.form.pairs.iter_mut().find(|(known, _)| *known == name) {
            Some(pair) => pair.1 = value,
            None => self.form.pairs.push((name, value)),
        }
    }

    fn put_some(&mut self, key: Key, value: Option<impl Into<gguf::Value>>) {
        if let Some(value) = value {
            self.put(key, value);
        }
    }

    /// Writes a setting of all layers: as one number if all layers have the same value, else as a list.
    fn put_by_layer(&mut self, key: Key, numbers: Vec<usize>) {
        match numbers[..] {
            [first, ref rest @ ..] if rest.iter().all(|&other| other == first) => self.put(key, first as u32),
            _ => self.put(key, gguf::Array::of(numbers.into_iter().map(|number| number as i32))),
        }
    }

    fn put_kinds(&mut self, kinds: &[LayerKind]) {
        let sliding = kinds.iter().map(|&kind| kind == LayerKind::Sliding);
        self.put(LAYER_TYPES, gguf::Array::of(sliding));
    }

    fn note(&mut self, note: impl Into<String>) {
        self.form.notes.push(note.into());
    }

    /// Writes the gate's activation if the architecture's readers assume another one.
    fn activation(&mut self, spec: &ModelSpec) {
        let usual =
            if self.form.architecture.starts_with("gemma") { Activation::GeluTanh } else { Activation::Silu };
        let found = spec.layers.first().map(|layer| match layer.ffn {
            FfnSpec::Dense(dense) | FfnSpec::DenseAndExperts(dense, _) => dense.activation,
            FfnSpec::Experts(experts) => experts.expert.activation,
        });
        if let Some(found) = found.filter(|&found| found != usual) {
            let (name, usual) = (activation_name(found), activation_name(usual));
            self.put(ACTIVATION, name);
            self.note(format!("the activation is {name}: llama.cpp takes it for {usual}"));
        }
    }

    fn ropes(&self, spec: &ModelSpec) -> Result<Ropes> {
        let head_dim = |kind| self.layer_of(spec, kind).map(|attention| attention.head_dim);
        let (meta, context) = (self.meta, spec.context_length);
        match spec.family {
            "gemma3" => {
                let of = |kind, default_theta| {
                    let query = RopeQuery {
                        layout: RopeLayout::SplitHalf,
                        head_dim: spec.layers[0].attention.head_dim,
                        context_length: context,
                        default_theta,
                        default_original: None,
                        kind: Some(kind),
                    };
                    rope(meta, query)
                };
                Ok(Ropes { full: of(LayerKind::Full, 1e6)?, sliding: Some(of(LayerKind::Sliding, 1e4)?) })
            }
            "gemma4" => {
                let dims = gemma4::head_dims(meta)?;
                let full = head_dim(LayerKind::Full).unwrap_or(dims.global);
                let sliding = head_dim(LayerKind::Sliding).unwrap_or(dims.local);
                Ok(Ropes {
                    full: gemma4::layer_rope(meta, LayerKind::Full, full, context)?,
                    sliding: Some(gemma4::layer_rope(meta, LayerKind::Sliding, sliding, context)?),
                })
            }
            _ => Ok(Ropes { full: spec.layers[0].attention.rope.clone(), sliding: None }),
        }
    }

    /// The attention of the first layer of a kind in Gemma 4.
    fn layer_of<'s>(&self, spec: &'s ModelSpec, kind: LayerKind) -> Option<&'s AttentionSpec> {
        let kinds = gemma4::layer_kinds(self.meta, spec.layers.len()).ok()?;
        let at = kinds.iter().position(|&other| other == kind)?;
        Some(&spec.layers[at].attention)
    }

    fn rope(&mut self, ropes: &Ropes) -> Result<()> {
        let full = &ropes.full;
        match full.scaling {
            _ if full.divisors.is_some() => self.longrope()?,
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                self.put(ROPE_SCALING_TYPE, "linear");
                self.put(ROPE_SCALING_FACTOR, factor);
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original, truncate } => {
                if !truncate {
                    let why = "false has no GGUF form: readers round the ends of YaRN's ramp to whole pairs";
                    return Err(no_form("truncate", why));
                }
                self.put(ROPE_SCALING_TYPE, "yarn");
                self.put(ROPE_SCALING_FACTOR, factor);
                self.original_context(original)?;
                if full.magnitude.to_bits() != yarn_magnitude(factor, 1.0).to_bits() {
                    self.put(YARN_ATTENTION_FACTOR, full.magnitude);
                    self.note("rope_scaling: llama.cpp passes over an attention factor of YaRN's");
                }
                self.put_some(YARN_BETA_FAST, Some(beta_fast).filter(|&x| x - 32.0 != 0.0));
                self.put_some(YARN_BETA_SLOW, Some(beta_slow).filter(|&x| x - 1.0 != 0.0));
            }
            RopeScaling::Llama3 { .. } if self.form.architecture != "llama" => {
                return Err(no_form("rope_type", "llama3 has no GGUF form in this architecture"));
            }
            RopeScaling::Llama3 { .. } => {
                self.form.factors.push(("rope_freqs.weight", full.llama3_divisors()));
            }
            RopeScaling::Proportional { rotated, factor } => {
                // The rest of the head does not turn: its frequency is divided by as good as infinity.
                let divisor = |pair| if pair < rotated { factor } else { 1e30 };
                let divisors = (0..full.rotary_dim / 2).map(divisor).collect();
                self.form.factors.push(("rope_freqs.weight", divisors));
            }
        }
        // The first Gemmas leave unsaid what every reader assumes.
        let unsaid = matches!(self.form.architecture, "gemma" | "gemma2") && full.theta - 10_000.0 == 0.0;
        self.put_some(ROPE_THETA, (!unsaid).then_some(full.theta));
        self.put_some(ROPE_LOCAL_THETA, ropes.sliding.as_ref().map(|sliding| sliding.theta));
        Ok(())
    }

    /// The context length before stretching, which GGUF has in whole positions.
    fn original_context(&mut self, original: f32) -> Result<()> {
        if original.fract() != 0.0 {
            return Err(no_form(ROPE_ORIGINAL.hf[0], "a fraction has no GGUF form"));
        }
        self.put(ROPE_ORIGINAL, original as u32);
        Ok(())
    }

    /// Writes both sets of LongRoPE factors. A reader chooses between them by its context length.
    fn longrope(&mut self) -> Result<()> {
        if self.form.architecture != "phi3" {
            return Err(no_form("rope_type", "longrope has no GGUF form in this architecture"));
        }
        let with = |context_length| {
            read_spec(self.source, &LoadOptions { context_length: Some(context_length), strict: false })
        };
        let (short, long) = (with(1)?.0, with(limits::POSITIONS)?.0);
        for (name, spec) in [("rope_factors_long.weight", long), ("rope_factors_short.weight", short)] {
            let divisors = spec.layers[0].attention.rope.divisors.as_ref();
            let divisors = divisors.map(|divisors| divisors.to_vec()).unwrap_or_default();
            self.form.factors.push((name, divisors));
        }
        Ok(())
    }

    /// Writes the window of a Qwen, and which layers have it.
    fn qwen_windows(&mut self, spec: &ModelSpec) {
        let Some(window) = window_of(spec) else { return };
        self.put(WINDOW, window as u32);
        let sliding = spec.layers.iter().map(|layer| layer.attention.window.is_some());
        self.put(LAYER_TYPES, gguf::Array::of(sliding));
        self.note("use_sliding_window is true: llama.cpp has no window here and sees everything");
    }

    fn qwen3_moe(&mut self, spec: &ModelSpec) -> Result<()> {
        for layer in &spec.layers {
            let FfnSpec::Experts(experts) = layer.ffn else {
                let why = "dense layers among sparse ones have no GGUF form in this architecture";
                return Err(no_form("mlp_only_layers or decoder_sparse_step", why));
            };
            self.put(EXPERT_WIDTH, experts.expert.width as u32);
            if experts.gating == Gating::SOFTMAX_ALL {
                self.put(NORM_TOPK, false);
            }
        }
        if self.form.pairs.last().is_some_and(|(key, _)| key.ends_with(NORM_TOPK.gguf[0])) {
            self.note(
                "norm_topk_prob is false: llama.cpp makes the experts' shares add up to one all the same",
            );
        }
        if let Some(window) = window_of(spec) {
            self.put(WINDOW, window as u32);
            self.note("use_sliding_window is true: llama.cpp has no window here and sees everything");
        }
        Ok(())
    }

    /// Writes windows and score scale, if they differ from the values that readers assume.
    fn gemma_attention(&mut self, spec: &ModelSpec, usual: Gemma) -> Result<()> {
        let layers = spec.layers.len();
        let kinds = kinds(self.meta, layers, every(usual.period))?;
        if kinds != (0..layers).map(every(usual.period)).collect::<Vec<_>>() {
            self.put_kinds(&kinds);
        }
        let attention = &spec.layers[0].attention;
        let assumed = if layers == usual.layers_of_27b {
            spec.hidden_size / attention.num_heads
        } else {
            attention.head_dim
        };
        if attention.scale.to_bits() != (assumed as f32).powf(-0.5).to_bits() {
            self.put(ATTENTION_SCALE, attention.scale);
            let scalar = self.meta.positive(QUERY_SCALAR)?.unwrap_or(256.0);
            self.note(format!("query_pre_attn_scalar is {scalar}: llama.cpp takes it for {assumed}"));
        }
        Ok(())
    }

    fn gemma4(&mut self, spec: &ModelSpec, ropes: &Ropes) -> Result<()> {
        let layers = spec.layers.len();
        self.put_some(FINAL_SOFTCAP, spec.final_softcap);
        self.put(WINDOW, window_of(spec).unwrap_or(0) as u32);
        let shared = spec.layers.iter().filter(|layer| matches!(layer.attention.kv, KvSpec::Shared { .. }));
        self.put(SHARED_KV, shared.count() as u32);
        self.put(PER_LAYER_WIDTH, spec.per_layer_inputs.map_or(0, |inputs| inputs.width) as u32);
        self.put_kinds(&gemma4::layer_kinds(self.meta, layers)?);
        let dims = gemma4::head_dims(self.meta)?;
        let head_dim = |kind| self.layer_of(spec, kind).map(|attention| attention.head_dim);
        let full = head_dim(LayerKind::Full).unwrap_or(dims.global) as u32;
        let sliding = head_dim(LayerKind::Sliding).unwrap_or(dims.local) as u32;
        self.put(HEAD_DIM, full);
        self.put(VALUE_DIM, full);
        self.put(LOCAL_HEAD_DIM, sliding);
        self.put(LOCAL_VALUE_DIM, sliding);
        if let Some(FfnSpec::DenseAndExperts(_, experts)) = spec.layers.first().map(|layer| &layer.ffn) {
            self.put(EXPERT_WIDTH, experts.expert.width as u32);
        }
        self.put(ROPE_DIM, ropes.full.rotary_dim as u32);
        self.put_some(ROPE_LOCAL_DIM, ropes.sliding.as_ref().map(|rope| rope.rotary_dim as u32));
        Ok(())
    }

    fn phi3(&mut self, spec: &ModelSpec, ropes: &Ropes) -> Result<()> {
        if !matches!(ropes.full.scaling, RopeScaling::Yarn { .. }) {
            let original = self.meta.positive(ROPE_ORIGINAL)?.unwrap_or(phi3::ORIGINAL_CONTEXT as f32);
            self.original_context(original)?;
        }
        self.put(ROPE_DIM, ropes.full.rotary_dim as u32);
        // 0 tells llama.cpp that this model has no window.
        self.put(WINDOW, window_of(spec).unwrap_or(0) as u32);
        if ropes.full.divisors.is_some() {
            self.put(ROPE_ATTENTION_FACTOR, ropes.full.magnitude);
        }
        Ok(())
    }
}

/// Values that GGUF readers assume for a generation of Gemma.
#[derive(Clone, Copy)]
struct Gemma {
    /// Every layer whose number, counted from 1, is a multiple of this has no window.
    period: usize,
    /// The number of layers of the generation's 27B model, which divides scores by the root of width / heads.
    layers_of_27b: usize,
}

/// The window of the layers that have one.
fn window_of(spec: &ModelSpec) -> Option<usize> {
    spec.layers.iter().find_map(|layer| layer.attention.window)
}

fn no_form(key: &str, why: &str) -> ModelError {
    ModelError::NoGgufForm { key: key.into(), why: why.into() }
}
