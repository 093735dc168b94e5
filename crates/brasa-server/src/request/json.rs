//! JSON from untrusted clients, parsed within limits.
//!
//! A value takes far more memory than its text: `[],[],…` takes forty times as much. So memory is counted while values are built,
//! and parsing stops when it exceeds the limit. Nesting is bounded by `serde_json`.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::http::budget::Account;
use crate::http::error::{ApiError, Result};

/// Bytes of a value itself, in a list or beside its name in an object.
const PLACE_BYTES: usize = size_of::<Value>();
/// Bytes of an object's table with its first entries.
const OBJECT_BYTES: usize = 64 + 3 * ENTRY_BYTES;
/// Bytes of an object's entry: hash, name, value, and its place in the table.
const ENTRY_BYTES: usize = PLACE_BYTES + size_of::<String>() + 24;
/// Bytes of a list's first items.
const LIST_BYTES: usize = 4 * PLACE_BYTES;
/// Bytes that are taken from the budget at once.
const PORTION: usize = 256 << 10;

/// Parses a JSON value. Adds its memory, at most `most` bytes, to `account`.
///
/// # Errors
///
/// 400 for a text that is not JSON, 413 for a value that needs more memory, 503 if the account cannot grow.
pub(crate) fn read(text: &[u8], most: usize, account: &mut Account) -> Result<Value> {
    let meter = Meter {
        account: RefCell::new(account),
        bytes: Cell::new(0),
        taken: Cell::new(0),
        most,
        refusal: RefCell::new(None),
    };
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = Counted(&meter).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| {
        let refusal = meter.refusal.take();
        refusal.unwrap_or_else(|| {
            let message = format!("the body is no JSON: {error}");
            ApiError { code: "invalid_json", ..ApiError::invalid(message) }
        })
    })
}

/// Counts the memory of a value while it is built.
struct Meter<'a> {
    account: RefCell<&'a mut Account>,
    bytes: Cell<usize>,
    taken: Cell<usize>,
    most: usize,
    /// The reason why parsing stopped, other than a mistake in the text.
    refusal: RefCell<Option<ApiError>>,
}

impl Meter<'_> {
    fn add<E: serde::de::Error>(&self, bytes: usize) -> Result<(), E> {
        let bytes = self.bytes.get() + bytes;
        self.bytes.set(bytes);
        if bytes <= self.taken.get() {
            return Ok(());
        }
        let outcome = if bytes > self.most {
            let message = format!(
                "the values of the body take more than {} bytes, the most that this server reads",
                self.most
            );
            Err(ApiError { message, ..ApiError::too_large(self.most) })
        } else {
            let portion = (bytes - self.taken.get()).max(PORTION);
            self.taken.set(self.taken.get() + portion);
            self.account.borrow_mut().grow(portion)
        };
        outcome.map_err(|error| {
            self.refusal.replace(Some(error));
            E::custom("too much")
        })
    }
}

/// Deserialises a value and counts its memory.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Meter<'a>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.0.add(text.len())?;
        Ok(text.into())
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Value, E> {
        self.0.add(text.len())?;
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            self.0.add(if list.is_empty() { LIST_BYTES } else { PLACE_BYTES })?;
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            self.0.add(name.len() + if map.is_empty() { OBJECT_BYTES } else { ENTRY_BYTES })?;
            let value = entries.next_value_seed(self)?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}
