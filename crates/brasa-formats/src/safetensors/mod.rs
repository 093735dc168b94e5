//! Safetensors, the container of Hugging Face and MLX: the header is checked whole before any of it is used.
//!
//! Layout: the header's length as u64, the header as a JSON object (name → dtype, shape, data offsets), then the data,
//! which the tensors cover exactly, without gaps or overlaps.

mod dtype;
mod header;
mod writer;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use crate::codec::{CodecError, decode_row};
use crate::error::Fault;
use crate::problems::Problems;
use crate::{Bytes, Payload, Result, Tensor};

pub use dtype::Dtype;
pub use writer::{TensorPlan, Writer};

use header::{RawEntry, TypeName, parse_header};

const LONGEST_HEADER: u64 = 100_000_000;
const METADATA: &str = "__metadata__";

/// One tensor as its file describes it.
#[derive(Clone, Debug)]
pub(crate) struct RawTensor {
    pub name: String,
    pub dtype_name: Cow<'static, str>,
    /// `None` if the name is unknown.
    pub dtype: Option<Dtype>,
    pub shape: Vec<usize>,
    pub file: Arc<Path>,
    /// From the start of the file.
    pub offset_bytes: u64,
    pub size_bytes: u64,
    /// The elements; `None` if something about them is wrong, which has been reported.
    pub bytes: Option<Bytes>,
}

/// The tensors of the safetensors file at `path`, whose content is `bytes`: all of them F32, F16 or BF16.
pub(crate) fn float_tensors(path: &Path, bytes: &Bytes) -> Result<Vec<Tensor>> {
    let mut problems = Problems::default();
    let raws = read(path, bytes, &mut problems)?;
    if let Some(problem) = problems.into_first() {
        return Err(problem);
    }
    let tensor = |raw: RawTensor| {
        let format = raw.dtype.and_then(Dtype::float_format);
        let (Some(format), Some(bytes)) = (format, raw.bytes) else {
            let problem = format!("stored as {}, expected F32, F16 or BF16", raw.dtype_name);
            return Err(Fault::new(path, problem).of(raw.name).unsupported());
        };
        Ok(Tensor { name: raw.name, shape: raw.shape, format, payload: Payload::Blocks(bytes) })
    };
    raws.into_iter().map(tensor).collect()
}

/// A tensor of F32 elements.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatTensor {
    /// The name in the file.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Elements, the last dimension innermost.
    pub values: Vec<f32>,
}

/// Reads all tensors of the safetensors file at `path`, from its content `bytes`. F16 and BF16 become F32.
///
/// # Errors
///
/// [`FormatError`](crate::FormatError) if the file is damaged, or has a tensor of another type than F32, F16 or BF16.
pub fn read_floats(path: &Path, bytes: &Bytes) -> Result<Vec<FloatTensor>> {
    let decoded = |tensor: Tensor| {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        if let Payload::Blocks(bytes) = &tensor.payload {
            let malformed =
                |error: CodecError| Fault::new(path, error.to_string()).of(tensor.name.as_str()).malformed();
            decode_row(tensor.format, bytes, &mut values).map_err(malformed)?;
        }
        Ok(FloatTensor { name: tensor.name, shape: tensor.shape, values })
    };
    float_tensors(path, bytes)?.into_iter().map(decoded).collect()
}

/// Reads the header of the file at `path`, and binds each tensor to its bytes.
///
/// Fails if the header is unreadable; what is wrong with single tensors goes to `problems`.
pub(crate) fn read(path: &Path, bytes: &Bytes, problems: &mut Problems) -> Result<Vec<RawTensor>> {
    let (header, data_start) = header_json(path, bytes)?;
    let header = parse_header(path, header)?;
    let data = bytes.slice(data_start..bytes.len()).expect("the header ends inside the file");

    let shared_path: Arc<Path> = path.into();
    let mut tensors: Vec<_> = header
        .0
        .into_iter()
        .map(|(name, entry)| bind(&shared_path, data_start as u64, &data, name, entry, problems))
        .collect();
    let before = problems.total();
    check_coverage(path, data_start as u64, data.len() as u64, &tensors, problems);
    if problems.total() > before {
        for tensor in &mut tensors {
            tensor.bytes = None;
        }
    }
    Ok(tensors)
}

/// The header's JSON text and where the data starts.
fn header_json<'a>(path: &Path, bytes: &'a Bytes) -> Result<(&'a [u8], usize)> {
    let malformed = |problem: String| Fault::new(path, problem).at(0_u64);
    let incomplete = "the file is incomplete; download it again";
    let Some(length) = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
        let problem = format!("{} bytes, too few for a safetensors header", bytes.len());
        return Err(malformed(problem).hint(incomplete).malformed());
    };
    if length > LONGEST_HEADER {
        let problem = format!("a header of {length} bytes, expected at most {LONGEST_HEADER}");
        return Err(malformed(problem).hint("this is no safetensors file, or it is damaged").malformed());
    }
    let end = 8 + length as usize;
    let Some(header) = bytes.get(8..end) else {
        let problem = format!("the file ends inside its header: {} bytes, {end} needed", bytes.len());
        return Err(malformed(problem).hint(incomplete).malformed());
    };
    if header.first() != Some(&b'{') {
        return Err(Fault::new(path, "the header does not start with `{`").at(8_u64).malformed());
    }
    Ok((header, end))
}

/// The free text in the header of the file at `path`, key by key.
pub(crate) fn metadata(path: &Path, bytes: &Bytes) -> Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "__metadata__")]
        metadata: Option<BTreeMap<String, String>>,
    }
    let (header, _) = header_json(path, bytes)?;
    let header: Header = serde_json::from_slice(header)
        .map_err(|error| Fault::new(path, format!("header: {error}")).malformed())?;
    Ok(header.metadata.unwrap_or_default())
}

fn bind(
    path: &Arc<Path>,
    data_start: u64,
    data: &Bytes,
    name: String,
    entry: RawEntry,
    problems: &mut Problems,
) -> RawTensor {
    let [begin, end] = entry.data_offsets;
    let fault = |problem: String| Fault::new(&**path, problem).of(name.as_str());
    let mut sound = true;
    let mut report = |fault: Fault| {
        problems.push(fault.malformed());
        sound = false;
    };

    if begin > end {
        report(fault(format!("data offsets [{begin}, {end}] run backwards")));
    }
    let shape: Vec<usize> =
        entry.shape.0.into_iter().map(|dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
    let elements = shape.iter().try_fold(1_u64, |product, &dim| product.checked_mul((dim as u64).max(1)));
    let TypeName { dtype, name: dtype_name } = entry.dtype;
    if let Some(dtype) = dtype {
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bits()));
        let bits = bits.map(|bits| if shape.contains(&0) { 0 } else { bits });
        match bits.filter(|bits| bits % 8 == 0).map(|bits| bits / 8) {
            None => report(fault(format!("shape {shape:?} of {dtype} is no number of bytes in 64 bits"))),
            Some(size) if begin <= end && size != end - begin => {
                let found = end - begin;
                report(fault(format!("{found} bytes, expected {size} for shape {shape:?} of {dtype}")));
            }
            Some(_) => {}
        }
    }

    let window = usize::try_from(begin).ok().zip(usize::try_from(end).ok());
    let bytes = window.filter(|_| sound).and_then(|(begin, end)| data.slice(begin..end));
    RawTensor {
        name,
        dtype_name,
        dtype,
        shape,
        file: Arc::clone(path),
        offset_bytes: data_start.saturating_add(begin),
        size_bytes: end.saturating_sub(begin),
        bytes,
    }
}

/// The tensors have to cover the data from its first to its last byte, each byte once.
fn check_coverage(
    path: &Path,
    data_start: u64,
    data_len: u64,
    tensors: &[RawTensor],
    problems: &mut Problems,
) {
    let mut ranges: Vec<_> = tensors
        .iter()
        .map(|tensor| {
            let begin = tensor.offset_bytes - data_start;
            (begin, begin.saturating_add(tensor.size_bytes), tensor.name.as_str())
        })
        .collect();
    ranges.sort_unstable();
    let mut covered = 0;
    for (begin, end, name) in ranges {
        if begin != covered {
            let problem = if begin < covered {
                "its data overlaps that of the tensor before it".to_owned()
            } else {
                format!("{} bytes before its data belong to no tensor", begin - covered)
            };
            let at = data_start.saturating_add(begin);
            return problems.push(Fault::new(path, problem).of(name).at(at).malformed());
        }
        covered = end;
    }
    if covered == data_len {
        return;
    }
    let needed = data_start.saturating_add(covered);
    let fault = Fault::new(path, format!("{} bytes, but its tensors need {needed}", data_start + data_len));
    let fault =
        if covered > data_len { fault.hint("the file is incomplete; download it again") } else { fault };
    problems.push(fault.malformed());
}
