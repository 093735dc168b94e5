//! Parsing of everything before the tensor data. Every count is bounded before it is used.
//!
//! Layout: magic, version, two counts, key-value pairs, tensor descriptions, padding, data. Everything before
//! the data is packed without padding. Versions 2 and 3 are the same but for version 3's big-endian variant.

use std::path::Path;

use super::array::Array;
use super::metadata::Metadata;
use super::value::{Value, ValueType};
use crate::cursor::{Cursor, Read};
use crate::error::Fault;
use crate::names::Names;
use crate::{Bytes, Result};

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest alignment of data in bytes: that of a huge page.
pub(super) const LARGEST_ALIGNMENT: u64 = 1 << 30;
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";

/// Position of the tensor count in the file.
const TENSOR_COUNT_AT: usize = 8;
pub(super) const LONGEST_KEY: u64 = 65_535;
const LONGEST_STRING: u64 = 1 << 30;
const DEEPEST_ARRAY: u32 = 8;
const MOST_DIMS: u32 = 4;
/// The least bytes of a pair: empty key, type, one byte of value.
const SMALLEST_PAIR: u64 = 8 + 4 + 1;
/// The least bytes of a tensor description: empty name, no dimensions, type, offset.
const SMALLEST_ENTRY: u64 = 8 + 4 + 4 + 8;

/// A header, read up to the end of the metadata.
pub(super) struct Header {
    pub version: u32,
    pub metadata: Metadata,
    tensor_count: u64,
    entries_start: usize,
}

/// One tensor as the file describes it; its data has not been checked.
#[derive(Debug)]
pub(super) struct Entry {
    pub name: String,
    /// Dimensions, fastest first.
    pub dims: Vec<u64>,
    pub type_code: u32,
    /// Offset of the tensor's data in bytes, relative to the start of the data.
    pub offset: u64,
}

/// The descriptions of all tensors, and the position of the data.
#[derive(Debug)]
pub(super) struct Entries {
    pub list: Vec<Entry>,
    pub alignment: u64,
    /// Offset in bytes, relative to the start of the file.
    pub data_start: u64,
}

impl Header {
    /// Reads magic, version, counts and metadata.
    pub fn read(path: &Path, bytes: &Bytes) -> Result<Self> {
        let mut cursor = Cursor { path, bytes, at: 0 };
        let magic: [u8; 4] = cursor.array("the magic")?;
        if magic != MAGIC {
            let problem = format!("starts with {:?}, expected \"GGUF\"", magic.escape_ascii().to_string());
            return Err(Fault::new(path, problem).at(0_u64).malformed());
        }
        let version = cursor.u32("the version")?;
        check_version(path, version)?;

        let tensor_count = cursor.u64("the tensor count")?;
        let pair_count = cursor.count("key-value pairs", SMALLEST_PAIR)?;

        let mut metadata = Metadata::from_file(path);
        for _ in 0..pair_count {
            let start = cursor.at;
            let key = cursor.text("a key", LONGEST_KEY)?;
            let value = cursor.value().map_err(|fault| fault.of(key.as_str()).malformed())?;
            if let Err(key) = metadata.insert_new(key, value) {
                return Err(Fault::new(path, "this key appears twice").of(key).at(start).malformed());
            }
        }
        Ok(Self { version, metadata, tensor_count, entries_start: cursor.at })
    }

    /// Reads the tensor descriptions that follow.
    pub fn entries(&self, path: &Path, bytes: &Bytes) -> Result<Entries> {
        let mut cursor = Cursor { path, bytes, at: self.entries_start };
        let alignment = self.metadata.get(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || !(8..=LARGEST_ALIGNMENT).contains(&alignment) {
            let problem = format!("found {alignment}, expected a power of two from 8 to {LARGEST_ALIGNMENT}");
            return Err(Fault::new(path, problem).of(ALIGNMENT_KEY).malformed());
        }

        cursor.check_count("tensors", self.tensor_count, SMALLEST_ENTRY, TENSOR_COUNT_AT)?;
        let mut entries: Vec<Entry> = Vec::new();
        let mut names = Names::default();
        for _ in 0..self.tensor_count {
            let start = cursor.at;
            let entry = cursor.entry()?;
            if !names.insert(&entry.name, entries.iter().map(|entry| entry.name.as_str())) {
                let fault = Fault::new(path, "this tensor appears twice");
                return Err(fault.of(entry.name).at(start).malformed());
            }
            entries.push(entry);
        }
        let data_start = (cursor.at as u64).next_multiple_of(alignment);
        Ok(Entries { list: entries, alignment, data_start })
    }
}

fn check_version(path: &Path, version: u32) -> Result<()> {
    let unsupported =
        |problem: String, hint: &str| Err(Fault::new(path, problem).at(4_u64).hint(hint).unsupported());
    match version {
        2 | 3 => Ok(()),
        1 => unsupported(
            "GGUF version 1 has 32-bit counts and is not read; expected version 2 or 3".into(),
            "files of version 1 are from August 2023; convert the model anew",
        ),
        _ if version != 0 && version.trailing_zeros() >= 16 => unsupported(
            format!(
                "a big-endian GGUF file (version {} byte-swapped), expected little-endian",
                version.swap_bytes()
            ),
            "download or convert the little-endian form of this model",
        ),
        _ => unsupported(
            format!("GGUF version {version}, expected 2 or 3"),
            "the file is damaged, or newer than this version of brasa",
        ),
    }
}

impl Cursor<'_> {
    fn value_type(&mut self) -> Read<ValueType> {
        let start = self.at;
        let code = self.u32("a value type")?;
        ValueType::from_code(code).ok_or_else(|| {
            Fault::new(self.path, format!("unknown value type {code}, expected 0 to 12")).at(start)
        })
    }

    fn value(&mut self) -> Read<Value> {
        let value_type = self.value_type()?;
        Ok(match value_type {
            ValueType::String => Value::String(self.text("a string", LONGEST_STRING)?),
            ValueType::Array => {
                let element = self.value_type()?;
                let len = self.array_len(element)?;
                let start = self.at;
                self.skip_elements(element, len, 1)?;
                let packed = self.bytes.slice(start..self.at).expect("already walked");
                Value::Array(Array::validated(element, len, packed))
            }
            scalar => self.scalar(scalar)?,
        })
    }

    fn scalar(&mut self, value_type: ValueType) -> Read<Value> {
        let (start, path) = (self.at, self.path);
        let size = value_type.size_bytes().unwrap_or(0) as u64;
        let bytes = self.take(size, "a value")?;
        Value::from_le_bytes(value_type, bytes)
            .ok_or_else(|| Fault::new(path, format!("a bool of {}, expected 0 or 1", bytes[0])).at(start))
    }

    fn array_len(&mut self, element: ValueType) -> Read<usize> {
        let smallest = match element {
            ValueType::String => 8,
            ValueType::Array => 12,
            scalar => scalar.size_bytes().unwrap_or(1) as u64,
        };
        self.count("array elements", smallest)
    }

    /// Walks over the elements of an array at `depth`, checking all that is inside.
    fn skip_elements(&mut self, element: ValueType, len: usize, depth: u32) -> Read<()> {
        match element {
            ValueType::String => {
                for _ in 0..len {
                    self.string_bytes("a string", LONGEST_STRING)?;
                }
            }
            ValueType::Array => {
                if depth >= DEEPEST_ARRAY {
                    return Err(self.fault(format!("arrays nested deeper than {DEEPEST_ARRAY}")));
                }
                for _ in 0..len {
                    let inner = self.value_type()?;
                    let inner_len = self.array_len(inner)?;
                    self.skip_elements(inner, inner_len, depth + 1)?;
                }
            }
            ValueType::Bool => {
                for _ in 0..len {
                    self.scalar(ValueType::Bool)?;
                }
            }
            scalar => {
                self.take(scalar.size_bytes().unwrap_or(0) as u64 * len as u64, "an array")?;
            }
        }
        Ok(())
    }

    fn entry(&mut self) -> Read<Entry> {
        let name = self.text("a tensor name", LONGEST_KEY)?;
        match self.description() {
            Ok((dims, type_code, offset)) => Ok(Entry { name, dims, type_code, offset }),
            Err(fault) => Err(fault.of(name)),
        }
    }

    /// Dimensions, type and offset of a tensor.
    fn description(&mut self) -> Read<(Vec<u64>, u32, u64)> {
        let start = self.at;
        let num_dims = self.u32("a tensor description")?;
        if num_dims > MOST_DIMS {
            let problem = format!("{num_dims} dimensions, expected at most {MOST_DIMS}");
            return Err(Fault::new(self.path, problem).at(start));
        }
        let dims = (0..num_dims).map(|_| self.u64("a tensor description")).collect::<Read<_>>()?;
        let type_code = self.u32("a tensor description")?;
        let offset = self.u64("a tensor description")?;
        Ok((dims, type_code, offset))
    }
}
