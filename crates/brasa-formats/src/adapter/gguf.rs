//! llama.cpp's adapters: GGUF files of the type `adapter`.

use std::path::Path;

use super::pair::{self, Part, Parts, scaled};
use super::{AdapterFile, AdapterForm};
use crate::error::Fault;
use crate::gguf::{Metadata, TensorPlan, Writer};
use crate::problems::Problems;
use crate::{Bytes, Existing, OutputFile, Payload, Result, Tensor, gguf};

const ALPHA: &str = "adapter.lora.alpha";

pub(super) fn read(path: &Path, bytes: &Bytes) -> Result<AdapterFile> {
    let mut problems = Problems::default();
    let part = gguf::read_single(path, bytes, &mut problems)?;
    if let Some(problem) = problems.into_first() {
        return Err(problem);
    }
    let metadata = part.metadata;
    let refuse = |key: &str, found: &str, expected: &str| {
        Fault::new(path, format!("{found:?}, expected {expected:?}")).of(key).unsupported()
    };
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = metadata.get::<&str>(key)?.unwrap_or("model");
        if found != expected {
            return Err(refuse(key, found, expected));
        }
    }
    if metadata.contains("adapter.alora.invocation_tokens") {
        let problem = "an adapter that begins at a sequence of tokens (aLoRA) is not supported";
        return Err(Fault::new(path, problem).of("adapter.alora.invocation_tokens").unsupported());
    }
    let alpha = metadata.get::<f32>(ALPHA)?.unwrap_or(0.0);

    let mut parts = Parts::default();
    for tensor in part.tensors {
        let name = tensor.name.clone();
        let found = [(".lora_a", Part::A), (".lora_b", Part::B)]
            .into_iter()
            .find_map(|(ending, part)| Some((name.strip_suffix(ending)?.strip_suffix(".weight")?, part)));
        let Some((layer, part)) = found else {
            let problem = "no matrix of a low-rank pair; what else an adapter may change is not supported";
            return Err(Fault::new(path, problem).of(name).unsupported());
        };
        if layer == "token_embd" {
            // Its A lies the other way round.
            let problem = "a low-rank pair of an embedding is not supported";
            return Err(Fault::new(path, problem).of(name).unsupported());
        }
        parts.add(path, layer, part, plain(tensor)?)?;
    }
    // llama.cpp takes no alpha for a scale of 1.
    let scale = |_: &str, rank: usize| Ok(if alpha == 0.0 { 1.0 } else { alpha / rank as f32 });
    Ok(AdapterFile {
        form: AdapterForm::Gguf,
        architecture: Some(metadata.require::<String>("general.architecture")?),
        base: metadata.get("general.base_model.0.name").ok().flatten(),
        num_layers: None,
        pairs: parts.pairs(path, scale)?,
    })
}

/// Decodes the tensor to floats.
fn plain(tensor: Tensor) -> Result<Tensor> {
    if tensor.format.is_float() {
        return Ok(tensor);
    }
    Ok(Tensor::of_floats(tensor.name.as_str(), tensor.shape.clone(), &pair::values(&tensor)?))
}

pub(super) fn write(adapter: &AdapterFile, path: &Path, existing: Existing) -> Result<()> {
    let unwritable = |problem: &str| Fault::new(path, problem);
    let Some(architecture) = &adapter.architecture else {
        return Err(unwritable("no architecture, which GGUF asks for")
            .of("general.architecture")
            .unwritable());
    };
    let Some(first) = adapter.pairs.first() else { return Err(unwritable("no pairs").unwritable()) };
    if let Some(dora) = adapter.pairs.iter().find(|pair| pair.magnitude.is_some()) {
        let problem = "GGUF has no place for DoRA's magnitudes";
        return Err(unwritable(problem).of(dora.name.as_str()).hint("write PEFT or MLX").unwritable());
    }
    // One alpha serves all pairs; a pair of another one gets the difference into B.
    let alpha_of = |pair: &super::LowRankPair| pair.scale * pair.rank() as f32;
    let alpha = if alpha_of(first) == 0.0 { first.rank() as f32 } else { alpha_of(first) };
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", architecture.clone());
    metadata.insert("general.type", "adapter");
    if let Some(base) = &adapter.base {
        metadata.insert("general.base_model.count", 1_u32);
        metadata.insert("general.base_model.0.name", base.clone());
    }
    metadata.insert("adapter.type", "lora");
    metadata.insert(ALPHA, alpha);

    let mut tensors = Vec::new();
    for pair in &adapter.pairs {
        let own = alpha_of(pair);
        let factor = if own.to_bits() == alpha.to_bits() { 1.0 } else { own / alpha };
        let named = |ending: &str, tensor: Tensor| Tensor {
            name: format!("{}.weight.{ending}", pair.name),
            ..tensor
        };
        tensors.push(named("lora_a", pair.a.clone()));
        tensors.push(named("lora_b", scaled(&pair.b, factor)?));
    }
    let plan = |tensor: &Tensor| TensorPlan {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        format: tensor.format,
    };
    let output = OutputFile::create(path, existing)?;
    let mut writer = Writer::create(output, &metadata, tensors.iter().map(plan).collect())?;
    for tensor in &tensors {
        if let Payload::Blocks(bytes) = &tensor.payload {
            writer.write(&tensor.name, bytes)?;
        }
    }
    writer.finish()
}
