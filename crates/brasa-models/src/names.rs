//! Tensor names: the one table of each tensor's name in either container, for reading and for writing.
//!
//! Inside this crate a tensor has its GGUF name without layer prefix, e.g. `attn_q.weight`. A bias has the name of its weight
//! with the other ending.

use brasa_formats::Tensor;

use crate::metadata::Metadata;
use crate::source::Source;
use crate::spec::{ModelSpec, Norms};
use brasa_formats::Container;

/// Tensors of the whole model: the name in Brasa and the Hugging Face spelling, without the model's prefix.
const GLOBAL: &[(&str, &str)] = &[
    ("token_embd.weight", "embed_tokens.weight"),
    ("output_norm.weight", "norm.weight"),
    ("per_layer_token_embd.weight", "embed_tokens_per_layer.weight"),
    ("per_layer_model_proj.weight", "per_layer_model_projection.weight"),
    ("per_layer_proj_norm.weight", "per_layer_projection_norm.weight"),
];

/// Tensors of a layer: the name in Brasa and the Hugging Face spellings, without the layer's prefix.
///
/// `post_attention_layernorm` means the norm *before* the network in pre-norm families and the norm *after* attention in Gemma 2
/// and later; the presence of `pre_feedforward_layernorm` distinguishes them, so this name comes first.
const LAYER: &[(&str, &[&str])] = &[
    ("attn_norm.weight", &["input_layernorm.weight"]),
    ("attn_q.weight", &["self_attn.q_proj.weight"]),
    ("attn_k.weight", &["self_attn.k_proj.weight"]),
    ("attn_v.weight", &["self_attn.v_proj.weight"]),
    ("attn_qkv.weight", &["self_attn.qkv_proj.weight"]),
    ("attn_output.weight", &["self_attn.o_proj.weight"]),
    ("attn_q_norm.weight", &["self_attn.q_norm.weight"]),
    ("attn_k_norm.weight", &["self_attn.k_norm.weight"]),
    ("post_attention_norm.weight", &["post_attention_layernorm.weight"]),
    ("ffn_norm.weight", &["pre_feedforward_layernorm.weight", "post_attention_layernorm.weight"]),
    ("post_ffw_norm.weight", &["post_feedforward_layernorm.weight"]),
    ("ffn_gate.weight", &["mlp.gate_proj.weight"]),
    ("ffn_up.weight", &["mlp.up_proj.weight"]),
    ("ffn_gate_up.weight", &["mlp.gate_up_proj.weight"]),
    ("ffn_down.weight", &["mlp.down_proj.weight"]),
    // mixtures of experts
    ("ffn_gate_inp.weight", &["mlp.gate.weight", "block_sparse_moe.gate.weight", "router.proj.weight"]),
    ("ffn_gate_inp.scale", &["router.scale"]),
    ("ffn_gate_exps.weight", &["mlp.switch_mlp.gate_proj.weight", SWITCH_GATE, GLU_GATE]),
    ("ffn_up_exps.weight", &["mlp.switch_mlp.up_proj.weight", SWITCH_UP, GLU_UP]),
    (
        "ffn_down_exps.weight",
        &[
            "mlp.switch_mlp.down_proj.weight",
            SWITCH_DOWN,
            GLU_DOWN,
            "mlp.experts.down_proj",
            "experts.down_proj",
        ],
    ),
    ("ffn_gate_up_exps.weight", &["mlp.experts.gate_up_proj", "experts.gate_up_proj"]),
    ("ffn_down_exps.scale", &["router.per_expert_scale"]),
    ("pre_ffw_norm_2.weight", &["pre_feedforward_layernorm_2.weight"]),
    ("post_ffw_norm_1.weight", &["post_feedforward_layernorm_1.weight"]),
    ("post_ffw_norm_2.weight", &["post_feedforward_layernorm_2.weight"]),
    // per-layer inputs
    ("inp_gate.weight", &["per_layer_input_gate.weight"]),
    ("proj.weight", &["per_layer_projection.weight"]),
    ("post_norm.weight", &["post_per_layer_input_norm.weight"]),
    ("layer_output_scale.weight", &["layer_scalar"]),
];

const SWITCH_GATE: &str = "block_sparse_moe.switch_mlp.gate_proj.weight";
const SWITCH_UP: &str = "block_sparse_moe.switch_mlp.up_proj.weight";
const SWITCH_DOWN: &str = "block_sparse_moe.switch_mlp.down_proj.weight";
const GLU_GATE: &str = "experts.switch_glu.gate_proj.weight";
const GLU_UP: &str = "experts.switch_glu.up_proj.weight";
const GLU_DOWN: &str = "experts.switch_glu.down_proj.weight";

/// The texts before and after the number of an expert.
type Around = (&'static str, &'static str);

/// Matrices of single experts: the stack's name in Brasa, two Hugging Face spellings, and the spelling of old GGUF files.
const EXPERT: &[(&str, [Around; 2], Around)] = &[
    (
        "ffn_gate_exps.weight",
        [("mlp.experts.", ".gate_proj.weight"), ("block_sparse_moe.experts.", ".w1.weight")],
        ("ffn_gate.", ".weight"),
    ),
    (
        "ffn_up_exps.weight",
        [("mlp.experts.", ".up_proj.weight"), ("block_sparse_moe.experts.", ".w3.weight")],
        ("ffn_up.", ".weight"),
    ),
    (
        "ffn_down_exps.weight",
        [("mlp.experts.", ".down_proj.weight"), ("block_sparse_moe.experts.", ".w2.weight")],
        ("ffn_down.", ".weight"),
    ),
];

/// Prefixes of a language model's tensors: empty in exports of the base alone, long in multimodal checkpoints.
pub(crate) const PREFIXES: &[&str] =
    &["model.", "language_model.model.", "model.language_model.", "language_model.", ""];

/// Tensors that are no part of a language model, or that Brasa computes itself.
const FOREIGN: &[&str] = &[
    "vision_tower.",
    "vision_model.",
    "vision_embedder.",
    "multi_modal_projector.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
];

/// The name in GGUF of a matrix of gate and up together (Phi-3). It is the name of an up matrix elsewhere.
const GGUF_FFN_GATE_UP: &str = "ffn_up.weight";

/// The place of a checkpoint's tensor in a GGUF file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum GgufPlace {
    /// The tensor becomes one tensor.
    Tensor {
        /// The layer; `None` for a tensor of the whole model.
        layer: Option<usize>,
        /// The name in GGUF.
        name: String,
        /// The change of the tensor's values.
        change: Change,
    },
    /// The tensor becomes one expert of a stack.
    Expert {
        /// The name of the stack in GGUF.
        name: String,
        /// The expert's number.
        expert: usize,
    },
    /// The tensor is left out: it belongs to another modality, or is computed.
    Foreign,
}

/// A change of a tensor's values on the way to GGUF.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Change {
    /// Values stay as they are.
    None,
    /// Adds a number to each value, e.g. the 1 of norms that are stored as `w − 1`.
    Shift(f32),
    /// Moves the two halves of the rotated part of every head so that their rows alternate.
    Interleave {
        /// Number of heads of the tensor.
        heads: usize,
        /// Rows of a head.
        head_dim: usize,
        /// Leading rows of a head that RoPE rotates.
        rotary_dim: usize,
    },
}

/// Spells tensor names as one checkpoint does.
pub(crate) trait Spelling: std::fmt::Debug {
    /// The spellings of a tensor of the whole model, most usual first.
    fn global(&self, name: &str) -> Vec<String>;

    /// The spellings of a tensor of layer `layer`, most usual first.
    fn layer(&self, layer: usize, name: &str) -> Vec<String>;

    /// The spellings of one expert's matrix of the stack `name`, most usual first.
    fn expert(&self, layer: usize, name: &str, expert: usize) -> Vec<String>;

    /// True if a tensor that no part of the model used may be ignored without a warning.
    fn is_foreign(&self, name: &str) -> bool;
}

/// The names of a decoder's tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    container: Container,
    prefix: &'static str,
}

impl Names {
    pub fn of(source: &Source) -> Self {
        let has_table = |prefix: &&&str| source.tensors.contains_key(&format!("{prefix}embed_tokens.weight"));
        Self { container: source.container, prefix: PREFIXES.iter().find(has_table).unwrap_or(&"model.") }
    }

    /// Names of a Hugging Face checkpoint that begin with `prefix`.
    pub fn hugging_face(prefix: &'static str) -> Self {
        Self { container: Container::HuggingFace, prefix }
    }

    /// The prefix of Hugging Face's tensor names: the checkpoint's own, or else the usual prefix.
    pub fn prefix(&self) -> &'static str {
        match self.container {
            Container::HuggingFace => self.prefix,
            Container::Gguf => PREFIXES[0],
        }
    }

    /// The place of the Hugging Face tensor `name` in GGUF; `None` for a name that no table has.
    pub fn gguf_place(&self, name: &str, spec: &ModelSpec) -> Option<GgufPlace> {
        if self.is_foreign(name) {
            return Some(GgufPlace::Foreign);
        }
        let tensor = |layer, name| GgufPlace::Tensor { layer, name, change: Change::None };
        if self.global("output.weight").iter().any(|spelled| spelled == name) {
            return Some(tensor(None, "output.weight".into()));
        }
        let inner = name.strip_prefix(self.prefix)?;
        if let Some((ours, _)) = GLOBAL.iter().find(|(_, theirs)| *theirs == inner) {
            return Some(tensor(None, (*ours).into()));
        }
        let (number, inner) = inner.strip_prefix("layers.")?.split_once('.')?;
        let layer: usize = number.parse().ok()?;
        let norms = spec.layers.get(layer)?.norms;
        for (ours, theirs) in LAYER {
            if norms == Norms::Pre && ours.starts_with("post_") {
                continue;
            }
            let ours = if *ours == "ffn_gate_up.weight" { GGUF_FFN_GATE_UP } else { ours };
            if theirs.contains(&inner) {
                return Some(tensor(Some(layer), format!("blk.{layer}.{ours}")));
            }
            let stem = inner.strip_suffix(".bias");
            if stem.is_some_and(|stem| theirs.iter().any(|x| x.strip_suffix(".weight") == Some(stem))) {
                let ours = ours.strip_suffix(".weight").unwrap_or(ours);
                return Some(tensor(Some(layer), format!("blk.{layer}.{ours}.bias")));
            }
        }
        EXPERT.iter().find_map(|(stack, spellings, _)| {
            let expert = spellings
                .iter()
                .find_map(|(before, after)| inner.strip_prefix(before)?.strip_suffix(after)?.parse().ok())?;
            Some(GgufPlace::Expert { name: format!("blk.{layer}.{stack}"), expert })
        })
    }
}

impl Spelling for Names {
    fn global(&self, name: &str) -> Vec<String> {
        if self.container == Container::Gguf {
            return vec![name.into()];
        }
        if name == "output.weight" {
            let outer = self.prefix.strip_suffix("model.").unwrap_or(self.prefix);
            return vec![format!("{outer}lm_head.weight"), "lm_head.weight".into()];
        }
        let spelled = GLOBAL.iter().filter(|(ours, _)| *ours == name);
        spelled.map(|(_, theirs)| format!("{}{theirs}", self.prefix)).collect()
    }

    fn layer(&self, layer: usize, name: &str) -> Vec<String> {
        if self.container == Container::Gguf {
            return vec![format!("blk.{layer}.{name}")];
        }
        let (stem, ending) = match name.strip_suffix(".bias") {
            Some(stem) => (format!("{stem}.weight"), ".bias"),
            None => (name.into(), ".weight"),
        };
        let spellings = LAYER.iter().filter(|(ours, _)| **ours == *stem).flat_map(|(_, theirs)| *theirs);
        spellings
            .map(|theirs| {
                let stem = theirs.strip_suffix(".weight").filter(|_| ending == ".bias");
                let theirs = stem.map_or_else(|| (*theirs).into(), |stem| format!("{stem}{ending}"));
                format!("{}layers.{layer}.{theirs}", self.prefix)
            })
            .collect()
    }

    fn expert(&self, layer: usize, name: &str, expert: usize) -> Vec<String> {
        let Some((_, hf, gguf)) = EXPERT.iter().find(|(ours, ..)| *ours == name) else { return Vec::new() };
        match self.container {
            Container::Gguf => vec![format!("blk.{layer}.{}{expert}{}", gguf.0, gguf.1)],
            Container::HuggingFace => hf
                .iter()
                .map(|(before, after)| format!("{}layers.{layer}.{before}{expert}{after}", self.prefix))
                .collect(),
        }
    }

    fn is_foreign(&self, name: &str) -> bool {
        match self.container {
            Container::Gguf => name.starts_with("v.") || name.starts_with("mm.") || name.starts_with("a."),
            Container::HuggingFace => {
                let inner = name.strip_prefix("model.").unwrap_or(name);
                FOREIGN.iter().any(|foreign| inner.starts_with(foreign))
                    || name.ends_with("rotary_emb.inv_freq")
            }
        }
    }
}

/// The first of `spellings` that the checkpoint has.
pub(crate) fn first<'a>(source: &'a Source, spellings: &[String]) -> Option<&'a Tensor> {
    spellings.iter().find_map(|name| source.tensors.get(name))
}

/// The embedding table; `None` if the checkpoint has none.
pub(crate) fn embedding<'a>(meta: &Metadata<'a>) -> Option<&'a Tensor> {
    first(meta.source(), &meta.names().global("token_embd.weight"))
}

/// The output matrix; `None` if the checkpoint has no matrix besides the embedding table.
pub(crate) fn head<'a>(meta: &Metadata<'a>) -> Option<&'a Tensor> {
    first(meta.source(), &meta.names().global("output.weight"))
}

/// A tensor of a layer; `None` if the checkpoint has none.
pub(crate) fn in_layer<'a>(meta: &Metadata<'a>, layer: usize, name: &str) -> Option<&'a Tensor> {
    first(meta.source(), &meta.names().layer(layer, name))
}
