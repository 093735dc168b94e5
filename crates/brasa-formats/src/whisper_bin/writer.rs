//! Writing files of whisper.cpp, from the GGUF form of the same model.

use std::io::Write;

use super::vocabulary::{self, bytes_of};
use super::{FILE_TYPES, MAGIC, QUANTISATION};
use crate::error::Fault;
use crate::gguf::{Metadata, TensorPlan};
use crate::{FormatError, OutputFile, Result, StorageFormat};

/// The storage formats that whisper.cpp's matrices may have, and their codes in the header. It reads files of F32 too, and ends at their
/// first convolution.
const FILE_CODES: [(StorageFormat, u32); 11] = [
    (StorageFormat::F16, 1),
    (StorageFormat::Q4_0, 2),
    (StorageFormat::Q4_1, 3),
    (StorageFormat::Q8_0, 7),
    (StorageFormat::Q5_0, 8),
    (StorageFormat::Q5_1, 9),
    (StorageFormat::Q2_K, 10),
    (StorageFormat::Q3_K, 11),
    (StorageFormat::Q4_K, 12),
    (StorageFormat::Q5_K, 13),
    (StorageFormat::Q6_K, 14),
];

/// Writes one file of whisper.cpp, tensor after tensor, and puts it in place only when it is complete.
#[derive(Debug)]
pub struct Writer {
    file: OutputFile,
    tensors: Vec<TensorPlan>,
    /// The tensor being written, and how much of it is.
    current: usize,
    written_bytes: usize,
}

impl Writer {
    /// Starts a file, and writes everything before the tensors. `metadata` is that of a GGUF file of architecture `whisper`,
    /// `filters` the filter bank `[mel bins, frequencies]`, `format` the storage format of all matrices, and `tensors` are all
    /// tensors but the filter bank.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unwritable`] for a tensor, a vocabulary or a number that whisper.cpp does not read, by name;
    /// [`FormatError::Io`] if the disk is full or fails. Errors of reading `metadata`.
    pub fn create(
        mut file: OutputFile,
        metadata: &Metadata,
        filters: &[f32],
        format: StorageFormat,
        tensors: Vec<TensorPlan>,
    ) -> Result<Self> {
        let refuse = |of: &str, problem: String| Fault::new(file.path(), problem).of(of).unwritable();
        let Some(&(_, code)) = FILE_CODES.iter().find(|(known, _)| *known == format) else {
            let known: Vec<String> = FILE_CODES.iter().map(|(known, _)| known.to_string()).collect();
            let problem = format!("whisper.cpp runs no files of this type, but of {}", known.join(", "));
            return Err(refuse(&format.to_string(), problem));
        };
        for tensor in &tensors {
            let expected = expected(tensor, format);
            if tensor.format != expected || tensor.size_bytes().is_none() {
                let shape = &tensor.shape;
                let problem = format!(
                    "{} of shape {shape:?}, expected {expected}: whisper.cpp has one format for all matrices",
                    tensor.format
                );
                return Err(refuse(&tensor.name, problem));
            }
        }
        let architecture: &str = metadata.require("general.architecture")?;
        if architecture != "whisper" {
            return Err(refuse(architecture, "a file of whisper.cpp holds a Whisper".into()));
        }
        let number = |key: &str| metadata.require::<u32>(&format!("whisper.{key}"));
        let width = number("encoder.embedding_length")?;
        for stack in ["encoder", "decoder"] {
            let key = format!("whisper.{stack}.feed_forward_length");
            if metadata.get::<u32>(&key)?.is_some_and(|found| Some(found) != width.checked_mul(4)) {
                return Err(refuse(&key, "whisper.cpp reads no other than four times the width".into()));
            }
        }
        let (vocab, bins) = (number("vocab_size")?, number("encoder.mels_count")?);
        let frequencies = (filters.len() as u32).checked_div(bins).unwrap_or(0);
        let numbers = [
            vocab,
            number("encoder.context_length")?,
            width,
            number("encoder.attention.head_count")?,
            number("encoder.block_count")?,
            number("decoder.context_length")?,
            number("decoder.embedding_length")?,
            number("decoder.attention.head_count")?,
            number("decoder.block_count")?,
            bins,
            if format.is_float() { code } else { FILE_TYPES * QUANTISATION + code },
            bins,
            frequencies,
        ];
        let mut header = MAGIC.to_vec();
        header.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        header.extend(filters.iter().flat_map(|value| value.to_le_bytes()));
        let tokens = text_tokens(metadata, vocab as usize)
            .map_err(|problem| refuse("tokenizer.ggml.tokens", problem))?;
        header.extend((tokens.len() as u32).to_le_bytes());
        for token in tokens {
            header.extend((token.len() as u32).to_le_bytes());
            header.extend(token);
        }
        file.write_all(&header).map_err(|source| FormatError::io(file.path(), source))?;
        Ok(Self { file, tensors, current: 0, written_bytes: 0 })
    }

    /// Bytes of tensor data that the finished file will hold, the filter bank and descriptions left out.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().filter_map(TensorPlan::size_bytes).map(|size| size as u64).sum()
    }

    /// Appends bytes to the next tensor, which must be called `name`. A tensor may be written in any number of pieces.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unwritable`] if another tensor is due, or this one would grow beyond its size; nothing is written then.
    /// [`FormatError::Io`] if the disk is full or fails.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let unwritable = |problem: String| Fault::new(self.file.path(), problem).of(name).unwritable();
        let Some(due) = self.tensors.get(self.current) else {
            return Err(unwritable("written after the last tensor".into()));
        };
        let (size, written) = (due.size_bytes().unwrap_or(0), self.written_bytes + bytes.len());
        if due.name != name {
            return Err(unwritable(format!("written out of order: {} is due", due.name)));
        }
        if written > size {
            return Err(unwritable(format!("{written} bytes, expected {size}")));
        }
        let description = if self.written_bytes == 0 { description(due) } else { Vec::new() };
        let all = self.file.write_all(&description).and_then(|()| self.file.write_all(bytes));
        all.map_err(|source| FormatError::io(self.file.path(), source))?;
        self.written_bytes = written;
        if written == size {
            self.written_bytes = 0;
            self.current += 1;
        }
        Ok(())
    }

    /// Puts the complete file in place.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unwritable`] if a tensor is not complete, [`FormatError::Io`] if the system refuses. No file is left then,
    /// and one that was there before stays.
    pub fn finish(self) -> Result<()> {
        if let Some(due) = self.tensors.get(self.current) {
            let problem = format!("{} bytes of it written", self.written_bytes);
            return Err(Fault::new(self.file.path(), problem).of(due.name.as_str()).unwritable());
        }
        self.file.commit()
    }
}

/// The storage format that whisper.cpp expects of a tensor in a file of `format`.
fn expected(tensor: &TensorPlan, format: StorageFormat) -> StorageFormat {
    let is_weight = tensor.name.ends_with(".weight");
    match tensor.shape.len() {
        2 if is_weight => format,
        // Convolutions.
        3 if is_weight => StorageFormat::F16,
        _ => StorageFormat::F32,
    }
}

/// The bytes of a tensor's record in front of its data: rank, name length, type, dimensions, name.
fn description(tensor: &TensorPlan) -> Vec<u8> {
    let mut dims: Vec<u32> = tensor.shape.iter().rev().map(|&dim| dim as u32).collect();
    // Biases of convolutions are stored as matrices with a column.
    if tensor.name.starts_with("encoder.conv") && dims.len() == 1 {
        dims.insert(0, 1);
    }
    let numbers =
        [dims.len() as u32, tensor.name.len() as u32, tensor.format.gguf_code().unwrap_or(u32::MAX)];
    let mut out: Vec<u8> = numbers.iter().chain(&dims).flat_map(|number| number.to_le_bytes()).collect();
    out.extend(tensor.name.as_bytes());
    out
}

/// The bytes of the tokens of text, which whisper.cpp's files spell out; the special ones have to be those that go without saying.
fn text_tokens(metadata: &Metadata, size: usize) -> Result<Vec<Vec<u8>>, String> {
    let tokens = metadata.get::<Vec<&str>>("tokenizer.ggml.tokens").map_err(|error| error.to_string())?;
    let tokens = tokens.ok_or("there is no vocabulary, which whisper.cpp needs")?;
    let special = vocabulary::special(size).ok_or_else(|| vocabulary::unknown_size(size))?;
    let (text, named) = tokens.split_at_checked(size - special.len()).unwrap_or((&tokens, &[]));
    // Hugging Face's older files have another name for silence.
    let same = |found: &str, expected: &str| {
        found == expected || found == "<|nocaptions|>" && expected == "<|nospeech|>"
    };
    let differs = named.iter().zip(&special).find(|(found, expected)| !same(found, expected));
    if differs.is_some() || named.len() != special.len() {
        let (found, expected) = differs.map_or(("", ""), |(found, expected)| (*found, expected.as_str()));
        return Err(format!(
            "{} special tokens, the first unknown one {found:?} for {expected:?}, expected the {} of Whisper",
            named.len(),
            special.len()
        ));
    }
    let bytes =
        |token: &&str| bytes_of(token).ok_or_else(|| format!("token {token:?} is no spelling of bytes"));
    text.iter().map(bytes).collect()
}
