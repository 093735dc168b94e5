//! JSON read with the care that files from strangers need: size caps, and no key twice.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use crate::error::Printable;
use crate::names::Names;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A text, borrowed from the JSON unless an escape stands in it.
#[derive(serde::Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// An object as ordered pairs; a key that appears twice is an error.
pub(crate) struct UniqueMap<V>(pub Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs: Vec<(String, V)> = Vec::new();
                let mut names = Names::default();
                while let Some(key) = map.next_key::<String>()? {
                    if !names.insert(&key, pairs.iter().map(|(key, _)| key.as_str())) {
                        return Err(A::Error::custom(format_args!(
                            "key \"{}\" appears twice",
                            Printable(&key)
                        )));
                    }
                    pairs.push((key, map.next_value()?));
                }
                Ok(UniqueMap(pairs))
            }
        }

        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// Any value in which no object has a key twice.
pub(crate) struct UniqueValue(pub Value);

impl<'de> Deserialize<'de> for UniqueValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = UniqueValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<UniqueValue, E> {
                Ok(UniqueValue(Value::Null))
            }

            fn visit_bool<E>(self, truth: bool) -> Result<UniqueValue, E> {
                Ok(UniqueValue(truth.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<UniqueValue, E> {
                Ok(UniqueValue(number.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<UniqueValue, E> {
                Ok(UniqueValue(number.into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<UniqueValue, E> {
                Ok(UniqueValue(number.into()))
            }

            fn visit_str<E>(self, text: &str) -> Result<UniqueValue, E> {
                Ok(UniqueValue(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<UniqueValue, A::Error> {
                let mut all = Vec::new();
                while let Some(UniqueValue(value)) = seq.next_element()? {
                    all.push(value);
                }
                Ok(UniqueValue(all.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueValue, A::Error> {
                let mut object = serde_json::Map::new();
                while let Some(key) = map.next_key::<String>()? {
                    if object.contains_key(&key) {
                        let key = Printable(&key);
                        return Err(A::Error::custom(format_args!("key \"{key}\" appears twice")));
                    }
                    let UniqueValue(value) = map.next_value()?;
                    object.insert(key, value);
                }
                Ok(UniqueValue(object.into()))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

/// Position of an error in `text`, in bytes from its start.
pub(crate) fn error_offset(text: &[u8], error: &serde_json::Error) -> usize {
    let lines = error.line().saturating_sub(1);
    let line_start = match lines {
        0 => 0,
        n => text.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(n - 1).map_or(0, |(at, _)| at + 1),
    };
    (line_start + error.column().saturating_sub(1)).min(text.len())
}

/// An error's message without its line and column, which the offset says better.
pub(crate) fn error_text(json: &[u8], error: &serde_json::Error) -> String {
    let text = error.to_string();
    // Python writes these three, and its own reader takes them.
    let rest = json.get(error_offset(json, error).saturating_sub(1)..).unwrap_or_default();
    let starts = |word: &&&str| {
        let word = word.as_bytes();
        rest.starts_with(word) || rest.get(1..).is_some_and(|rest| rest.starts_with(word))
    };
    if let Some(word) = ["NaN", "Infinity", "-Infinity"].iter().find(starts) {
        return format!("{word} is no number in JSON");
    }
    let text = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
    // It may quote the file at any length.
    Printable(text).to_string()
}
