//! Safetensors: the header, checked whole before any of it is used.
//!
//! Layout: the header's length as u64, the header as a JSON object (name → dtype, shape, data offsets), then the data,
//! which the tensors cover exactly, without gaps or overlaps.

mod writer;

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::error::Fault;
use crate::json::{self, UniqueMap};
use crate::problems::Problems;
use crate::{Bytes, Result, StorageFormat};

pub use writer::{TensorPlan, Writer};

const LONGEST_HEADER: u64 = 100_000_000;
const MOST_DIMS: usize = 8;
const METADATA: &str = "__metadata__";

/// An element type, as the public format names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Dtype {
    BOOL,
    U8,
    I8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F4,
    F6_E2M3,
    F6_E3M2,
    F8_E5M2,
    F8_E4M3,
    F8_E5M2FNUZ,
    F8_E4M3FNUZ,
    F8_E8M0,
    F16,
    BF16,
    F32,
    F64,
    C64,
}

impl Dtype {
    const ALL: [Self; 22] = [
        Self::BOOL,
        Self::U8,
        Self::I8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F4,
        Self::F6_E2M3,
        Self::F6_E3M2,
        Self::F8_E5M2,
        Self::F8_E4M3,
        Self::F8_E5M2FNUZ,
        Self::F8_E4M3FNUZ,
        Self::F8_E8M0,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::C64,
    ];

    /// The type of a name; `None` for an unknown one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.to_string() == name)
    }

    /// Bits per element.
    pub const fn bits(self) -> u64 {
        match self {
            Self::F4 => 4,
            Self::F6_E2M3 | Self::F6_E3M2 => 6,
            Self::BOOL
            | Self::U8
            | Self::I8
            | Self::F8_E5M2
            | Self::F8_E4M3
            | Self::F8_E5M2FNUZ
            | Self::F8_E4M3FNUZ
            | Self::F8_E8M0 => 8,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 16,
            Self::I32 | Self::U32 | Self::F32 => 32,
            Self::I64 | Self::U64 | Self::F64 | Self::C64 => 64,
        }
    }

    /// The storage format of a plain float that Brasa reads; `None` for everything else.
    pub const fn float_format(self) -> Option<StorageFormat> {
        match self {
            Self::F16 => Some(StorageFormat::F16),
            Self::BF16 => Some(StorageFormat::BF16),
            Self::F32 => Some(StorageFormat::F32),
            _ => None,
        }
    }

    /// True for integers and bools.
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::BOOL
                | Self::U8
                | Self::I8
                | Self::I16
                | Self::U16
                | Self::I32
                | Self::U32
                | Self::I64
                | Self::U64
        )
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// One tensor as its file describes it.
#[derive(Clone, Debug)]
pub(crate) struct RawTensor {
    pub name: String,
    pub dtype_name: String,
    /// `None` where the name is unknown.
    pub dtype: Option<Dtype>,
    pub shape: Vec<usize>,
    pub file: PathBuf,
    /// From the start of the file.
    pub offset_bytes: u64,
    pub size_bytes: u64,
    /// The elements; `None` where something about them is wrong, which has been reported.
    pub bytes: Option<Bytes>,
}

/// Reads the header of the file at `path`, and binds each tensor to its bytes.
///
/// Fails where the header is unreadable; what is wrong with single tensors goes to `problems`.
pub(crate) fn read(path: &Path, bytes: &Bytes, problems: &mut Problems) -> Result<Vec<RawTensor>> {
    let (header, data_start) = header_json(path, bytes)?;
    let header = parse_header(path, header)?;
    let data = bytes.slice(data_start..bytes.len()).expect("the header ends inside the file");

    let mut tensors: Vec<_> = header
        .0
        .into_iter()
        .map(|(name, entry)| bind(path, data_start as u64, &data, name, entry, problems))
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

fn bind(
    path: &Path,
    data_start: u64,
    data: &Bytes,
    name: String,
    entry: RawEntry,
    problems: &mut Problems,
) -> RawTensor {
    let [begin, end] = entry.data_offsets;
    let fault = |problem: String| Fault::new(path, problem).of(name.as_str());
    let mut sound = true;
    let mut report = |fault: Fault| {
        problems.push(fault.malformed());
        sound = false;
    };

    if begin > end {
        report(fault(format!("data offsets [{begin}, {end}] run backwards")));
    }
    let shape: Vec<usize> =
        entry.shape.0.iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
    let elements = shape.iter().try_fold(1_u64, |product, &dim| product.checked_mul((dim as u64).max(1)));
    let dtype = Dtype::from_name(&entry.dtype);
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
        dtype_name: entry.dtype,
        dtype,
        shape,
        file: path.to_owned(),
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

#[derive(Deserialize)]
#[serde(expecting = "an object with dtype, shape and data_offsets")]
struct RawEntry {
    dtype: String,
    shape: Dims,
    data_offsets: [u64; 2],
}

/// A shape of bounded rank, so that a list of a hundred million zeros is refused before it is stored.
struct Dims(Vec<u64>);

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DimsVisitor;

        impl<'de> Visitor<'de> for DimsVisitor {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST_DIMS} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MOST_DIMS {
                        return Err(A::Error::custom(format_args!("more than {MOST_DIMS} dimensions")));
                    }
                    dims.push(dim);
                }
                Ok(Dims(dims))
            }
        }

        deserializer.deserialize_seq(DimsVisitor)
    }
}

struct RawHeader(Vec<(String, RawEntry)>);

fn parse_header(path: &Path, json: &[u8]) -> Result<RawHeader> {
    let current = RefCell::new(None);
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let parsed = HeaderSeed { current: &current }
        .deserialize(&mut deserializer)
        .and_then(|header| deserializer.end().map(|()| header));
    parsed.map_err(|error| {
        let problem = format!("header: {}", json::error_text(&error));
        let mut fault = Fault::new(path, problem).at(8 + json::error_offset(json, &error));
        fault.name = current.take();
        fault.malformed()
    })
}

/// Reads the header object, noting in `current` which entry is being read.
struct HeaderSeed<'c> {
    current: &'c RefCell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawHeader, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            self.current.replace(Some(name.clone()));
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom("this name appears twice"));
            }
            if name == METADATA {
                // Free text of the exporter; only its shape is checked. MLX writes null where there is none.
                map.next_value::<Option<UniqueMap<String>>>()?;
            } else {
                entries.push((name, map.next_value()?));
            }
            self.current.replace(None);
        }
        Ok(RawHeader(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mx.save_safetensors` without metadata writes a null.
    #[test]
    fn metadata_may_be_null_but_not_a_number() {
        let header = |metadata: &str| format!("{{\"__metadata__\":{metadata}}}");
        assert!(parse_header(Path::new("m"), header("null").as_bytes()).is_ok());
        assert!(parse_header(Path::new("m"), header("{\"format\":\"mlx\"}").as_bytes()).is_ok());
        assert!(parse_header(Path::new("m"), header("7").as_bytes()).is_err());
    }
}
