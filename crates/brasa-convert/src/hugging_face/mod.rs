//! Hugging Face and MLX directories in: configuration, names and tokenizer brought into GGUF's terms.
//!
//! The result is what llama.cpp's own converter writes, key by key and element by element;
//! `tools/verify_convert.py` compares the two. `brasa-models` reads the configuration and says it in GGUF's terms; read
//! back, the result has to compute what the checkpoint computes.

mod encoder;
mod general;
mod input;
mod same_tokens;
mod speech;
mod tensors;
mod tokenizer;

use brasa_formats::gguf::Metadata;
use brasa_formats::{Bytes, Checkpoint, Payload, StorageFormat, Tensor};
use brasa_models::{GgufForm, LoadOptions, ModelKind, Source, gguf_pairs};

use self::input::Input;
use crate::model::{Model, OutTensor};
use crate::progress::tell;
use crate::{ConvertError, Event, Observer, Options, Result};

/// A checkpoint directory as a GGUF model.
pub fn model(checkpoint: &Checkpoint, options: &Options, observer: &mut Observer<'_>) -> Result<Model> {
    let source = Source::of(checkpoint)?;
    match ModelKind::of(&source) {
        ModelKind::Encoder => return encoder::model(checkpoint, &source, options, observer),
        ModelKind::Speech => return speech::model(checkpoint, &source, options, observer),
        _ => {}
    }
    // Whatever cannot be loaded is not converted.
    let read = brasa_models::build(&source, &LoadOptions::default())?;
    if let Some(name) = read.unused_tensors.first() {
        return Err(ConvertError::tensor(name, format!("no such tensor in {}", read.spec.family)));
    }
    let form = brasa_models::to_gguf(&source)?;
    for warning in read.warnings.iter().chain(&form.notes) {
        tell(observer, Event::Warning(warning.clone()))?;
    }
    let input = Input { checkpoint, source: &source, architecture: form.architecture };
    let tensors = tensors::collect(checkpoint, &form, &read.spec, options.recipe)?;
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", form.architecture);
    metadata.insert("general.type", "model");
    general::describe(&mut metadata, checkpoint, options, &tensors, observer)?;
    for (key, value) in &form.pairs {
        metadata.insert(key.clone(), value.clone());
    }
    let vocab_rows = tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    let vocab_len = vocab_rows.map_or(0, OutTensor::rows);
    tokenizer::describe(&mut metadata, &input, vocab_len, options, observer)?;
    form.verify(&source, &as_written(&form, &metadata, &tensors)?)?;
    same_tokens::of_language_model(checkpoint, &metadata, options, observer)?;
    Ok(Model { metadata, tensors })
}

/// The model as it will be read from the file. Weights are left out: only tables of factors are part of a configuration.
fn as_written(form: &GgufForm, metadata: &Metadata, tensors: &[OutTensor]) -> Result<Source> {
    let tensors = tensors.iter().map(|tensor| {
        let values = form.factors.iter().find(|(name, _)| *name == tensor.name).map(|(_, values)| values);
        let bytes = values.into_iter().flatten().flat_map(|value| value.to_le_bytes());
        Tensor {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            format: StorageFormat::F32,
            payload: Payload::Blocks(Bytes::from(bytes.collect::<Vec<u8>>())),
        }
    });
    Ok(Source::gguf(gguf_pairs(metadata), tensors)?)
}
