//! Hugging Face and MLX directories in: `config.json`, names and tokenizer brought into GGUF's terms.
//!
//! What comes out is what llama.cpp's own converter writes, key by key and element by element;
//! `tools/verify_convert.py` compares the two.

mod config;
mod family;
mod general;
mod names;
mod parameters;
mod rope;
mod tensors;
mod tokenizer;

use brasa_formats::Checkpoint;
use brasa_formats::gguf::Metadata;
use serde_json::Value;

use crate::model::{Model, OutTensor};
use crate::write::tell;
use crate::{Event, Observer, Options, Result};
use config::Config;

/// A checkpoint directory as a GGUF model.
pub fn model(
    checkpoint: &Checkpoint,
    config: &Value,
    options: &Options,
    observer: &mut Observer<'_>,
) -> Result<Model> {
    let config = Config::new(config)?;
    let tensors = tensors::collect(checkpoint, &config, options.recipe)?;
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", config.family.architecture());
    metadata.insert("general.type", "model");
    general::describe(&mut metadata, checkpoint, options, &tensors)?;
    for note in parameters::describe(&mut metadata, &config, options.recipe)? {
        tell(observer, Event::Warning(note))?;
    }
    let vocab_rows = tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    let vocab_len = vocab_rows.map(OutTensor::rows);
    tokenizer::describe(&mut metadata, checkpoint, &config, vocab_len, options, observer)?;
    Ok(Model { metadata, tensors })
}
