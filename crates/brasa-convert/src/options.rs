//! Options of a conversion.

use std::path::PathBuf;

use brasa_formats::Existing;

use crate::recipe::Recipe;

/// Options of a conversion.
#[derive(Clone, Debug)]
pub struct Options {
    /// The mix of storage formats to write.
    pub recipe: Recipe,
    /// Number of threads that encode; by default the number that the machine runs at once.
    pub threads: usize,
    /// The value of `tokenizer.ggml.pre`, for tokenizers that are not recognised.
    pub pre_tokenizer: Option<String>,
    /// The value of `general.name`; `None` takes it from the input.
    pub name: Option<String>,
    /// Low-rank adapters of PEFT, MLX-LM or llama.cpp that are merged into the weights, each with a factor of its scale.
    pub adapters: Vec<(PathBuf, f32)>,
    /// Treatment of a file that exists at the output's path already; it is kept by default.
    pub existing: Existing,
}

impl Options {
    /// The default options for a recipe.
    pub fn new(recipe: Recipe) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            recipe,
            threads,
            pre_tokenizer: None,
            name: None,
            adapters: Vec::new(),
            existing: Existing::Keep,
        }
    }
}
