//! The header's JSON, read entry by entry: names once, ranks bounded, errors that say which tensor.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{Dtype, METADATA};
use crate::Result;
use crate::error::Fault;
use crate::json::{self, Text, UniqueMap};
use crate::names::{Names, any_twice};

const MOST_DIMS: usize = 8;

#[derive(Deserialize)]
#[serde(expecting = "an object with dtype, shape and data_offsets")]
pub(super) struct RawEntry {
    pub dtype: TypeName,
    pub shape: Dims,
    pub data_offsets: [u64; 2],
}

/// The name of an element type, and the type if it is known.
pub(super) struct TypeName {
    pub name: Cow<'static, str>,
    pub dtype: Option<Dtype>,
}

impl<'de> Deserialize<'de> for TypeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(name) = Text::deserialize(deserializer)?;
        let dtype = Dtype::from_name(&name);
        let name = dtype.map_or_else(|| Cow::Owned(name.into_owned()), |dtype| Cow::Borrowed(dtype.name()));
        Ok(Self { name, dtype })
    }
}

/// A shape of bounded rank, so that a list of a hundred million zeros is refused before it is stored.
pub(super) struct Dims(pub Vec<u64>);

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

/// The tensors of a header, in order.
pub(super) struct RawHeader(pub Vec<(String, RawEntry)>);

/// Parses the header of the file at `path`, which starts at its byte 8.
pub(super) fn parse_header(path: &Path, json: &[u8]) -> Result<RawHeader> {
    let header = parse(path, json, None)?;
    // The second pass says where; few files need it.
    let repeats = any_twice(header.0.iter().map(|(name, _)| name.as_str()));
    if repeats { parse(path, json, Some(Names::default())) } else { Ok(header) }
}

/// Parses the header; looks for names that appear twice if there are `names`.
fn parse(path: &Path, json: &[u8], names: Option<Names>) -> Result<RawHeader> {
    let current = RefCell::new(Cow::Borrowed(""));
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let parsed = HeaderSeed { current: &current, names }
        .deserialize(&mut deserializer)
        .and_then(|header| deserializer.end().map(|()| header));
    parsed.map_err(|error| {
        let problem = format!("header: {}", json::error_text(json, &error));
        let mut fault = Fault::new(path, problem).at(8 + json::error_offset(json, &error));
        fault.name = Some(current.take().into_owned()).filter(|name| !name.is_empty());
        fault.malformed()
    })
}

/// Reads the header object, noting in `current` which entry is being read.
struct HeaderSeed<'c, 'de> {
    current: &'c RefCell<Cow<'de, str>>,
    names: Option<Names>,
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_, 'de> {
    type Value = RawHeader;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawHeader, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_, 'de> {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut entries = Vec::new();
        let mut has_metadata = false;
        while let Some(Text(name)) = map.next_key()? {
            self.current.replace(name.clone());
            let is_metadata = name == METADATA;
            let earlier = entries.iter().map(|(name, _): &(String, _)| name.as_str());
            let is_new = self.names.as_mut().is_none_or(|names| names.insert(&name, earlier));
            if !is_new || is_metadata && has_metadata {
                return Err(A::Error::custom("this name appears twice"));
            }
            if is_metadata {
                // Free text of the exporter; only its shape is checked. MLX writes null where there is none.
                map.next_value::<Option<UniqueMap<String>>>()?;
                has_metadata = true;
            } else {
                entries.push((name.into_owned(), map.next_value()?));
            }
            self.current.take();
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
