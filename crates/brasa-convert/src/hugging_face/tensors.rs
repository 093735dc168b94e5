//! Tensors: renamed, reordered, stacked.

use std::collections::BTreeMap;

use brasa_formats::{Checkpoint, StorageFormat, Tensor};

use super::config::Config;
use super::family::Family;
use super::names::{Place, place};
use super::rope::Rope;
use crate::model::OutTensor;
use crate::source::Source;
use crate::{ConvertError, Recipe, Result};

/// Every tensor of the output.
pub fn collect(checkpoint: &Checkpoint, config: &Config, recipe: Recipe) -> Result<Vec<OutTensor>> {
    let mut out = Vec::new();
    for (name, values) in Rope::of(config).factors(config)? {
        out.push(OutTensor {
            name: name.to_owned(),
            shape: vec![values.len()],
            source: Source::values(&values),
            base: StorageFormat::F32,
        });
    }
    let mut pieces: BTreeMap<String, BTreeMap<usize, &Tensor>> = BTreeMap::new();
    let mut halves: BTreeMap<String, BTreeMap<usize, &Tensor>> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        match place(config.family, &tensor.name) {
            Place::Skipped => {}
            Place::Unknown => {
                let family = config.family.architecture();
                return Err(ConvertError::tensor(&tensor.name, format!("no such tensor in {family}")));
            }
            Place::Whole(name) if name == "output.weight" && config.is_tied() => {}
            Place::Whole(name) => {
                let source = oriented(tensor, &name, config)?;
                out.push(finish(name, tensor.shape.clone(), source, recipe));
            }
            Place::Expert { name, expert } => {
                if pieces.entry(name).or_default().insert(expert, tensor).is_some() {
                    return Err(ConvertError::tensor(&tensor.name, "this expert is given twice"));
                }
            }
            Place::GateAndUp { gate, up } => {
                for (half, name) in [gate, up].into_iter().enumerate() {
                    let (shape, source) = half_of(tensor, half)?;
                    out.push(finish(name, shape, source, recipe));
                }
            }
            Place::HalfOf { name, half } => {
                halves.entry(name).or_default().insert(half, tensor);
            }
        }
    }
    for (name, experts) in pieces {
        let (shape, source) = stack(&name, &experts, config)?;
        out.push(finish(name, shape, source, recipe));
    }
    for (name, halves) in halves {
        let (shape, source) = join(&name, &halves)?;
        out.push(finish(name, shape, source, recipe));
    }
    for required in ["token_embd.weight", "output_norm.weight"] {
        if !out.iter().any(|tensor| tensor.name == required) {
            return Err(ConvertError::tensor(required, "nothing in the checkpoint becomes this tensor"));
        }
    }
    if !config.is_tied()
        && !out.iter().any(|tensor| tensor.name == "output.weight")
        && !config.family.is_gemma()
    {
        let problem = "lm_head.weight is missing, and config.json does not say tie_word_embeddings";
        return Err(ConvertError::tensor("output.weight", problem));
    }
    Ok(out)
}

/// What a family's GGUF form does to a tensor's values.
fn oriented(tensor: &Tensor, name: &str, config: &Config) -> Result<Source> {
    let source = Source::of(tensor);
    if config.family.norms_are_offsets() && name.ends_with("norm.weight") {
        return Ok(source.shifted(1.0));
    }
    if config.family != Family::Llama {
        return Ok(source);
    }
    let is =
        |part: &str| name.ends_with(&format!("{part}.weight")) || name.ends_with(&format!("{part}.bias"));
    let heads = if is("attn_q") {
        config.require("num_attention_heads")?
    } else if is("attn_k") {
        config.kv_heads()?
    } else {
        return Ok(source);
    };
    let (heads, outputs) = (heads as usize, tensor.shape.first().copied().unwrap_or(0));
    if heads == 0 || outputs == 0 || outputs % (2 * heads) != 0 {
        let problem = format!("shape {:?}, expected a multiple of 2 × {heads} heads", tensor.shape);
        return Err(ConvertError::tensor(&tensor.name, problem));
    }
    Ok(source.interleaved(heads))
}

/// A tensor with the format it has where nothing is quantised.
fn finish(name: String, shape: Vec<usize>, source: Source, recipe: Recipe) -> OutTensor {
    let main = recipe.main_format();
    let own = if source.format().is_float() { source.format() } else { StorageFormat::F32 };
    // Vectors, norms and routers are small, and their rounding would be felt everywhere.
    let precise = shape.len() < 2
        || name.ends_with("_norm.weight")
        || name.ends_with("ffn_gate_inp.weight")
        || !name.ends_with(".weight");
    let base = match () {
        () if precise => StorageFormat::F32,
        () if main.is_float() => main,
        () => own,
    };
    OutTensor { name, shape, source, base }
}

/// One half of the rows of every expert: `[E, 2F, D]` to `[E, F, D]`.
fn half_of(tensor: &Tensor, half: usize) -> Result<(Vec<usize>, Source)> {
    let [experts, both, width] = tensor.shape[..] else {
        let problem = format!("shape {:?}, expected [experts, 2 · width, inputs]", tensor.shape);
        return Err(ConvertError::tensor(&tensor.name, problem));
    };
    if both % 2 != 0 {
        let problem = format!("shape {:?}, expected as many rows of gate as of up", tensor.shape);
        return Err(ConvertError::tensor(&tensor.name, problem));
    }
    let rows = both / 2;
    let windows = (0..experts).map(|expert| (tensor, expert * both + half * rows, rows));
    Ok((vec![experts, rows, width], Source::windows(windows)))
}

/// One tensor `[E, N, K]` of E tensors `[N, K]`.
fn stack(name: &str, experts: &BTreeMap<usize, &Tensor>, config: &Config) -> Result<(Vec<usize>, Source)> {
    let expected = config.experts()?.ok_or_else(|| ConvertError::config("num_experts", "missing"))? as usize;
    if experts.len() != expected || experts.keys().next_back() != Some(&(expected - 1)) {
        let problem = format!("{} experts, expected {expected}", experts.len());
        return Err(ConvertError::tensor(name, problem));
    }
    let first = experts.values().next().map(|tensor| tensor.shape.clone()).unwrap_or_default();
    if let Some(odd) = experts.values().find(|tensor| tensor.shape != first) {
        let problem = format!("shape {:?}, the other experts have {first:?}", odd.shape);
        return Err(ConvertError::tensor(&odd.name, problem));
    }
    let mut shape = vec![expected];
    shape.extend(first);
    Ok((shape, Source::stacked(experts.values().copied())))
}

/// One tensor `[E, 2F, D]` of two tensors `[E, F, D]`.
fn join(name: &str, halves: &BTreeMap<usize, &Tensor>) -> Result<(Vec<usize>, Source)> {
    let (Some(gate), Some(up)) = (halves.get(&0), halves.get(&1)) else {
        return Err(ConvertError::tensor(name, "gate_proj and up_proj have to come together"));
    };
    let ([experts, rows, width], true) = (&gate.shape[..], gate.shape == up.shape) else {
        let problem =
            format!("shape {:?} beside {:?}, expected two of [experts, width, inputs]", up.shape, gate.shape);
        return Err(ConvertError::tensor(&up.name, problem));
    };
    let windows =
        (0..*experts).flat_map(|expert| [(*gate, expert * rows, *rows), (*up, expert * rows, *rows)]);
    Ok((vec![*experts, 2 * rows, *width], Source::windows(windows)))
}
