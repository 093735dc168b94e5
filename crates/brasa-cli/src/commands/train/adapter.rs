//! Writes an adapter in the form that was asked for.

use std::path::{Path, PathBuf};

use brasa::FineTuner;
use brasa::formats::{AdapterForm, Existing};
use brasa::train::lora::Lora;

use super::options;
use crate::args::{FormName, TrainArguments};
use crate::failure::Failure;

/// Writes an adapter into `folder`; returns its path.
pub fn write(
    arguments: &TrainArguments,
    tuner: &FineTuner,
    lora: &Lora,
    folder: &Path,
) -> Result<PathBuf, Failure> {
    let (form, path) = match arguments.form {
        FormName::Peft => (AdapterForm::Peft, folder.to_owned()),
        FormName::Mlx => (AdapterForm::Mlx, folder.to_owned()),
        FormName::Gguf => (AdapterForm::Gguf, folder.join("adapter.gguf")),
    };
    let dtype = arguments.save_dtype.map_or(lora.dtype, options::dtype);
    if dtype == lora.dtype {
        tuner.write(lora, form, &path, Existing::Replace)?;
    } else {
        tuner.write(&Lora { dtype, ..lora.clone() }, form, &path, Existing::Replace)?;
    }
    Ok(path)
}
