//! Writing safetensors, tensor after tensor.

use std::collections::HashSet;
use std::io::Write;

use serde_json::{Map, Value, json};

use super::{Dtype, METADATA};
use crate::error::Fault;
use crate::{FormatError, OutputFile, Result};

/// A tensor that a [`Writer`] is going to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// The name in the file.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
}

/// Writes one safetensors file, tensor after tensor, and puts it in place only when it is complete.
#[derive(Debug)]
pub struct Writer {
    file: OutputFile,
    /// Names and sizes in bytes.
    tensors: Vec<(String, u64)>,
    current: usize,
    written_bytes: u64,
}

impl TensorPlan {
    /// Bytes of the tensor; `None` if that is no whole number, or overflows.
    pub fn size_bytes(&self) -> Option<u64> {
        let elements = self.shape.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim as u64))?;
        let bits = elements.checked_mul(self.dtype.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl Writer {
    /// Starts a file: writes the header for exactly these tensors in exactly this order.
    ///
    /// `metadata` is free text under `__metadata__`; readers of transformers want `format: pt`, MLX writes `format: mlx`.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unwritable`] if a name is given twice or a shape has no size, [`FormatError::Io`] if the
    /// disk is full or fails.
    pub fn create(mut file: OutputFile, metadata: &[(&str, &str)], tensors: &[TensorPlan]) -> Result<Self> {
        let path = file.path();
        let mut names = HashSet::new();
        let mut header = Map::new();
        if !metadata.is_empty() {
            let pairs = metadata.iter().map(|(key, text)| ((*key).to_owned(), Value::from(*text)));
            header.insert(METADATA.into(), Value::Object(pairs.collect()));
        }
        let mut sizes = Vec::new();
        let mut offset = 0_u64;
        for tensor in tensors {
            let unwritable =
                |problem: String| Fault::new(path, problem).of(tensor.name.as_str()).unwritable();
            if tensor.name == METADATA || !names.insert(tensor.name.as_str()) {
                return Err(unwritable("this name is taken".into()));
            }
            let size = tensor.size_bytes();
            let Some((size, end)) = size.and_then(|size| Some((size, offset.checked_add(size)?))) else {
                return Err(unwritable(format!("shape {:?} of {} has no size", tensor.shape, tensor.dtype)));
            };
            let entry = json!({
                "dtype": tensor.dtype.to_string(),
                "shape": tensor.shape,
                "data_offsets": [offset, end],
            });
            header.insert(tensor.name.clone(), entry);
            sizes.push((tensor.name.clone(), size));
            offset = end;
        }

        let mut header = Value::Object(header).to_string().into_bytes();
        // Spaces, so that the data starts where floats can be read in place.
        header.resize(header.len().next_multiple_of(8), b' ');
        file.write_all(&(header.len() as u64).to_le_bytes())
            .and_then(|()| file.write_all(&header))
            .map_err(|source| FormatError::io(file.path(), source))?;
        let mut writer = Self { file, tensors: sizes, current: 0, written_bytes: 0 };
        writer.advance();
        Ok(writer)
    }

    /// Name of the next tensor to write; `None` when all are written.
    pub fn next_tensor(&self) -> Option<&str> {
        self.tensors.get(self.current).map(|(name, _)| name.as_str())
    }

    /// Appends bytes, little-endian elements, to the next tensor, which must be called `name`. A tensor may be written in any
    /// number of pieces.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unwritable`] if another tensor is due, or this one would grow beyond its size; nothing is
    /// written then. [`FormatError::Io`] if the disk is full or fails.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            // Nothing is due of an empty tensor, and it is right to write that.
            return Ok(());
        }
        let unwritable = |problem: String| Fault::new(self.file.path(), problem).of(name).unwritable();
        let Some((due, size)) = self.tensors.get(self.current) else {
            return Err(unwritable("written after the last tensor".into()));
        };
        if due != name {
            return Err(unwritable(format!("written out of order: {due} is due")));
        }
        let written_bytes = self.written_bytes + bytes.len() as u64;
        if written_bytes > *size {
            return Err(unwritable(format!("{written_bytes} bytes, expected {size}")));
        }
        self.file.write_all(bytes).map_err(|source| FormatError::io(self.file.path(), source))?;
        self.written_bytes = written_bytes;
        self.advance();
        Ok(())
    }

    /// Puts the complete file in place.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unwritable`] if a tensor is not complete, [`FormatError::Io`] if the system refuses.
    /// No file is left then, and one that was there before stays.
    pub fn finish(self) -> Result<()> {
        if let Some((name, size)) = self.tensors.get(self.current) {
            let problem = format!("{} of {size} bytes written", self.written_bytes);
            return Err(Fault::new(self.file.path(), problem).of(name.as_str()).unwritable());
        }
        self.file.commit()
    }

    fn advance(&mut self) {
        while self.tensors.get(self.current).is_some_and(|(_, size)| *size == self.written_bytes) {
            self.written_bytes = 0;
            self.current += 1;
        }
    }
}
