//! Names of encoders' tensors in either container.
//!
//! As with decoders, a tensor goes by its GGUF name without layer prefix.

use brasa_formats::Container;

use crate::names::{Spelling, first};
use crate::source::Source;

/// A tensor's name in Brasa, and its spellings in Hugging Face's checkpoints.
type Table = &'static [(&'static str, &'static [&'static str])];

/// How one family of checkpoints spells its tensors.
#[derive(Debug)]
pub(super) struct Style {
    /// Prefixes of the encoder's tensors, longest first. The first with an embedding table counts.
    prefixes: &'static [&'static str],
    /// Tensors of the whole encoder, without the prefix.
    global: Table,
    /// Tensors of the head, which have no prefix. Names that begin with `*` do have the prefix.
    head: Table,
    /// The text between prefix and the number of a layer.
    layers: &'static str,
    /// Tensors of a layer, without prefix and number.
    layer: Table,
    /// Tensors of a layer whose name in GGUF differs from the name in Brasa.
    gguf: &'static [(&'static str, &'static str)],
    /// Beginnings of the names, with or without the prefix, of tensors that embeddings do not need.
    foreign: &'static [&'static str],
}

impl Style {
    /// True if checkpoints of the style may have a head that Brasa reads.
    pub fn has_head(&self) -> bool {
        !self.head.is_empty()
    }
}

/// Names of the tensors of BERT, RoBERTa and XLM-R.
pub(super) const BERT: Style = Style {
    prefixes: &["bert.", "roberta.", "xlm_roberta.", ""],
    global: EMBEDDINGS,
    head: &[
        ("cls.weight", &["classifier.dense.weight", "*pooler.dense.weight"]),
        ("cls.output.weight", &["classifier.out_proj.weight", "classifier.weight"]),
    ],
    layers: "encoder.layer.",
    layer: &[
        ("attn_q.weight", &["attention.self.query.weight"]),
        ("attn_k.weight", &["attention.self.key.weight"]),
        ("attn_v.weight", &["attention.self.value.weight"]),
        ("attn_output.weight", &["attention.output.dense.weight"]),
        (
            "attn_output_norm.weight",
            &["attention.output.LayerNorm.weight", "attention.output.LayerNorm.gamma"],
        ),
        ("ffn_up.weight", &["intermediate.dense.weight"]),
        ("ffn_down.weight", &["output.dense.weight"]),
        ("layer_output_norm.weight", &["output.LayerNorm.weight", "output.LayerNorm.gamma"]),
    ],
    gguf: &[],
    foreign: &["cls.", "lm_head.", "pooler.", "embeddings.position_ids", "embeddings.token_type_ids"],
};

/// Names of the tensors of Nomic BERT.
pub(super) const NOMIC: Style = Style {
    prefixes: &["bert.", "nomic_bert.", ""],
    global: &[
        ("token_embd.weight", &["embeddings.word_embeddings.weight"]),
        ("token_types.weight", &["embeddings.token_type_embeddings.weight"]),
        ("token_embd_norm.weight", &["emb_ln.weight"]),
    ],
    head: &[],
    layers: "encoder.layers.",
    layer: &[
        ("attn_qkv.weight", &["attn.Wqkv.weight"]),
        ("attn_output.weight", &["attn.out_proj.weight"]),
        ("attn_output_norm.weight", &["norm1.weight"]),
        ("ffn_up.weight", &["mlp.fc11.weight"]),
        ("ffn_gate.weight", &["mlp.fc12.weight"]),
        ("ffn_down.weight", &["mlp.fc2.weight"]),
        ("layer_output_norm.weight", &["norm2.weight"]),
    ],
    gguf: &[],
    foreign: &["cls.", "lm_head.", "pooler."],
};

/// Names of the tensors of Jina Embeddings v2, in the spelling of the first models and in that of the models whose queries and
/// keys are normed.
pub(super) const JINA_V2: Style = Style {
    prefixes: &["bert.", ""],
    global: EMBEDDINGS,
    head: &[("cls.weight", &["*pooler.dense.weight"]), ("cls.output.weight", &["classifier.weight"])],
    layers: "encoder.layer.",
    layer: &[
        ("attn_q.weight", &["attention.self.query.weight"]),
        ("attn_k.weight", &["attention.self.key.weight"]),
        ("attn_v.weight", &["attention.self.value.weight"]),
        ("attn_q_norm.weight", &["attention.self.layer_norm_q.weight"]),
        ("attn_k_norm.weight", &["attention.self.layer_norm_k.weight"]),
        ("attn_output.weight", &["attention.output.dense.weight"]),
        ("attn_output_norm.weight", &["attention.output.LayerNorm.weight"]),
        ("attn_norm_2.weight", &["layer_norm_1.weight"]),
        ("ffn_gate_up.weight", &["mlp.gated_layers.weight"]),
        ("ffn_up_gate.weight", &["mlp.up_gated_layer.weight"]),
        ("ffn_down.weight", &["mlp.wo.weight", "mlp.down_layer.weight"]),
        ("layer_output_norm.weight", &["mlp.layernorm.weight", "layer_norm_2.weight"]),
    ],
    // The gate and what passes it are one matrix, which goes by the name of the latter.
    gguf: &[("ffn_gate_up.weight", "ffn_up.weight")],
    foreign: &["cls.", "pooler.", "embeddings.position_ids"],
};

/// Names of the tensors of GTE, as Alibaba publishes it under the model type `new`.
pub(super) const GTE: Style = Style {
    prefixes: &["new.", "gte.", ""],
    global: EMBEDDINGS,
    head: &[("cls.weight", &["*pooler.dense.weight"]), ("cls.output.weight", &["classifier.weight"])],
    layers: "encoder.layer.",
    layer: &[
        ("attn_qkv.weight", &["attention.qkv_proj.weight"]),
        ("attn_output.weight", &["attention.o_proj.weight"]),
        ("attn_output_norm.weight", &["attn_ln.weight"]),
        ("ffn_up_gate.weight", &["mlp.up_gate_proj.weight"]),
        ("ffn_down.weight", &["mlp.down_proj.weight"]),
        ("layer_output_norm.weight", &["mlp_ln.weight"]),
    ],
    gguf: &[],
    foreign: &["lm_head.", "pooler.", "embeddings.position_ids"],
};

/// Names of the tensors of ModernBERT.
pub(super) const MODERN_BERT: Style = Style {
    prefixes: &["model.", ""],
    global: &[
        ("token_embd.weight", &["embeddings.tok_embeddings.weight"]),
        ("token_embd_norm.weight", &["embeddings.norm.weight"]),
        ("output_norm.weight", &["final_norm.weight"]),
    ],
    head: &[
        ("cls.weight", &["head.dense.weight"]),
        ("cls.norm.weight", &["head.norm.weight"]),
        ("cls.output.weight", &["classifier.weight"]),
    ],
    layers: "layers.",
    layer: &[
        ("attn_norm.weight", &["attn_norm.weight"]),
        ("attn_qkv.weight", &["attn.Wqkv.weight"]),
        ("attn_output.weight", &["attn.Wo.weight"]),
        ("ffn_norm.weight", &["mlp_norm.weight"]),
        ("ffn_gate_up.weight", &["mlp.Wi.weight"]),
        ("ffn_down.weight", &["mlp.Wo.weight"]),
    ],
    // The gate and what passes it are one matrix, which goes by the name of the latter.
    gguf: &[("ffn_gate_up.weight", "ffn_up.weight")],
    // The head that predicts tokens.
    foreign: &["head.", "decoder."],
};

/// Names of the tensors of XLM-R in Jina's own code: Jina Reranker v2, and Jina Embeddings v3 as transformers writes it.
pub(super) const JINA_XLM_R: Style = Style {
    prefixes: &["roberta.", ""],
    global: &[
        ("token_embd.weight", &["embeddings.word_embeddings.weight"]),
        ("token_types.weight", &["embeddings.token_type_embeddings.weight"]),
        ("position_embd.weight", &["embeddings.position_embeddings.weight"]),
        ("token_embd_norm.weight", &["emb_ln.weight"]),
    ],
    head: &[
        ("cls.weight", &["classifier.dense.weight"]),
        ("cls.output.weight", &["classifier.out_proj.weight"]),
    ],
    layers: "encoder.layers.",
    layer: &[
        ("attn_qkv.weight", &["mixer.Wqkv.weight"]),
        ("attn_output.weight", &["mixer.out_proj.weight"]),
        ("attn_output_norm.weight", &["norm1.weight"]),
        ("ffn_up.weight", &["mlp.fc1.weight"]),
        ("ffn_down.weight", &["mlp.fc2.weight"]),
        ("layer_output_norm.weight", &["norm2.weight"]),
    ],
    gguf: &[],
    foreign: &["lm_head.", "pooler.", "embeddings.position_ids"],
};

const EMBEDDINGS: Table = &[
    ("token_embd.weight", &["embeddings.word_embeddings.weight"]),
    ("token_types.weight", &["embeddings.token_type_embeddings.weight"]),
    ("position_embd.weight", &["embeddings.position_embeddings.weight"]),
    ("token_embd_norm.weight", &["embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"]),
];

/// Spells the names of an encoder's tensors as one checkpoint does.
#[derive(Clone, Copy, Debug)]
pub(super) struct EncoderNames {
    container: Container,
    style: &'static Style,
    prefix: &'static str,
}

impl EncoderNames {
    pub fn of(source: &Source, style: &'static Style) -> Self {
        let table = style.global.iter().find(|(ours, _)| *ours == "token_embd.weight");
        let has_table = |prefix: &&&str| {
            let spellings = table.iter().flat_map(|(_, theirs)| *theirs);
            spellings.map(|theirs| format!("{prefix}{theirs}")).any(|name| source.tensors.contains_key(&name))
        };
        let prefix = style.prefixes.iter().find(has_table).unwrap_or(&"");
        Self { container: source.container, style, prefix }
    }

    /// True if the tensors of `source` are spelled in this style.
    pub fn spell(&self, source: &Source) -> bool {
        first(source, &self.layer(0, "attn_output.weight")).is_some()
    }
}

impl EncoderNames {
    /// GGUF's name of the Hugging Face tensor `name`; `None` if it has none. Tensors of a head have a name only if `has_head`.
    pub fn gguf_name(&self, name: &str, has_head: bool) -> Option<String> {
        let head = if has_head { self.style.head } else { &[] };
        let mut known = self.style.global.iter().chain(head).flat_map(|(ours, _)| with_bias(ours));
        if let Some(ours) = known.find(|ours| self.global(ours).iter().any(|theirs| theirs == name)) {
            return Some(ours);
        }
        let inner = name.strip_prefix(self.prefix)?.strip_prefix(self.style.layers)?;
        let layer: usize = inner.split_once('.')?.0.parse().ok()?;
        let mut known = self.style.layer.iter().flat_map(|(ours, _)| with_bias(ours));
        let ours = known.find(|ours| self.layer(layer, ours).iter().any(|theirs| theirs == name))?;
        Some(format!("blk.{layer}.{}", self.in_gguf(&ours)))
    }

    /// The name in GGUF of a tensor of a layer.
    fn in_gguf<'n>(&self, name: &'n str) -> &'n str {
        self.style.gguf.iter().find(|(ours, _)| *ours == name).map_or(name, |(_, theirs)| theirs)
    }

    /// True if a tensor that no part of the model used may be ignored without a warning.
    pub fn passes_over(&self, name: &str) -> bool {
        self.is_foreign(name)
    }
}

/// A tensor's name, and that of its bias.
fn with_bias(name: &str) -> [String; 2] {
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    [name.into(), format!("{stem}.bias")]
}

impl Spelling for EncoderNames {
    fn global(&self, name: &str) -> Vec<String> {
        if self.container == Container::Gguf {
            return vec![name.into()];
        }
        let inside =
            spelled(self.style.global, name).into_iter().map(|name| format!("{}{name}", self.prefix));
        let head = spelled(self.style.head, name).into_iter().map(|name| match name.strip_prefix('*') {
            Some(inside) => format!("{}{inside}", self.prefix),
            None => name,
        });
        inside.chain(head).collect()
    }

    fn layer(&self, layer: usize, name: &str) -> Vec<String> {
        if self.container == Container::Gguf {
            return vec![format!("blk.{layer}.{}", self.in_gguf(name))];
        }
        let before = format!("{}{}{layer}.", self.prefix, self.style.layers);
        spelled(self.style.layer, name).into_iter().map(|name| format!("{before}{name}")).collect()
    }

    fn expert(&self, _: usize, _: &str, _: usize) -> Vec<String> {
        Vec::new()
    }

    fn is_foreign(&self, name: &str) -> bool {
        if self.container == Container::Gguf {
            // A head that nothing reads.
            return name == "cls.weight" || name == "cls.bias";
        }
        let inner = name.strip_prefix(self.prefix).unwrap_or(name);
        let foreign = |name: &str| self.style.foreign.iter().any(|foreign| name.starts_with(foreign));
        foreign(inner) || foreign(name) || name.ends_with("rotary_emb.inv_freq")
    }
}

/// The spellings of `name` in `table`. A bias has the spelling of its weight with the other ending.
fn spelled(table: Table, name: &str) -> Vec<String> {
    let (weight, is_bias) = match name.strip_suffix(".bias") {
        Some(stem) => (format!("{stem}.weight"), true),
        None => (name.into(), false),
    };
    let theirs = table.iter().filter(|(ours, _)| *ours == weight).flat_map(|(_, theirs)| *theirs);
    let bias = |name: &str| match name.strip_suffix(".gamma") {
        Some(stem) => format!("{stem}.beta"),
        None => format!("{}.bias", name.strip_suffix(".weight").unwrap_or(name)),
    };
    theirs.map(|name| if is_bias { bias(name) } else { (*name).into() }).collect()
}
