//! From Hugging Face, MLX and GGUF checkpoints to quantised GGUF files, and Whispers to files of whisper.cpp.
//!
//! [`convert`] reads a checkpoint row by row, brings its metadata, names and layouts into the form that llama.cpp
//! defined, chooses a storage format per tensor as llama.cpp's quantiser does, and writes one GGUF file, whole or not
//! at all. Memory stays at a few rows per thread.
//!
//! This crate knows neither devices nor the keys and tensor names of any family, which are `brasa-models`'s.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use std::path::Path;
//!
//! use brasa_convert::{Event, Options, Recipe, convert};
//!
//! let options = Options::new(Recipe::parse("Q4_K_M")?);
//! let summary = convert(Path::new("models/lexicon-qwen3"), Path::new("q4.gguf"), &options, &mut |event| {
//!     if let Event::Fallback { tensor, wanted, used, .. } = event {
//!         println!("{tensor}: {used} instead of {wanted}");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! println!("{:.2} bits per weight", summary.bits_per_weight());
//! # Ok::<(), brasa_convert::ConvertError>(())
//! ```

mod change;
mod error;
mod from_gguf;
mod hugging_face;
mod mix;
mod model;
mod recipe;
mod source;
mod write;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use brasa_formats::{Checkpoint, Existing, Metadata, StorageFormat};

pub use error::{ConvertError, Result};
pub use recipe::Recipe;

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

/// A step of a conversion, for the caller to show.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Everything is decided and writing starts.
    Planned {
        /// Tensors of the output.
        tensors: usize,
        /// Elements of all tensors.
        elements: u64,
        /// Bytes of tensor data to be written.
        bytes: u64,
    },
    /// A tensor cannot be stored as the recipe wants, because its rows are no whole number of blocks.
    Fallback {
        /// The tensor.
        tensor: &'a str,
        /// Elements of a row.
        row_len: usize,
        /// The format that the recipe wanted.
        wanted: StorageFormat,
        /// The format that is used instead.
        used: StorageFormat,
    },
    /// A fact about the input that users should know: a setting that may be unintended, or that llama.cpp will not read from the
    /// output.
    Warning(String),
    /// A tensor begins.
    Tensor {
        /// The tensor's name.
        name: &'a str,
        /// The tensor's dimensions, outermost first.
        shape: &'a [usize],
        /// The storage format in the input.
        from: StorageFormat,
        /// The storage format in the output.
        to: StorageFormat,
    },
    /// Adapters were merged. The fields measure the part of their change that is left after rounding, against the same file
    /// without adapters.
    Merged {
        /// Number of tensors that the adapters changed.
        tensors: usize,
        /// The share of the adapters' change that was written: `Σ Δ·Δ' / Σ Δ²`, Δ' the written change; 1 if all of it was.
        share: f64,
        /// The length of the rounding error of the change, divided by the length of the change.
        error: f64,
    },
    /// Part of a tensor is written.
    Progress {
        /// Elements written so far.
        done: u64,
        /// Elements of all tensors.
        elements: u64,
    },
}

/// Figures of a written file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Tensors.
    pub tensors: usize,
    /// Elements of all tensors.
    pub elements: u64,
    /// Bytes of tensor data.
    pub bytes: u64,
    /// Tensors stored otherwise than the recipe wanted.
    pub fallbacks: usize,
}

impl Summary {
    /// Bits per element over all tensors.
    pub fn bits_per_weight(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elements.max(1) as f64
    }
}

/// Receives events; [`ControlFlow::Break`] cancels the conversion.
pub type Observer<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Converts the checkpoint at `input` (a GGUF file, one of whisper.cpp, a directory of safetensors, Hugging Face or MLX) to the GGUF
/// file `output`, or to a file of whisper.cpp if its name ends in `.bin`.
///
/// # Errors
///
/// [`ConvertError`] if the input cannot be read, has no GGUF form or would compute something else in GGUF, if the output
/// cannot be written, or if the observer cancels. `output` is then as it was before.
pub fn convert(
    input: &Path,
    output: &Path,
    options: &Options,
    observer: &mut Observer<'_>,
) -> Result<Summary> {
    convert_checkpoint(&Checkpoint::open(input)?, output, options, observer)
}

/// Converts an opened checkpoint to the file `output`, like [`convert`].
///
/// # Errors
///
/// Errors of [`convert`], but those of opening the input.
pub fn convert_checkpoint(
    checkpoint: &Checkpoint,
    output: &Path,
    options: &Options,
    observer: &mut Observer<'_>,
) -> Result<Summary> {
    let mut model = match checkpoint.metadata() {
        Metadata::Gguf(metadata) => from_gguf::model(checkpoint, metadata, options, observer)?,
        Metadata::Config(_) => hugging_face::model(checkpoint, options, observer)?,
    };
    change::merge(checkpoint, &options.adapters, &mut model)?;
    write::write(model, output, options, observer)
}
