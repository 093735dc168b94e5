//! Low-rank adapters merged into the tensors of a model as they are written.

use std::path::PathBuf;
use std::sync::Arc;

use brasa_formats::{AdapterFile, AdapterForm, Checkpoint};
use brasa_models::{Adapter, LoadOptions};

use crate::change::Change;
use crate::model::Model;
use crate::{ConvertError, Result};

/// Merges adapters, each times its scale, into the model's tensors as they are written.
pub fn merge(checkpoint: &Checkpoint, adapters: &[(PathBuf, f32)], model: &mut Model) -> Result<()> {
    if adapters.is_empty() {
        return Ok(());
    }
    let base = brasa_models::load(checkpoint, &LoadOptions::default())?;
    for (path, scale) in adapters {
        let adapter = Adapter::new(AdapterFile::open(path)?, &base)?;
        let dora = adapter.pairs.iter().find(|pair| pair.magnitude.is_some());
        if let Some(pair) = dora.filter(|_| adapters.len() > 1) {
            let problem = "DoRA's magnitudes are of the base alone, and there is another adapter";
            return Err(ConvertError::tensor(&pair.name, problem));
        }
        merge_one(&adapter, &base, *scale, model)?;
    }
    Ok(())
}

fn merge_one(adapter: &Adapter, base: &brasa_models::Model, scale: f32, model: &mut Model) -> Result<()> {
    adapter.check_scale(scale)?;
    for pair in &adapter.file(base, AdapterForm::Gguf)?.pairs {
        let name = format!("{}.weight", pair.name);
        let Some(tensor) = model.tensors.iter_mut().find(|tensor| tensor.name == name) else {
            return Err(ConvertError::tensor(
                &name,
                "the adapter changes it, but the output has no such tensor",
            ));
        };
        let expected = pair.experts().unwrap_or(1) * pair.outputs();
        if (tensor.rows(), tensor.row_len()) != (expected, pair.inputs()) {
            let problem = format!(
                "shape {:?}, but the adapter is for {expected} rows of {}",
                tensor.shape,
                pair.inputs()
            );
            return Err(ConvertError::tensor(&name, problem));
        }
        tensor.source.change(Arc::new(Change::of(pair, scale)?));
    }
    Ok(())
}
