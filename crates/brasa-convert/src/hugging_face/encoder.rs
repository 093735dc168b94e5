//! Conversion of text encoders, BERT and its descendants, to llama.cpp's form.

use brasa_formats::gguf::Metadata;
use brasa_formats::{Bytes, Checkpoint, Payload, StorageFormat, Tensor};
use brasa_models::{
    EncoderGgufForm, EncoderPlace, LoadOptions, SentenceConfig, Source as Configuration, gguf_pairs,
};

use super::input::Input;
use super::{general, same_tokens, tensors, tokenizer};
use crate::model::{Model, OutTensor};
use crate::progress::tell;
use crate::source::Source;
use crate::{ConvertError, Event, Observer, Options, Result};

/// A folder of a text encoder as a GGUF model.
pub fn model(
    checkpoint: &Checkpoint,
    source: &Configuration,
    options: &Options,
    observer: &mut Observer<'_>,
) -> Result<Model> {
    // Whatever cannot be loaded is not converted.
    let read = brasa_models::build_encoder(source, &LoadOptions::default())?;
    if let Some(name) = read.unused_tensors.first() {
        return Err(ConvertError::tensor(name, format!("no such tensor in {}", read.family())));
    }
    let sentence = SentenceConfig::of(checkpoint)?;
    let form = brasa_models::encoder_to_gguf(source, &sentence)?;
    for warning in read.warnings.iter().chain(&form.notes) {
        tell(observer, Event::Warning(warning.clone()))?;
    }
    let tensors = places(checkpoint, &form, options)?;
    let input = Input { checkpoint, source, architecture: form.architecture };
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", form.architecture);
    metadata.insert("general.type", "model");
    general::describe(&mut metadata, checkpoint, options, &tensors, observer)?;
    for (key, value) in &form.pairs {
        metadata.insert(key.clone(), value.clone());
    }
    if let Some(count) = form.token_types {
        metadata.insert("tokenizer.ggml.token_type_count", count);
    }
    tokenizer::describe(&mut metadata, &input, read.vocab_size(), options, observer)?;
    form.verify(&without_weights(&metadata, &tensors)?)?;
    same_tokens::of_encoder(checkpoint, &metadata, options, sentence.lowercase, observer)?;
    Ok(Model { metadata, tensors })
}

/// Every tensor of the output.
fn places(checkpoint: &Checkpoint, form: &EncoderGgufForm, options: &Options) -> Result<Vec<OutTensor>> {
    let mut out = Vec::new();
    for tensor in checkpoint.tensors() {
        match form.place(&tensor.name, tensor.rows()) {
            Some(EncoderPlace::Tensor { name, rows }) => {
                let source = Source::windows([(tensor, rows.start, rows.len())]);
                let mut shape = tensor.shape.clone();
                if let [count, _] = &mut shape[..] {
                    *count = rows.len();
                }
                out.push(tensors::finish(name, shape, source, options.recipe));
            }
            Some(EncoderPlace::Foreign) => {}
            _ => {
                let problem = format!("no such tensor in {}", form.architecture);
                return Err(ConvertError::tensor(&tensor.name, problem));
            }
        }
    }
    Ok(out)
}

/// The model as it will be read from the file, without weights.
pub fn without_weights(metadata: &Metadata, tensors: &[OutTensor]) -> Result<Configuration> {
    let tensors = tensors.iter().map(|tensor| Tensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        format: StorageFormat::F32,
        payload: Payload::Blocks(Bytes::from(Vec::new())),
    });
    Ok(Configuration::gguf(gguf_pairs(metadata), tensors)?)
}
