//! MLX-LM's adapters: matrices the other way round, one plain scale.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::pair::{Part, Parts, check_magnitudes, first_and_dora, padded, scaled, transposed};
use super::{AdapterFile, AdapterForm, LowRankPair, write_directory};
use crate::error::{Fault, Printable};
use crate::{Existing, Result, Tensor};

pub(super) const WEIGHTS: &str = "adapters.safetensors";

pub(super) fn read(
    config_path: &Path,
    config: &Value,
    path: &Path,
    tensors: Vec<Tensor>,
) -> Result<AdapterFile> {
    let fault = |key: &str, problem: String| Fault::new(config_path, problem).of(key);
    match config.get("fine_tune_type") {
        None => {}
        Some(Value::String(kind)) if matches!(&**kind, "lora" | "dora") => {}
        Some(other) => {
            let problem = format!("{}, expected \"lora\" or \"dora\"", Printable(&other.to_string()));
            return Err(fault("fine_tune_type", problem).unsupported());
        }
    }
    let scale = config.pointer("/lora_parameters/scale").and_then(Value::as_f64).map(|scale| scale as f32);
    let Some(scale) = scale else {
        return Err(fault("lora_parameters.scale", "expected a number".into()).missing());
    };
    let is_dora = config.get("fine_tune_type").is_some_and(|kind| kind == "dora");

    let mut parts = Parts::default();
    for tensor in tensors {
        let name = tensor.name.clone();
        let endings = [(".lora_a", Part::A), (".lora_b", Part::B), (".m", Part::Magnitude)];
        let found = endings.into_iter().find_map(|(ending, part)| Some((name.strip_suffix(ending)?, part)));
        let Some((layer, part)) = found else {
            let problem = "no matrix of a low-rank pair; what else an adapter may change is not supported";
            return Err(Fault::new(path, problem).of(name).unsupported());
        };
        // An embedding's `a` has a row for each token, as a linear layer's has one for each input; its name tells them apart.
        let turn = part != Part::Magnitude && tensor.shape.len() == 2;
        let tensor = if turn { transposed(&tensor)? } else { tensor };
        parts.add(path, layer, part, tensor)?;
    }
    let pairs = parts.pairs(path, |_, _| Ok(scale))?;
    check_magnitudes(path, &pairs, is_dora)?;
    let base = config.get("model").and_then(Value::as_str).map(String::from);
    Ok(AdapterFile { form: AdapterForm::Mlx, architecture: None, base, num_layers: None, pairs })
}

pub(super) fn write(adapter: &AdapterFile, path: &Path, existing: Existing) -> Result<()> {
    let (first, is_dora) = first_and_dora(path, &adapter.pairs, "MLX")?;
    // One rank and one scale serve all: zeros fill up, and a pair of another scale gets the difference into B.
    let rank = adapter.pairs.iter().map(LowRankPair::rank).max().unwrap_or(1);
    let scale = if first.scale == 0.0 { 1.0 } else { first.scale };
    let mut tensors = Vec::new();
    for pair in &adapter.pairs {
        let factor = if pair.scale.to_bits() == scale.to_bits() { 1.0 } else { pair.scale / scale };
        let a = padded(&pair.a, Part::A, rank)?;
        let b = padded(&scaled(&pair.b, factor)?, Part::B, rank)?;
        let turned = |tensor: Tensor| if pair.experts().is_none() { transposed(&tensor) } else { Ok(tensor) };
        let named =
            |ending: &str, tensor: Tensor| Tensor { name: format!("{}.{ending}", pair.name), ..tensor };
        tensors.push(named("lora_a", turned(a)?));
        tensors.push(named("lora_b", turned(b)?));
        tensors.extend(pair.magnitude.clone().map(|tensor| named("m", tensor)));
    }
    let mut config = json!({
        "fine_tune_type": if is_dora { "dora" } else { "lora" },
        // All layers: `keys` says which modules of them.
        "num_layers": -1,
        "lora_parameters": {
            "rank": rank,
            "scale": scale,
            "dropout": 0.0,
            "keys": adapter.pairs.iter().map(|pair| pair.name.as_str()).collect::<BTreeSet<_>>(),
        },
    });
    if let Some(base) = &adapter.base {
        config["model"] = base.clone().into();
    }
    write_directory(path, WEIGHTS, "mlx", &tensors, &config, existing)
}
