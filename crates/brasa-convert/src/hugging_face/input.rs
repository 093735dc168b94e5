//! The checkpoint that is converted, and its architecture.

use brasa_formats::Checkpoint;
use brasa_models::Source;

/// The checkpoint, as the parts of a conversion read it.
pub struct Input<'a> {
    /// The files.
    pub checkpoint: &'a Checkpoint,
    /// The configuration.
    pub source: &'a Source,
    /// The architecture's name in GGUF.
    pub architecture: &'static str,
}

impl Input<'_> {
    /// True for a family of Gemma's.
    pub fn is_gemma(&self) -> bool {
        self.architecture.starts_with("gemma")
    }
}
