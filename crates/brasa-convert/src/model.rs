//! A model during conversion: metadata and tensors under the names of the GGUF file.

use brasa_formats::StorageFormat;
use brasa_formats::gguf::Metadata;

use crate::source::Source;

/// The name of a Whisper's filter bank, `[bins, frequencies]`.
pub const FILTERS: &str = "mel_filters";

/// Everything that will be written, before storage formats are chosen.
#[derive(Debug)]
pub struct Model {
    /// The key-value pairs.
    pub metadata: Metadata,
    /// The tensors.
    pub tensors: Vec<OutTensor>,
}

/// A tensor of the output.
#[derive(Debug)]
pub struct OutTensor {
    /// The name in GGUF.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The source of its rows.
    pub source: Source,
    /// The storage format if no recipe asks for fewer bits.
    pub base: StorageFormat,
}

impl OutTensor {
    /// Elements of the innermost dimension.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the innermost.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }
}

/// The order of llama.cpp: by layer, then by name, tensors without a layer first.
pub fn order(name: &str) -> (i64, &str) {
    (layer(name).map_or(-1, |layer| layer as i64), name)
}

/// The layer of `blk.N.…`.
pub fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}
