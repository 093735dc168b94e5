//! One GGUF file: its header, and its tensors bound to their bytes.

use std::path::Path;
use std::sync::Arc;

use super::header::{Entries, Entry, Header};
use super::metadata::Metadata;
use super::types::TensorType;
use crate::error::Fault;
use crate::inspection::TensorInfo;
use crate::problems::Problems;
use crate::{Bytes, FormatError, Payload, Result, StorageFormat, Tensor};

/// The contents of one file.
pub(crate) struct Part {
    /// The version of GGUF; `None` for a file of whisper.cpp.
    pub version: Option<u32>,
    pub metadata: Metadata,
    /// Every tensor described, readable or not.
    pub infos: Vec<TensorInfo>,
    /// Tensors that can be used.
    pub tensors: Vec<Tensor>,
}

/// Reads one file.
///
/// Fails only if header or metadata are unreadable; mistakes in tensors are added to `problems`.
pub(crate) fn read_part(path: &Path, bytes: &Bytes, problems: &mut Problems) -> Result<Part> {
    let header = Header::read(path, bytes)?;
    let (mut infos, mut tensors) = (Vec::new(), Vec::new());
    match header.entries(path, bytes) {
        Ok(entries) => {
            let shared_path: Arc<Path> = path.into();
            infos = entries.list.iter().map(|entry| info(&shared_path, &entries, entry)).collect();
            bind_all(path, bytes, &entries, &mut tensors, problems);
        }
        Err(error) => problems.push(error),
    }
    Ok(Part { version: Some(header.version), metadata: header.metadata, infos, tensors })
}

fn info(path: &Arc<Path>, entries: &Entries, entry: &Entry) -> TensorInfo {
    let known = TensorType::from_code(entry.type_code);
    TensorInfo {
        name: entry.name.clone(),
        shape: entry.dims.iter().rev().copied().collect(),
        type_name: TensorType::shown(entry.type_code),
        format: StorageFormat::from_gguf_code(entry.type_code),
        file: Arc::clone(path),
        offset_bytes: entries.data_start.saturating_add(entry.offset),
        size_bytes: known.and_then(|known| known.size_bytes(&entry.dims)),
    }
}

fn bind_all(
    path: &Path,
    bytes: &Bytes,
    entries: &Entries,
    tensors: &mut Vec<Tensor>,
    problems: &mut Problems,
) {
    let mut ranges = Vec::new();
    let mut end_of_data = 0;
    for entry in &entries.list {
        match locate(path, entries, entry) {
            Ok(located) => {
                end_of_data = end_of_data.max(located.end);
                ranges.push((located.start, located.end, entry, located.format));
            }
            Err(error) => problems.push(error),
        }
    }
    if end_of_data > bytes.len() as u64 {
        let problem = format!("{} bytes, but its tensors need {end_of_data}", bytes.len());
        problems
            .push(Fault::new(path, problem).hint("the file is incomplete; download it again").malformed());
    }
    report_overlaps(path, &ranges, problems);
    for (start, end, entry, format) in ranges {
        let window = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        if let Some(window) = window.and_then(|(start, end)| bytes.slice(start..end)) {
            // Every dimension of a tensor that is not empty is at most its size; empty ones fit u64 only.
            let shape = entry.dims.iter().rev().map(|&dim| dim as usize).collect();
            tensors.push(Tensor {
                name: entry.name.clone(),
                shape,
                format,
                payload: Payload::Blocks(window),
            });
        }
    }
}

struct Located {
    format: StorageFormat,
    start: u64,
    end: u64,
}

/// Checks one description by itself: type, rows, alignment, size.
fn locate(path: &Path, entries: &Entries, entry: &Entry) -> Result<Located> {
    let fault = |problem: String| Fault::new(path, problem).of(entry.name.as_str());
    let known = TensorType::from_code(entry.type_code);
    let (Some(known), Some(format)) = (known, StorageFormat::from_gguf_code(entry.type_code)) else {
        return Err(unsupported_type(path, entry));
    };
    let row_len = entry.dims.first().copied().unwrap_or(1);
    if !row_len.is_multiple_of(known.block_len) {
        let problem = format!(
            "rows of {row_len} elements, expected a multiple of {} for {}",
            known.block_len, known.name
        );
        return Err(fault(problem).malformed());
    }
    if !entry.offset.is_multiple_of(entries.alignment) {
        let problem = format!("offset {}, expected a multiple of {}", entry.offset, entries.alignment);
        return Err(fault(problem).malformed());
    }
    let start = entries.data_start.checked_add(entry.offset);
    let end = start.zip(known.size_bytes(&entry.dims)).and_then(|(start, size)| start.checked_add(size));
    let Some((start, end)) = start.zip(end) else {
        let problem = format!("dimensions {:?} at offset {} overflow 64 bits", entry.dims, entry.offset);
        return Err(fault(problem).malformed());
    };
    Ok(Located { format, start, end })
}

fn unsupported_type(path: &Path, entry: &Entry) -> FormatError {
    Fault::new(path, TensorType::unread(entry.type_code))
        .of(entry.name.as_str())
        .hint("use a file of this model in Q4_K_M, Q6_K, Q8_0 or BF16, or make one with `brasa quantize`")
        .unsupported()
}

type Range<'a> = (u64, u64, &'a Entry, StorageFormat);

fn report_overlaps(path: &Path, ranges: &[Range<'_>], problems: &mut Problems) {
    let mut by_start: Vec<_> = ranges.iter().filter(|(start, end, ..)| start < end).collect();
    by_start.sort_by_key(|(start, ..)| *start);
    let mut widest: Option<&Range<'_>> = None;
    for range in by_start {
        if let Some(before) = widest.filter(|before| before.1 > range.0) {
            let problem =
                format!("its data overlaps that of \"{}\"", crate::error::Printable(&before.2.name));
            problems.push(Fault::new(path, problem).of(range.2.name.as_str()).at(range.0).malformed());
        }
        if widest.is_none_or(|before| range.1 > before.1) {
            widest = Some(range);
        }
    }
}
