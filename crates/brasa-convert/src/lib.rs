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
mod merge;
mod mix;
mod model;
mod options;
mod progress;
mod recipe;
mod source;
mod write;

use std::path::Path;

use brasa_formats::{Checkpoint, Metadata};

pub use error::{ConvertError, Result};
pub use options::Options;
pub use progress::{Event, Observer, Summary};
pub use recipe::Recipe;

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
    merge::merge(checkpoint, &options.adapters, &mut model)?;
    write::write(model, output, options, observer)
}
