//! The key-value pairs of a GGUF file, in order.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

use super::coerce::FromValue;
use super::value::Value;
use crate::error::Fault;
use crate::{FormatError, Result};

/// Metadata: an ordered map from key to [`Value`], read with checked coercions.
///
/// ```
/// use brasa_formats::gguf::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("general.architecture", "llama");
/// metadata.insert("llama.block_count", 16_u32);
///
/// assert_eq!(metadata.require::<&str>("general.architecture")?, "llama");
/// assert_eq!(metadata.get::<usize>("llama.block_count")?, Some(16));
/// assert_eq!(metadata.get::<f32>("llama.rope.freq_base")?, None);
/// assert!(metadata.get::<bool>("llama.block_count").is_err());
/// # Ok::<(), brasa_formats::FormatError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
    /// The file it came from, for messages.
    path: PathBuf,
}

impl Metadata {
    /// No keys yet.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn from_file(path: &Path) -> Self {
        Self { path: path.to_owned(), ..Self::default() }
    }

    /// The value of `key` as `T`, or `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// [`FormatError::Missing`] naming the key, if its value does not fit `T`.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        T::from_value(value).map(Some).ok_or_else(|| {
            let problem = format!("found {}, expected {}", describe(value), T::EXPECTED);
            Fault::new(&self.path, problem).of(key).missing()
        })
    }

    /// The value of `key` as `T`.
    ///
    /// # Errors
    ///
    /// [`FormatError::Missing`] naming the key, if it is absent or its value does not fit `T`.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.get(key)?.ok_or_else(|| self.absent(key))
    }

    fn absent(&self, key: &str) -> FormatError {
        Fault::new(&self.path, "this key is missing").of(key).missing()
    }

    /// The value of `key` as it is.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// True if the key is present.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// Iterates over all pairs, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sets `key`: in place if it exists, else at the end.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        if let Some(&at) = self.index.get(&key) {
            self.entries[at].1 = value;
        } else {
            self.index.insert(key.clone(), self.entries.len());
            self.entries.push((key, value));
        }
    }

    /// Adds a key; the key is given back if it is there already.
    pub(super) fn insert_new(&mut self, key: String, value: Value) -> std::result::Result<(), String> {
        match self.index.entry(key) {
            Entry::Occupied(known) => Err(known.key().clone()),
            Entry::Vacant(place) => {
                self.entries.push((place.key().clone(), value));
                place.insert(self.entries.len() - 1);
                Ok(())
            }
        }
    }

    /// Removes `key`; the other keys keep their order.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.index.remove(key)?;
        for place in self.index.values_mut() {
            *place -= usize::from(*place > at);
        }
        Some(self.entries.remove(at).1)
    }
}

/// Equal if keys, order and values are; the file they came from does not matter.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::String(_) => "a string".into(),
        Value::Array(array) => format!("an array of {} × {}", array.len(), array.element_type().name()),
        Value::Bool(x) => format!("the bool {x}"),
        Value::F32(x) => format!("the f32 {x:?}"),
        Value::F64(x) => format!("the f64 {x:?}"),
        Value::U8(x) => format!("the u8 {x}"),
        Value::I8(x) => format!("the i8 {x}"),
        Value::U16(x) => format!("the u16 {x}"),
        Value::I16(x) => format!("the i16 {x}"),
        Value::U32(x) => format!("the u32 {x}"),
        Value::I32(x) => format!("the i32 {x}"),
        Value::U64(x) => format!("the u64 {x}"),
        Value::I64(x) => format!("the i64 {x}"),
    }
}
