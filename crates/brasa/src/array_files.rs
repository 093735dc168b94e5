//! Arrays in safetensors files.

use std::collections::BTreeMap;
use std::path::Path;

use brasa_array::{Array, Runner};
use brasa_formats::safetensors::{Dtype, FloatTensor, TensorPlan, Writer, read_floats};
use brasa_formats::{Existing, OutputFile, map_file};

use crate::Error;

/// The arrays of a safetensors file, by name. Tensors of F32, F16 and BF16 are read; a scalar (no axis) becomes `[1]`.
///
/// # Errors
///
/// [`Error::Format`] if the file cannot be read, is damaged, or has a tensor of another type; [`Error::Options`] for a tensor with more axes
/// than arrays have, or without elements.
pub fn load_arrays(path: impl AsRef<Path>) -> Result<BTreeMap<String, Array>, Error> {
    let path = path.as_ref();
    let mut arrays = BTreeMap::new();
    for FloatTensor { name, shape, values } in read_floats(path, &map_file(path)?)? {
        let array = Array::new(values, if shape.is_empty() { &[1] } else { &shape });
        array.check().map_err(|error| Error::Options(format!("{}: {name}: {error}", path.display())))?;
        arrays.insert(name, array);
    }
    Ok(arrays)
}

/// Writes arrays as tensors of F32 into a safetensors file. `runner` computes those that have no values yet. The file is there whole or not
/// at all, and one that is there already is replaced.
///
/// # Errors
///
/// [`Error::Options`] if an array cannot be computed, with its name; [`Error::Format`] if a name is given twice or the system refuses to write.
pub fn save_arrays(
    path: impl AsRef<Path>,
    arrays: &[(&str, &Array)],
    runner: &mut Runner,
) -> Result<(), Error> {
    let mut plan = Vec::new();
    for (name, array) in arrays {
        runner.eval(&[array]).map_err(|error| Error::Options(format!("{name}: {error}")))?;
        plan.push(TensorPlan { name: (*name).into(), dtype: Dtype::F32, shape: array.shape().to_vec() });
    }
    let file = OutputFile::create(path.as_ref(), Existing::Replace)?;
    let mut writer = Writer::create(file, &[("format", "brasa")], &plan)?;
    for (name, array) in arrays {
        let values = array.values().unwrap_or_default();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        writer.write(name, &bytes)?;
    }
    Ok(writer.finish()?)
}
