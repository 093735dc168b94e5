//! Reading configuration: values have types and bounds, and the keys that were read are recorded.

use std::cell::RefCell;
use std::collections::BTreeSet;

use brasa_formats::Tensor;
use serde_json::{Map, Value};

use crate::judge::{Verdict, judge};
use crate::keys::Key;
use crate::names::Names;
use crate::source::Source;
use crate::{LoadOptions, MOST_WARNINGS, ModelError, Result};
use brasa_formats::Container;

/// Bounds of the settings of a model. A number beyond them is a mistake or an attack.
pub(crate) mod limits {
    pub const LAYERS: usize = 1 << 10;
    pub const WIDTH: usize = 1 << 20;
    pub const HEADS: usize = 1 << 12;
    pub const HEAD_DIM: usize = 1 << 13;
    pub const VOCAB: usize = 1 << 24;
    pub const FFN_WIDTH: usize = 1 << 22;
    pub const EXPERTS: usize = 1 << 12;
    pub const POSITIONS: usize = 1 << 31;
}

/// A checkpoint's configuration, as the families read it.
#[derive(Debug)]
pub(crate) struct Metadata<'a> {
    source: &'a Source,
    options: &'a LoadOptions,
    names: Names,
    read: RefCell<BTreeSet<&'a str>>,
    /// Tensors that the configuration used.
    tensors: RefCell<BTreeSet<&'a str>>,
    warnings: RefCell<Vec<String>>,
}

impl<'a> Metadata<'a> {
    pub fn new(source: &'a Source, options: &'a LoadOptions) -> Self {
        let names = Names::of(source);
        Self {
            source,
            options,
            names,
            read: RefCell::default(),
            tensors: RefCell::default(),
            warnings: RefCell::default(),
        }
    }

    pub fn source(&self) -> &'a Source {
        self.source
    }

    pub fn names(&self) -> Names {
        self.names
    }

    pub fn container(&self) -> Container {
        self.source.container
    }

    pub fn is_gguf(&self) -> bool {
        self.container() == Container::Gguf
    }

    /// Number of positions that the caller wants to use, if it named one.
    pub fn wanted_context(&self) -> Option<usize> {
        self.options.context_length
    }

    /// True if the checkpoint has a tensor with exactly this name; the tensor then counts as used.
    pub fn uses_tensor(&self, name: &str) -> bool {
        let found = self.source.tensors.get_key_value(name);
        found.inspect(|(name, _)| _ = self.tensors.borrow_mut().insert(name)).is_some()
    }

    /// Decodes a small vector, e.g. factors of frequencies; `None` if the checkpoint has no such tensor.
    pub fn vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        if !self.uses_tensor(name) {
            return Ok(None);
        }
        floats(&self.source.tensors[name], &[len], "one per rotated pair").map(Some)
    }

    pub fn warn(&self, warning: impl Into<String>) {
        self.warnings.borrow_mut().push(warning.into());
    }

    /// Warns like [`warn`](Self::warn), but once for a value that is read for each kind of layer.
    pub fn warn_once(&self, warning: &str) {
        if !self.warnings.borrow().iter().any(|known| known == warning) {
            self.warn(warning);
        }
    }

    /// The value of `key`, with the name under which it was found. A null counts as missing.
    pub fn value(&self, key: Key) -> Option<(&'a str, &'a Value)> {
        self.all_values(key).into_iter().next()
    }

    /// The values under all names of `key`, without nulls.
    fn all_values(&self, key: Key) -> Vec<(&'a str, &'a Value)> {
        let mut found = Vec::new();
        for &spelling in self.spellings(key) {
            for map in [&self.source.values, &self.source.outer] {
                if let Some((name, value)) = map.get_key_value(spelling) {
                    self.read.borrow_mut().insert(name);
                    if !value.is_null() {
                        found.push((name.as_str(), value));
                    }
                }
            }
        }
        found
    }

    fn spellings(&self, key: Key) -> &'static [&'static str] {
        if self.is_gguf() { key.gguf } else { key.hf }
    }

    /// True if the key is present, even with a null.
    pub fn mentions(&self, key: Key) -> bool {
        self.spellings(key).iter().any(|&name| self.source.values.contains_key(name))
    }

    fn convert<T>(
        &self,
        key: Key,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some((name, value)) = self.value(key) else { return Ok(None) };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(self.bad_value(name, value, expected)),
        }
    }

    /// An error about a value, which names `key` as the checkpoint spells it.
    pub fn bad_value(&self, key: &str, value: &Value, expected: &str) -> ModelError {
        ModelError::BadValue {
            key: self.source.spelled(key),
            found: shortened(value),
            expected: expected.into(),
        }
    }

    pub fn missing(&self, key: Key) -> ModelError {
        ModelError::MissingKey { key: self.source.spelled(self.spellings(key).first().unwrap_or(&"?")) }
    }

    /// The count under `key`, from 1 to `most`; `None` if the key is missing. An array, as GGUF has them per layer, is accepted
    /// if all its elements are equal.
    pub fn count(&self, key: Key, most: usize) -> Result<Option<usize>> {
        self.convert(key, &format!("a whole number from 1 to {most}"), |value| match value {
            Value::Array(all) => {
                let first = all.first()?;
                all.iter().all(|other| other == first).then(|| whole(first))?
            }
            one => whole(one),
        })?
        .map_or(Ok(None), |count| {
            if (1..=most).contains(&count) {
                return Ok(Some(count));
            }
            let (name, value) = self.value(key).expect("read a moment ago");
            Err(self.bad_value(name, value, &format!("a whole number from 1 to {most}")))
        })
    }

    /// The value of `key`, or `assumed` if the checkpoint has no such key. Classes of Hugging Face define what an absent key means.
    /// GGUF defines nothing, so there the assumption is a warning, or an error if the caller is strict.
    pub fn or_assumed<T: std::fmt::Display>(&self, key: Key, found: Option<T>, assumed: T) -> Result<T> {
        // GGUF has no word for some keys.
        if found.is_none() && self.is_gguf() && !key.gguf.is_empty() {
            if self.options.strict {
                return Err(self.missing(key));
            }
            let spelled = self.source.spelled(key.gguf[0]);
            self.warn_once(&format!("configuration key {spelled}: not in the file; {assumed} is assumed"));
        }
        Ok(found.unwrap_or(assumed))
    }

    /// The count under `key`, from 1 to `most`; an error if the key is missing.
    pub fn require(&self, key: Key, most: usize) -> Result<usize> {
        self.count(key, most)?.ok_or_else(|| self.missing(key))
    }

    /// The count under `key`, from 0 to `most`; 0 if the key is missing.
    pub fn count_or_zero(&self, key: Key, most: usize) -> Result<usize> {
        let expected = format!("a whole number from 0 to {most}");
        Ok(self.convert(key, &expected, |value| whole(value).filter(|&n| n <= most))?.unwrap_or(0))
    }

    /// One count per layer, from an array or from one number for all layers; `None` if the key is missing.
    pub fn count_per_layer(&self, key: Key, layers: usize, most: usize) -> Result<Option<Vec<usize>>> {
        let expected = format!("whole numbers from 1 to {most}, one or {layers}");
        let fits = |&n: &usize| (1..=most).contains(&n);
        self.convert(key, &expected, |value| match value {
            Value::Array(all) if all.len() == layers => {
                all.iter().map(|one| whole(one).filter(fits)).collect()
            }
            one => whole(one).filter(fits).map(|n| vec![n; layers]),
        })
    }

    /// The finite number under `key`; `None` if the key is missing.
    pub fn number(&self, key: Key) -> Result<Option<f32>> {
        self.convert(key, "a finite number", finite)
    }

    /// The finite number above zero under `key`; `None` if the key is missing.
    pub fn positive(&self, key: Key) -> Result<Option<f32>> {
        self.convert(key, "a number above zero", |value| finite(value).filter(|&x| x > 0.0))
    }

    /// The cap above zero under `key`; `None` if the key is missing or zero, which GGUF files write for no cap.
    pub fn cap(&self, key: Key) -> Result<Option<f32>> {
        let cap =
            self.convert(key, "a number, not below zero", |value| finite(value).filter(|&x| x >= 0.0))?;
        Ok(cap.filter(|&cap| cap > 0.0))
    }

    pub fn bool(&self, key: Key) -> Result<Option<bool>> {
        self.convert(key, "true or false", Value::as_bool)
    }

    pub fn text(&self, key: Key) -> Result<Option<&'a str>> {
        self.convert(key, "a string", Value::as_str)
    }

    pub fn array(&self, key: Key) -> Result<Option<&'a [Value]>> {
        self.convert(key, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    pub fn object(&self, key: Key) -> Result<Option<&'a Map<String, Value>>> {
        self.convert(key, "an object", Value::as_object)
    }

    /// The objects under all spellings of `key`, with their names; empty objects are left out.
    pub fn objects(&self, key: Key) -> Result<Vec<(&'a str, &'a Map<String, Value>)>> {
        let mut found = Vec::new();
        for (name, value) in self.all_values(key) {
            let map = value.as_object().ok_or_else(|| self.bad_value(name, value, "an object"))?;
            if !map.is_empty() {
                found.push((name, map));
            }
        }
        Ok(found)
    }

    /// Reports an unknown key within a value: an error if the caller is strict, else a warning.
    pub fn unknown(&self, key: &str, value: &Value) -> Result<()> {
        let unknown = ModelError::UnknownKey { key: key.into(), value: shortened(value) };
        if self.options.strict {
            return Err(unknown);
        }
        self.warn_once(&unknown.to_string());
        Ok(())
    }

    /// Reports the keys that were never read. Returns all warnings, and the names of tensors that the configuration used.
    pub fn finish(self) -> Result<(Vec<String>, BTreeSet<&'a str>)> {
        let read = self.read.into_inner();
        let mut warnings = self.warnings.into_inner();
        let mut unknown_keys = 0_usize;
        for (key, value) in self.source.values.iter().chain(&self.source.outer) {
            if read.contains(key.as_str()) || key == Source::VOCABULARY {
                continue;
            }
            let (spelled, value_text) = (self.source.spelled(key), shortened(value));
            match judge(self.source.container, key, value) {
                Verdict::Fine => {}
                Verdict::Refused(expected) => {
                    return Err(ModelError::BadValue { key: spelled, found: value_text, expected });
                }
                Verdict::Unknown => {
                    let unknown = ModelError::UnknownKey { key: spelled, value: value_text };
                    if self.options.strict {
                        return Err(unknown);
                    }
                    unknown_keys += 1;
                    if unknown_keys <= MOST_WARNINGS {
                        warnings.push(unknown.to_string());
                    }
                }
            }
        }
        if unknown_keys > MOST_WARNINGS {
            warnings.push(format!("{} more configuration keys are not known", unknown_keys - MOST_WARNINGS));
        }
        Ok((warnings, self.tensors.into_inner()))
    }
}

/// The value as a whole number that is not negative; `None` if it is none. Floats without a fraction count, since some exports
/// write them.
fn whole(value: &Value) -> Option<usize> {
    let number = value.as_u64().or_else(|| {
        let float = value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..9e15).contains(x))?;
        Some(float as u64)
    })?;
    usize::try_from(number).ok().filter(|&n| n <= limits::POSITIONS)
}

pub(crate) fn finite(value: &Value) -> Option<f32> {
    value.as_f64().map(|x| x as f32).filter(|x| x.is_finite())
}

/// A value as text, shortened for a message.
pub(crate) fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Decodes a small tensor of plain floats.
pub(crate) fn floats(tensor: &Tensor, shape: &[usize], why: &str) -> Result<Vec<f32>> {
    // A scalar may have no axis or one.
    let scalar = shape == [1] && tensor.shape.is_empty();
    if tensor.shape != shape && !scalar {
        return Err(ModelError::TensorShape {
            tensor: tensor.name.clone(),
            found: tensor.shape.clone(),
            expected: shape.into(),
            why: why.into(),
        });
    }
    let mut values = vec![0.0; shape.iter().product()];
    tensor.decode_rows(0..tensor.rows(), &mut values).map_err(|_| ModelError::TensorFormat {
        tensor: tensor.name.clone(),
        format: tensor.format.to_string(),
    })?;
    Ok(values)
}
