//! Writing GGUF version 3.
//!
//! All names, shapes and formats are known before the first weight is, so the header goes out first and the weights
//! stream behind it in order: memory stays at what the caller holds.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use super::array::pack_string;
use super::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, LARGEST_ALIGNMENT, LONGEST_KEY, MAGIC};
use super::metadata::Metadata;
use crate::error::Fault;
use crate::{FormatError, OutputFile, Result, StorageFormat};

/// A tensor that a [`Writer`] is going to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// The name in the file.
    pub name: String,
    /// Dimensions, outermost first, at most four.
    pub shape: Vec<usize>,
    /// The storage format of rows.
    pub format: StorageFormat,
}

/// Writes one GGUF file, tensor after tensor, and puts it in place only when it is complete.
///
/// ```no_run
/// use brasa_formats::{Existing, OutputFile, StorageFormat};
/// use brasa_formats::gguf::{Metadata, TensorPlan, Writer};
///
/// let mut metadata = Metadata::new();
/// metadata.insert("general.architecture", "llama");
/// let plan =
///     TensorPlan { name: "output_norm.weight".into(), shape: vec![4], format: StorageFormat::F32 };
///
/// let output = OutputFile::create("model.gguf", Existing::Keep)?;
/// let mut writer = Writer::create(output, &metadata, vec![plan])?;
/// writer.write("output_norm.weight", &[0; 16])?;
/// writer.finish()?;
/// # Ok::<(), brasa_formats::FormatError>(())
/// ```
#[derive(Debug)]
pub struct Writer {
    file: OutputFile,
    tensors: Vec<TensorPlan>,
    sizes: Vec<u64>,
    alignment: u64,
    /// The tensor being written, and how much of it is.
    current: usize,
    written_bytes: u64,
}

impl TensorPlan {
    /// Bytes of the tensor; `None` if rows are no whole number of blocks, or for MLX formats.
    pub fn size_bytes(&self) -> Option<usize> {
        self.format.gguf_code()?;
        let row_bytes = self.format.row_bytes(self.shape.last().copied().unwrap_or(1))?;
        self.shape.iter().rev().skip(1).try_fold(row_bytes, |bytes, &dim| bytes.checked_mul(dim))
    }
}

impl Writer {
    /// Starts a file: writes the header for exactly these tensors in exactly this order.
    ///
    /// `general.alignment` in `metadata` is honoured, and 32 without it.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unwritable`] if a tensor has no place in a GGUF file (its format, its shape, a name
    /// given twice), [`FormatError::Io`] if the disk is full or fails.
    pub fn create(mut file: OutputFile, metadata: &Metadata, tensors: Vec<TensorPlan>) -> Result<Self> {
        let path = file.path();
        let names =
            metadata.iter().map(|(key, _)| key).chain(tensors.iter().map(|tensor| tensor.name.as_str()));
        for name in names {
            if name.len() as u64 > LONGEST_KEY {
                let problem = format!("a name of {} bytes, expected at most {LONGEST_KEY}", name.len());
                return Err(Fault::new(path, problem).of(name).unwritable());
            }
        }
        let alignment = alignment(path, metadata)?;
        let sizes = sizes(path, &tensors)?;
        let header = header(metadata, &tensors, &sizes, alignment);
        file.write_all(&header).map_err(|source| FormatError::io(file.path(), source))?;
        let mut writer = Self { file, tensors, sizes, alignment, current: 0, written_bytes: 0 };
        writer.pad(header.len() as u64)?;
        writer.advance()?;
        Ok(writer)
    }

    /// The next tensor to write; `None` when all are written.
    pub fn next_tensor(&self) -> Option<&TensorPlan> {
        self.tensors.get(self.current)
    }

    /// Bytes of tensor data that the finished file will hold, padding left out.
    pub fn data_bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Appends bytes to the next tensor, which must be called `name`. A tensor may be written in any number of pieces.
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
        let Some(due) = self.next_tensor() else {
            return Err(unwritable("written after the last tensor".into()));
        };
        if due.name != name {
            return Err(unwritable(format!("written out of order: {} is due", due.name)));
        }
        let size = self.sizes[self.current];
        let written_bytes = self.written_bytes + bytes.len() as u64;
        if written_bytes > size {
            return Err(unwritable(format!("{written_bytes} bytes, expected {size}")));
        }
        self.file.write_all(bytes).map_err(|source| FormatError::io(self.file.path(), source))?;
        self.written_bytes = written_bytes;
        self.advance()
    }

    /// Puts the complete file in place.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unwritable`] if a tensor is not complete, [`FormatError::Io`] if the system refuses.
    /// No file is left then, and one that was there before stays.
    pub fn finish(self) -> Result<()> {
        if let Some(due) = self.next_tensor() {
            let problem = format!("{} of {} bytes written", self.written_bytes, self.sizes[self.current]);
            return Err(Fault::new(self.file.path(), problem).of(due.name.as_str()).unwritable());
        }
        self.file.commit()
    }

    /// Moves past every tensor that is complete, empty ones included.
    fn advance(&mut self) -> Result<()> {
        while self.sizes.get(self.current).is_some_and(|&size| size == self.written_bytes) {
            self.pad(self.written_bytes)?;
            self.written_bytes = 0;
            self.current += 1;
        }
        Ok(())
    }

    fn pad(&mut self, after_bytes: u64) -> Result<()> {
        let padding = after_bytes.next_multiple_of(self.alignment) - after_bytes;
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0), padding), &mut self.file)
            .map(drop)
            .map_err(|source| FormatError::io(self.file.path(), source))
    }
}

fn alignment(path: &Path, metadata: &Metadata) -> Result<u64> {
    let alignment = metadata.get(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && (8..=LARGEST_ALIGNMENT).contains(&alignment) {
        return Ok(alignment);
    }
    let problem = format!("found {alignment}, expected a power of two from 8 to {LARGEST_ALIGNMENT}");
    Err(Fault::new(path, problem).of(ALIGNMENT_KEY).unwritable())
}

fn sizes(path: &Path, tensors: &[TensorPlan]) -> Result<Vec<u64>> {
    let mut names = HashSet::new();
    let size = |tensor: &TensorPlan| {
        let unwritable = |problem: String| Fault::new(path, problem).of(tensor.name.as_str()).unwritable();
        if tensor.shape.len() > 4 {
            return Err(unwritable(format!("{} dimensions, expected at most 4", tensor.shape.len())));
        }
        let size = tensor.size_bytes().ok_or_else(|| {
            unwritable(format!("shape {:?} cannot be stored as {} in GGUF", tensor.shape, tensor.format))
        })?;
        Ok(size as u64)
    };
    for tensor in tensors {
        if !names.insert(tensor.name.as_str()) {
            return Err(Fault::new(path, "this tensor is given twice").of(tensor.name.as_str()).unwritable());
        }
    }
    tensors.iter().map(size).collect()
}

fn header(metadata: &Metadata, tensors: &[TensorPlan], sizes: &[u64], alignment: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(3_u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        pack_string(key.as_bytes(), &mut out);
        out.extend((value.value_type() as u32).to_le_bytes());
        value.pack(&mut out);
    }
    let mut offset = 0_u64;
    for (tensor, size) in tensors.iter().zip(sizes) {
        pack_string(tensor.name.as_bytes(), &mut out);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        for &dim in tensor.shape.iter().rev() {
            out.extend((dim as u64).to_le_bytes());
        }
        out.extend(tensor.format.gguf_code().unwrap_or(u32::MAX).to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += size.next_multiple_of(alignment);
    }
    out
}
