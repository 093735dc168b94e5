//! Low-rank adapters of a model: from the names and row orders of their files to the weights of its graph, and back.
//!
//! An adapter's layers go by *canonical* names, the same whatever the container of base and adapter: `layers.3.attn_q`,
//! `output`. Rows of `B` lie as Hugging Face has them. GGUF files of Llamas have the rows of queries and keys in another order,
//! and so has a base from such a file; only here is that known.

use std::collections::BTreeMap;
use std::ops::Range;

use brasa_formats::{AdapterFile, AdapterForm, Bytes, LowRankPair, Payload, Tensor};
use brasa_graph::op::RopeLayout;
use brasa_graph::pass::{DenseChange, LowRank, row_norms};
use brasa_graph::{Weight, WeightId, WeightPart};

use crate::names::{GgufPlace, Names, PREFIXES, Spelling};
use crate::spec::{FfnSpec, Head, KvSpec, ModelSpec, ValueSource};
use crate::{Model, ModelError, Result, family};

/// A low-rank adapter by canonical names, rows in Hugging Face's order.
#[derive(Clone, Debug, Default)]
pub struct Adapter {
    /// The adapted layers, each once.
    pub pairs: Vec<LowRankPair>,
}

/// A linear layer of a model that an adapter can change.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptableLayer {
    /// The canonical name, e.g. `layers.3.attn_q`.
    pub name: String,
    /// The graph's weight that holds the layer.
    pub weight: WeightId,
    /// Rows of the layer in the stacked weight; for a stack of experts, rows in each expert's matrix.
    pub rows: Range<usize>,
    /// Elements of a row: the layer's inputs.
    pub inputs: usize,
    /// Number of experts in a stack of experts; `None` for a single layer.
    pub experts: Option<usize>,
    /// True if the checkpoint stores the layer as one tensor. `attn_q` and `attn_qkv` are both layers of a model; one of them is stored.
    pub is_stored: bool,
    /// Heads of the layer if the base stores its rows in GGUF's order; `None` otherwise.
    interleaved: Option<Heads>,
}

/// Rows of attention heads.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Heads {
    head_dim: usize,
    rotary_dim: usize,
}

impl Adapter {
    /// Converts `file` to an adapter for `model`, under canonical names.
    ///
    /// # Errors
    ///
    /// [`ModelError::Adapter`] if the file is for another architecture, if a name is no linear layer of the model, or if shapes
    /// do not fit.
    pub fn new(file: AdapterFile, model: &Model) -> Result<Self> {
        let expected = family::gguf_architecture(model.spec.family);
        if let Some(found) = file.architecture.filter(|found| found != expected) {
            return Err(ModelError::Adapter {
                layer: "general.architecture".into(),
                what: format!("found {found}, expected {expected}, the base's"),
            });
        }
        let mut experts = Experts::default();
        let mut pairs = Vec::new();
        for mut pair in file.pairs {
            let place = match file.form {
                AdapterForm::Gguf => Some(pair.name.clone()).filter(|name| !name.starts_with("layers.")),
                AdapterForm::Peft | AdapterForm::Mlx => match hugging_face_place(&pair.name, &model.spec) {
                    Some(GgufPlace::Tensor { name, .. }) => name.strip_suffix(".weight").map(String::from),
                    Some(GgufPlace::Expert { name, expert }) => {
                        experts.add(name, expert, pair)?;
                        continue;
                    }
                    _ => None,
                },
            };
            let Some(place) = place else {
                return Err(refused(&pair.name, format!("no linear layer of a {} model", model.spec.family)));
            };
            let name = canonical(&place, &pair, &model.spec);
            if file.form == AdapterForm::Gguf
                && expected == "llama"
                && let Some(heads) = heads_of(&name, &model.spec)
            {
                pair.b = reordered(&pair.b, |row| heads.interleaved(row));
            }
            pairs.push(LowRankPair { name, ..pair });
        }
        pairs.extend(experts.stacks()?);
        pairs.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some([pair, _]) = pairs.array_windows().find(|[a, b]| a.name == b.name) {
            return Err(refused(&pair.name, "two names of one layer".into()));
        }
        let adapter = Self { pairs };
        let layers = all_layers(model);
        for pair in &adapter.pairs {
            find(&layers, &pair.name)?.check(pair)?;
        }
        Ok(adapter)
    }

    /// The low-rank products for the model's graph, for [`add_low_rank`](brasa_graph::pass::add_low_rank); scales are multiplied
    /// by `scale`.
    ///
    /// DoRA's gains are magnitudes over the norms of the adapted rows, for which every row of these layers is decoded once.
    ///
    /// # Errors
    ///
    /// [`ModelError::Adapter`] for a layer that the model does not have or of another shape, and for DoRA's magnitudes with a `scale`
    /// that is [refused](Self::check_scale).
    pub fn low_ranks(&self, model: &Model, scale: f32) -> Result<Vec<LowRank>> {
        self.check_scale(scale)?;
        let layers = all_layers(model);
        self.pairs.iter().map(|pair| find(&layers, &pair.name)?.low_rank(model, pair, scale)).collect()
    }

    /// Checks that the adapter can be applied with the factor `scale`.
    ///
    /// # Errors
    ///
    /// [`ModelError::Adapter`] for DoRA's magnitudes and a `scale` other than 1: between the base and the adapter there are no magnitudes.
    pub fn check_scale(&self, scale: f32) -> Result<()> {
        #[expect(clippy::float_cmp, reason = "what nobody scaled is exactly 1")]
        match self.pairs.iter().find(|pair| pair.magnitude.is_some() && scale != 1.0) {
            Some(pair) => {
                let what = format!("scale {scale} of an adapter with DoRA's magnitudes, expected 1");
                Err(refused(&pair.name, what))
            }
            None => Ok(()),
        }
    }

    /// Converts the adapter to `form`, with the names of `model`'s checkpoint or, if that is GGUF, those of its family.
    ///
    /// # Errors
    ///
    /// [`ModelError::Adapter`] for a layer that the model does not have.
    pub fn file(&self, model: &Model, form: AdapterForm) -> Result<AdapterFile> {
        let names = Names::hugging_face(model.prefix);
        let layers = all_layers(model);
        let spelled = |pair: &LowRankPair| {
            find(&layers, &pair.name)?.check(pair)?;
            let mut pair = pair.clone();
            if form == AdapterForm::Gguf {
                if family::gguf_architecture(model.spec.family) == "llama"
                    && let Some(heads) = heads_of(&pair.name, &model.spec)
                {
                    pair.b = reordered(&pair.b, |row| heads.split_half(row));
                    pair.magnitude =
                        pair.magnitude.map(|vector| reordered_vector(&vector, |row| heads.split_half(row)));
                }
                pair.name = gguf_name(&pair.name);
            } else {
                pair.name = hugging_face_name(&names, &pair.name, model.spec.family)
                    .ok_or_else(|| refused(&pair.name, "no name in Hugging Face's spelling".into()))?;
            }
            Ok(pair)
        };
        let mut pairs = self.pairs.iter().map(spelled).collect::<Result<Vec<_>>>()?;
        pairs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(AdapterFile {
            form,
            architecture: Some(family::gguf_architecture(model.spec.family).into()),
            base: None,
            num_layers: Some(model.spec.layers.len()),
            pairs,
        })
    }
}

impl AdaptableLayer {
    /// The layers of `model` that its checkpoint stores as tensors, first layer first.
    pub fn of(model: &Model) -> Vec<Self> {
        all_layers(model).into_iter().filter(|layer| layer.is_stored).collect()
    }

    /// The layer's name in Hugging Face's spelling, without `.weight`, e.g. `model.layers.3.self_attn.q_proj`; `None` if it has none
    /// there.
    pub fn hugging_face_name(&self, model: &Model) -> Option<String> {
        hugging_face_name(&Names::hugging_face(model.prefix), &self.name, model.spec.family)
    }

    /// Makes the pair of this layer for an [`Adapter`], from matrices in the graph's order of rows.
    ///
    /// Shapes: `a` `[r, inputs]`, `b` `[rows, r]`, with experts in front if the layer has them; `magnitude` `[rows]`.
    pub fn pair(&self, a: Tensor, mut b: Tensor, scale: f32, mut magnitude: Option<Tensor>) -> LowRankPair {
        if let Some(heads) = self.interleaved {
            b = reordered(&b, |row| heads.interleaved(row));
            magnitude = magnitude.map(|vector| reordered_vector(&vector, |row| heads.interleaved(row)));
        }
        LowRankPair { name: self.name.clone(), a, b, scale, magnitude }
    }

    /// `B` and the magnitudes of a pair of this layer, with rows in the graph's order: the inverse of [`pair`](Self::pair).
    ///
    /// # Errors
    ///
    /// [`ModelError::Adapter`] for a pair of another shape.
    pub fn rows_of(&self, pair: &LowRankPair) -> Result<(Tensor, Option<Tensor>)> {
        self.check(pair)?;
        Ok(match self.interleaved {
            Some(heads) => {
                let from = |row| heads.split_half(row);
                let vector = pair.magnitude.as_ref().map(|vector| reordered_vector(vector, from));
                (reordered(&pair.b, from), vector)
            }
            None => (pair.b.clone(), pair.magnitude.clone()),
        })
    }

    fn low_rank(&self, model: &Model, pair: &LowRankPair, scale: f32) -> Result<LowRank> {
        let (b, magnitude) = self.rows_of(pair)?;
        let gain = magnitude.map(|magnitude| self.gain(model, pair, &b, &magnitude)).transpose()?;
        let weight = |tensor: Tensor| {
            let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
            Weight::new(name, &shape, vec![WeightPart::whole(tensor)])
        };
        let scale = pair.scale * scale;
        Ok(LowRank {
            weight: self.weight,
            rows: self.rows.clone(),
            a: weight(pair.a.clone())?,
            b: weight(b)?,
            scale,
            gain: gain.map(weight).transpose()?,
        })
    }

    /// DoRA's gains: magnitudes divided by the norms of the adapted rows, `[rows]`, in the graph's order of rows.
    fn gain(&self, model: &Model, pair: &LowRankPair, b: &Tensor, magnitude: &Tensor) -> Result<Tensor> {
        if self.experts.is_some() {
            return Err(refused(&self.name, "DoRA's magnitudes of experts are not supported".into()));
        }
        let values = |tensor: &Tensor| {
            let mut values = vec![0.0; tensor.rows() * tensor.row_len()];
            match tensor.decode_rows(0..tensor.rows(), &mut values) {
                Ok(()) => Ok(values),
                Err(error) => Err(refused(&self.name, error.to_string())),
            }
        };
        let (a, b) = (values(&pair.a)?, values(b)?);
        let change = DenseChange { a: &a, b: &b, scale: pair.scale };
        let norms = row_norms(model.graph.weight(self.weight), self.rows.clone(), Some(change))
            .map_err(|error| refused(&self.name, error.to_string()))?;
        // A row of zeros has no direction.
        let gain = |(m, norm): (&f32, &f32)| if *norm > 0.0 { m / norm } else { 0.0 };
        let gains: Vec<f32> = values(magnitude)?.iter().zip(&norms).map(gain).collect();
        Ok(Tensor::of_floats("gain", vec![gains.len()], &gains))
    }

    fn check(&self, pair: &LowRankPair) -> Result<()> {
        let expected = (self.experts, self.rows.len(), self.inputs);
        let found = (pair.experts(), pair.outputs(), pair.inputs());
        if found == expected {
            return Ok(());
        }
        let shown = |(experts, rows, inputs): (Option<usize>, usize, usize)| match experts {
            Some(experts) => format!("{experts} experts of [{rows}, {inputs}]"),
            None => format!("[{rows}, {inputs}]"),
        };
        let what = format!("a pair for a layer of {}, but the base has {}", shown(found), shown(expected));
        Err(refused(&self.name, what))
    }
}

fn refused(layer: &str, what: String) -> ModelError {
    ModelError::Adapter { layer: layer.into(), what }
}

fn find<'a>(layers: &'a [AdaptableLayer], name: &str) -> Result<&'a AdaptableLayer> {
    layers.iter().find(|layer| layer.name == name).ok_or_else(|| {
        let what = match name {
            "token_embd" => "a low-rank pair of the embedding is not supported",
            "output" => "the head is the embedding table, and cannot be adapted alone",
            _ => "the base has no linear layer of this name",
        };
        refused(name, what.into())
    })
}

/// Every linear layer of the model, those in one stored tensor with others included.
fn all_layers(model: &Model) -> Vec<AdaptableLayer> {
    let weights = model.graph.weights();
    let ids: BTreeMap<&str, u32> = weights.iter().zip(0..).map(|(weight, id)| (&*weight.name, id)).collect();
    let mut layers = Vec::new();
    let mut add = |prefix: &str, weight: &str, parts: &[(&str, usize)], whole: Option<&str>| {
        let Some(&id) = ids.get(&*format!("{prefix}{weight}")) else { return };
        let held = &weights[id as usize];
        let (experts, outputs) = match held.shape[..] {
            [experts, outputs, _] => (Some(experts), outputs),
            _ => (None, held.rows()),
        };
        let is_whole = whole.is_some() && held.parts.len() == 1;
        let mut layer = |name: &str, rows: Range<usize>, is_stored| {
            let name = format!("{prefix}{name}");
            let reorders =
                |attention: &crate::AttentionSpec| attention.rope.layout == RopeLayout::Interleaved;
            let interleaved = attention_of(&name, &model.spec).filter(|attention| reorders(attention));
            layers.push(AdaptableLayer {
                interleaved: interleaved.and_then(|_| heads_of(&name, &model.spec)),
                name,
                weight: WeightId(id),
                rows,
                inputs: held.row_len(),
                experts,
                is_stored,
            });
        };
        let mut start = 0;
        for &(name, rows) in parts {
            let rows = if rows == 0 { outputs } else { rows };
            layer(name, start..start + rows, !is_whole);
            start += rows;
        }
        if let Some(name) = whole {
            layer(name, 0..outputs, is_whole);
        }
    };
    add("", "per_layer_model_proj", &[("per_layer_model_proj", 0)], None);
    for (index, layer) in model.spec.layers.iter().enumerate() {
        let prefix = format!("layers.{index}.");
        let (q, kv) = (layer.attention.q_dim(), layer.attention.kv_dim());
        match layer.attention.kv {
            KvSpec::Own { value: ValueSource::Projection, .. } => {
                add(&prefix, "qkv", &[("attn_q", q), ("attn_k", kv), ("attn_v", kv)], Some("attn_qkv"));
            }
            KvSpec::Own { value: ValueSource::Key, .. } => {
                add(&prefix, "qkv", &[("attn_q", q), ("attn_k", kv)], None);
            }
            KvSpec::Shared { .. } => add(&prefix, "q", &[("attn_q", q)], None),
        }
        add(&prefix, "attn_output", &[("attn_output", 0)], None);
        if let FfnSpec::Dense(dense) | FfnSpec::DenseAndExperts(dense, _) = layer.ffn {
            let parts = [("ffn_gate", dense.width), ("ffn_up", dense.width)];
            add(&prefix, "gate_up", &parts, Some("ffn_gate_up"));
        }
        for name in
            ["ffn_down", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "inp_gate", "proj"]
        {
            add(&prefix, name, &[(name, 0)], None);
        }
    }
    if model.spec.head == Head::Untied {
        add("", "output", &[("output", 0)], None);
    }
    layers
}

/// The canonical name of a pair's layer: `blk.3.attn_q` becomes `layers.3.attn_q`. GGUF names a matrix of gate and up like up
/// alone; its number of rows distinguishes the two.
fn canonical(place: &str, pair: &LowRankPair, spec: &ModelSpec) -> String {
    let Some((layer, name)) = place.strip_prefix("blk.").and_then(|inner| inner.split_once('.')) else {
        return place.into();
    };
    let ffn =
        layer.parse().ok().and_then(|layer: usize| spec.layers.get(layer)).map(|layer| layer.ffn.clone());
    let is_both = match ffn {
        Some(FfnSpec::Dense(dense) | FfnSpec::DenseAndExperts(dense, _)) => pair.outputs() == 2 * dense.width,
        _ => false,
    };
    let name = if name == "ffn_up" && is_both { "ffn_gate_up" } else { name };
    format!("layers.{layer}.{name}")
}

fn gguf_name(canonical: &str) -> String {
    let name = match canonical.strip_prefix("layers.") {
        Some(inner) => format!("blk.{inner}"),
        None => canonical.into(),
    };
    // See `canonical`.
    name.strip_suffix("ffn_gate_up").map_or(name.clone(), |stem| format!("{stem}ffn_up"))
}

/// The place in GGUF of a module of Hugging Face or MLX, with any prefix around the model.
fn hugging_face_place(module: &str, spec: &ModelSpec) -> Option<GgufPlace> {
    let tensor = format!("{module}.weight");
    PREFIXES.iter().find_map(|prefix| {
        let names = Names::hugging_face(prefix);
        // Stacks that are parameters have no `.weight`, and their pairs no such name.
        names.gguf_place(&tensor, spec).filter(|place| *place != GgufPlace::Foreign)
    })
}

fn hugging_face_name(names: &Names, canonical: &str, family: &str) -> Option<String> {
    let spelled = match canonical.strip_prefix("layers.").and_then(|inner| inner.split_once('.')) {
        Some((layer, name)) => names.layer(layer.parse().ok()?, &format!("{name}.weight")),
        None => names.global(&format!("{canonical}.weight")),
    };
    // Where spellings differ by family, they stand in this order.
    let own = match family {
        "mixtral" => 1,
        "gemma4" => 2,
        _ => 0,
    };
    let chosen = spelled.get(own).filter(|_| spelled.len() > 2).or(spelled.first())?;
    chosen.strip_suffix(".weight").map(String::from)
}

fn attention_of<'a>(canonical: &str, spec: &'a ModelSpec) -> Option<&'a crate::AttentionSpec> {
    let (layer, name) = canonical.strip_prefix("layers.")?.split_once('.')?;
    matches!(name, "attn_q" | "attn_k").then_some(())?;
    Some(&spec.layers.get(layer.parse::<usize>().ok()?)?.attention)
}

/// The heads of a layer whose rows GGUF has in another order in a Llama.
fn heads_of(canonical: &str, spec: &ModelSpec) -> Option<Heads> {
    let attention = attention_of(canonical, spec)?;
    Some(Heads { head_dim: attention.head_dim, rotary_dim: attention.rope.rotary_dim })
}

impl Heads {
    /// The index in split-half order (rows of a pair half of the rotated rows apart) of the row `row` of interleaved order (rows
    /// of a pair adjacent).
    fn split_half(self, row: usize) -> usize {
        let (head, within) = (row / self.head_dim, row % self.head_dim);
        let half = self.rotary_dim / 2;
        let within = if within < 2 * half { within % 2 * half + within / 2 } else { within };
        head * self.head_dim + within
    }

    /// The index in interleaved order (rows of a pair adjacent) of the row `row` of split-half order (rows of a pair half of the
    /// rotated rows apart).
    fn interleaved(self, row: usize) -> usize {
        let (head, within) = (row / self.head_dim, row % self.head_dim);
        let half = self.rotary_dim / 2;
        let within = if within < 2 * half { within % half * 2 + within / half } else { within };
        head * self.head_dim + within
    }
}

/// Reorders rows: row `r` of the result is row `from(r)` of `tensor`. Returns `tensor` unchanged if `from` gives a row outside,
/// which the check of its shape then reports.
fn reordered(tensor: &Tensor, from: impl Fn(usize) -> usize) -> Tensor {
    let rows = tensor.rows();
    let (Payload::Blocks(bytes), Some(row_bytes)) =
        (&tensor.payload, tensor.format.row_bytes(tensor.row_len()))
    else {
        return tensor.clone();
    };
    let mut out = Vec::with_capacity(bytes.len());
    for row in 0..rows {
        match bytes.get(from(row) * row_bytes..(from(row) + 1) * row_bytes) {
            Some(row) => out.extend_from_slice(row),
            None => return tensor.clone(),
        }
    }
    Tensor { payload: Payload::Blocks(Bytes::from(out)), ..tensor.clone() }
}

/// Reorders a vector `[rows]`: element `r` of the result is element `from(r)` of `vector`.
fn reordered_vector(vector: &Tensor, from: impl Fn(usize) -> usize) -> Tensor {
    let column = Tensor { shape: vec![vector.row_len(), 1], ..vector.clone() };
    Tensor { shape: vector.shape.clone(), ..reordered(&column, from) }
}

/// Pairs of single experts, for files that store experts one by one.
#[derive(Default)]
struct Experts(BTreeMap<String, BTreeMap<usize, LowRankPair>>);

impl Experts {
    fn add(&mut self, stack: String, expert: usize, pair: LowRankPair) -> Result<()> {
        let name = pair.name.clone();
        match self.0.entry(stack).or_default().insert(expert, pair) {
            Some(_) => Err(refused(&name, "this expert is given twice".into())),
            None => Ok(()),
        }
    }

    /// A pair for each stack. All experts of one have to be there, equal in rank, scale and format.
    fn stacks(self) -> Result<Vec<LowRankPair>> {
        let stack = |(name, experts): (String, BTreeMap<usize, LowRankPair>)| {
            let name = name.strip_suffix(".weight").unwrap_or(&name).replacen("blk.", "layers.", 1);
            let first = experts.values().next().cloned();
            let Some(first) = first else { return Err(refused(&name, "no expert".into())) };
            let alike = |pair: &LowRankPair| {
                pair.a.shape == first.a.shape
                    && pair.b.shape == first.b.shape
                    && pair.scale.to_bits() == first.scale.to_bits()
                    && (pair.a.format, pair.b.format) == (first.a.format, first.b.format)
                    && pair.magnitude.is_none()
            };
            let numbers_fit = experts.keys().copied().eq(0..experts.len());
            if !numbers_fit || first.experts().is_some() || !experts.values().all(alike) {
                let what = "experts that are adapted differently, or not all of them, are not supported";
                return Err(refused(&name, what.into()));
            }
            let stacked = |of: fn(&LowRankPair) -> &Tensor| {
                let mut bytes = Vec::new();
                for pair in experts.values() {
                    if let Payload::Blocks(own) = &of(pair).payload {
                        bytes.extend_from_slice(own);
                    }
                }
                let shape = [&[experts.len()], &of(&first).shape[..]].concat();
                Tensor { shape, payload: Payload::Blocks(Bytes::from(bytes)), ..of(&first).clone() }
            };
            let (a, b) = (stacked(|pair| &pair.a), stacked(|pair| &pair.b));
            Ok(LowRankPair { name, a, b, scale: first.scale, magnitude: None })
        };
        self.0.into_iter().map(stack).collect()
    }
}
