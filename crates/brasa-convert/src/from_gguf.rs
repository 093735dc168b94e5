//! GGUF in: metadata and tensors stay as they are, whatever the architecture.

use brasa_formats::Checkpoint;
use brasa_formats::gguf::Metadata;
use brasa_models::{LoadOptions, ModelError};
use brasa_tokenizer::Tokenizer;

use crate::model::{Model, OutTensor};
use crate::source::Source;
use crate::write::tell;
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
    match brasa_models::load(checkpoint, &LoadOptions::default()) {
        Ok(read) => {
            for warning in read.warnings {
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
    if let Err(error) = Tokenizer::from_checkpoint(checkpoint, options.pre_tokenizer.as_deref()) {
        tell(observer, Event::Warning(format!("the output cannot be run: {error}")))?;
    }
    let mut metadata = metadata.clone();
    for key in SPLIT {
        metadata.remove(key);
    }
    let tensors = checkpoint.tensors().iter().map(|tensor| OutTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        source: Source::of(tensor),
        base: tensor.format,
    });
    Ok(Model { metadata, tensors: tensors.collect() })
}
