//! Conversion of GGUF files: metadata and tensors stay as they are, for every architecture.

use brasa_formats::Checkpoint;
use brasa_formats::gguf::Metadata;
use brasa_models::{LoadOptions, ModelError, ModelKind, Source};
use brasa_tokenizer::Tokenizer;

use crate::model::{Model, OutTensor};
use crate::progress::tell;
use crate::source::Source as Rows;
use crate::{Event, Observer, Options, Result};

/// Keys of split files, which the output is not.
const SPLIT: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

/// A GGUF file as a GGUF model. A file of a known architecture has to be one that can be loaded.
pub fn model(
    checkpoint: &Checkpoint,
    metadata: &Metadata,
    options: &Options,
    observer: &mut Observer<'_>,
) -> Result<Model> {
    match warnings(checkpoint) {
        Ok(warnings) => {
            for warning in warnings {
                tell(observer, Event::Warning(warning))?;
            }
        }
        Err(error @ ModelError::UnknownArchitecture { .. }) => {
            let first = error.to_string();
            let first = first.lines().next().unwrap_or_default();
            tell(observer, Event::Warning(format!("{first}: the file is converted as it is, unchecked")))?;
        }
        Err(error) => return Err(error.into()),
    }
    match Tokenizer::from_checkpoint(checkpoint, options.pre_tokenizer.as_deref()) {
        Ok(tokenizer) => {
            for warning in tokenizer.warnings() {
                tell(observer, Event::Warning(warning.clone()))?;
            }
        }
        Err(error) => tell(observer, Event::Warning(format!("the output cannot be run: {error}")))?,
    }
    let mut metadata = metadata.clone();
    // The name that the caller gives is right for the output too.
    if let Some(pre) = &options.pre_tokenizer
        && metadata.get::<&str>("tokenizer.ggml.model")? == Some("gpt2")
    {
        metadata.insert("tokenizer.ggml.pre", pre.as_str());
    }
    for key in SPLIT {
        metadata.remove(key);
    }
    let tensors = checkpoint.tensors().iter().map(|tensor| OutTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        source: Rows::of(tensor),
        base: tensor.format,
    });
    Ok(Model { metadata, tensors: tensors.collect() })
}

/// Loads the model, of any kind; returns messages about keys and tensors that were ignored.
fn warnings(checkpoint: &Checkpoint) -> brasa_models::Result<Vec<String>> {
    let options = LoadOptions::default();
    match ModelKind::of(&Source::of(checkpoint)?) {
        ModelKind::Encoder => Ok(brasa_models::load_encoder(checkpoint, &options)?.warnings),
        ModelKind::Speech => Ok(brasa_models::load_speech(checkpoint, &options)?.warnings),
        _ => Ok(brasa_models::load(checkpoint, &options)?.warnings),
    }
}
