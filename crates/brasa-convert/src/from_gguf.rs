//! GGUF in: metadata and tensors stay as they are, whatever the architecture.

use brasa_formats::Checkpoint;
use brasa_formats::gguf::Metadata;

use crate::model::{Model, OutTensor};
use crate::source::Source;

/// Keys of split files, which the output is not.
const SPLIT: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

pub fn model(checkpoint: &Checkpoint, metadata: &Metadata) -> Model {
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
    Model { metadata, tensors: tensors.collect() }
}
