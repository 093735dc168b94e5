//! Tensors: renamed, reordered, stacked.

use std::collections::BTreeMap;

use brasa_formats::{Checkpoint, StorageFormat, Tensor};
use brasa_models::{Change, FfnSpec, GgufForm, GgufPlace, Head, ModelSpec};

use crate::model::OutTensor;
use crate::source::Source;
use crate::{ConvertError, Recipe, Result};

/// Every expert's gate, up, and both in one tensor.
const GATE: &str = "ffn_gate_exps.weight";
const UP: &str = "ffn_up_exps.weight";
const GATE_AND_UP: &str = "ffn_gate_up_exps.weight";

/// Every tensor of the output.
pub fn collect(
    checkpoint: &Checkpoint,
    form: &GgufForm,
    spec: &ModelSpec,
    recipe: Recipe,
) -> Result<Vec<OutTensor>> {
    let mut out = Vec::new();
    for (name, values) in &form.factors {
        out.push(OutTensor {
            name: (*name).to_owned(),
            shape: vec![values.len()],
            source: Source::values(values),
            base: StorageFormat::F32,
        });
    }
    let mut pieces: BTreeMap<String, BTreeMap<usize, &Tensor>> = BTreeMap::new();
    let mut halves: BTreeMap<String, BTreeMap<usize, &Tensor>> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let no_place = || {
            let problem = format!("no such tensor in {}", form.architecture);
            ConvertError::tensor(&tensor.name, problem)
        };
        match form.place(&tensor.name).ok_or_else(no_place)? {
            GgufPlace::Tensor { name, .. } if name == "output.weight" && spec.head == Head::Tied => {}
            GgufPlace::Tensor { name, .. } if name.ends_with(GATE_AND_UP) && !form.joined_experts => {
                for (half, kind) in [GATE, UP].into_iter().enumerate() {
                    let (shape, source) = half_of(tensor, half)?;
                    out.push(finish(name.replace(GATE_AND_UP, kind), shape, source, recipe));
                }
            }
            GgufPlace::Tensor { name, .. } if name.ends_with(GATE) && form.joined_experts => {
                halves.entry(name.replace(GATE, GATE_AND_UP)).or_default().insert(0, tensor);
            }
            GgufPlace::Tensor { name, .. } if name.ends_with(UP) && form.joined_experts => {
                halves.entry(name.replace(UP, GATE_AND_UP)).or_default().insert(1, tensor);
            }
            GgufPlace::Tensor { name, change, .. } => {
                let source = changed(Source::of(tensor), change);
                out.push(finish(name, tensor.shape.clone(), source, recipe));
            }
            GgufPlace::Expert { name, expert } if !form.joined_experts => {
                if pieces.entry(name).or_default().insert(expert, tensor).is_some() {
                    return Err(ConvertError::tensor(&tensor.name, "this expert is given twice"));
                }
            }
            GgufPlace::Foreign => {}
            _ => return Err(no_place()),
        }
    }
    let experts = spec.layers.iter().find_map(|layer| match layer.ffn {
        FfnSpec::Experts(experts) | FfnSpec::DenseAndExperts(_, experts) => Some(experts.num_experts),
        _ => None,
    });
    for (name, pieces) in pieces {
        let (shape, source) = stack(&name, &pieces, experts.unwrap_or(0))?;
        out.push(finish(name, shape, source, recipe));
    }
    for (name, halves) in halves {
        let (shape, source) = join(&name, &halves)?;
        out.push(finish(name, shape, source, recipe));
    }
    Ok(out)
}

fn changed(source: Source, change: Change) -> Source {
    match change {
        Change::Shift(by) => source.shifted(by),
        Change::Interleave { head_dim, rotary_dim, .. } => source.interleaved(head_dim, rotary_dim),
        _ => source,
    }
}

/// A tensor with the format that it has without quantisation.
pub fn finish(name: String, shape: Vec<usize>, source: Source, recipe: Recipe) -> OutTensor {
    let main = recipe.main_format();
    let own = if source.format().is_float() { source.format() } else { StorageFormat::F32 };
    // Vectors, norms and routers are small, and their rounding would be felt everywhere.
    let precise = shape.len() < 2
        || matches!(name.as_str(), "position_embd.weight" | "token_types.weight")
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
fn stack(name: &str, pieces: &BTreeMap<usize, &Tensor>, experts: usize) -> Result<(Vec<usize>, Source)> {
    let last = pieces.keys().next_back().map_or(0, |last| last + 1);
    if pieces.len() != experts || last != experts {
        return Err(ConvertError::tensor(name, format!("{} experts, expected {experts}", pieces.len())));
    }
    let first = pieces.values().next().map(|tensor| tensor.shape.clone()).unwrap_or_default();
    if let Some(odd) = pieces.values().find(|tensor| tensor.shape != first) {
        let problem = format!("shape {:?}, the other experts have {first:?}", odd.shape);
        return Err(ConvertError::tensor(&odd.name, problem));
    }
    let mut shape = vec![experts];
    shape.extend(first);
    Ok((shape, Source::stacked(pieces.values().copied())))
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
