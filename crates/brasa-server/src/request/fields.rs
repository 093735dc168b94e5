//! The fields of a request's body, and the policy for each of them.
//!
//! A field is *honoured* (a handler reads it), *inert* (accepted, and known to change nothing here), *refused* (known, and not
//! honoured: 400 that names it, unless its value is neutral), or *unknown*: accepted, counted, and logged once. The table of the known
//! ones is in `known.rs`.

use std::sync::{Arc, Mutex, PoisonError};

use brasa::grammar::Literals;
use brasa::tokenizer::exact_number;
pub(crate) use brasa::tokenizer::json_kind as kind;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::http::error::{ApiError, Result};
use crate::request::known::{self, Left, Neutral};

/// Most unknown fields inside objects of a request that are counted.
const MOST_UNKNOWN: usize = 1000;

/// The fields of one JSON object that have not been read yet.
///
/// When this is dropped, the remaining fields of an object inside a body are counted as unknown fields of the body.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// The operator's defaults for fields that the body does not have.
    defaults: Map<String, Value>,
    /// The model that the body names, whether or not the field was read.
    model: Option<String>,
    /// The path of the object from the body, with a final full stop; empty for the body itself.
    place: String,
    /// The unknown fields inside the objects of the body.
    unknown_inside: Arc<Mutex<Vec<String>>>,
    /// The exact text of the numbers in the body that were rounded when parsed.
    literals: Arc<Literals>,
}

impl Drop for Fields {
    fn drop(&mut self) {
        if !self.place.is_empty() {
            self.count_unknown(&self.place, self.map.keys().map(String::as_str));
        }
    }
}

impl Fields {
    /// The fields of a body.
    pub fn new(map: Map<String, Value>) -> Self {
        let model = map.get("model").and_then(Value::as_str).map(String::from);
        Self {
            map,
            defaults: Map::new(),
            model,
            place: String::new(),
            unknown_inside: Arc::default(),
            literals: Arc::default(),
        }
    }

    /// The fields of a body, with the exact text of its rounded numbers.
    pub fn with_literals(map: Map<String, Value>, literals: Literals) -> Self {
        let mut fields = Self::new(map);
        fields.literals = Arc::new(literals);
        fields
    }

    /// The fields with the operator's defaults for fields that the body does not have.
    pub fn with_defaults(mut self, defaults: Map<String, Value>) -> Self {
        self.defaults = defaults;
        self
    }

    /// Restores the exact numbers of a schema in the body.
    pub fn exact(&self, mut schema: Value) -> Value {
        self.literals.put_back(&mut schema);
        schema
    }

    /// A value of the body with the exact text of its numbers, for the chat template, the grammar of calls and [`reply::exact`].
    ///
    /// [`reply::exact`]: crate::http::reply::exact
    ///
    /// # Errors
    ///
    /// 400 for a number that was rounded to the same value as another number of the body.
    pub fn exact_numbers(&self, place: &str, mut value: Value) -> Result<Value> {
        let mut is_known = true;
        self.literals.exchange(&mut value, &mut |text| {
            let number = text.and_then(exact_number);
            is_known &= number.is_some();
            number.unwrap_or_default()
        });
        if is_known {
            return Ok(value);
        }
        let message = format!(
            "`{place}` has a number that 64 bits do not hold, and that another number of the request is rounded like"
        );
        Err(ApiError { code: "unsupported_schema", ..ApiError::field(place, message) })
    }

    /// A value of a conversation's history, with each number as the body spells it. If two numbers of the body round to
    /// one value and cannot be told apart, the value stays as it was parsed, since a client cannot change its history.
    pub fn exact_history(&self, value: Value) -> Value {
        self.exact_numbers("", value.clone()).unwrap_or(value)
    }

    /// The fields of an object inside the body; `place` is the object's path.
    pub fn inside(&self, place: &str, value: Value) -> Result<Self> {
        match value {
            Value::Object(map) => {
                let unknown_inside = Arc::clone(&self.unknown_inside);
                let model = self.model.clone();
                let literals = Arc::clone(&self.literals);
                let place = format!("{place}.");
                Ok(Self { map, defaults: Map::new(), model, place, unknown_inside, literals })
            }
            other => {
                Err(ApiError::field(place, format!("`{place}` is {}, expected an object", kind(&other))))
            }
        }
    }

    /// The model that the body names; `None` if it names none.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// The name of a field in error messages, with its path.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.place)
    }

    /// Takes a field's value, or the operator's default; `None` if the field is absent or null and has no default.
    pub fn value(&mut self, field: &str) -> Option<Value> {
        let default = self.take_default(field);
        self.map.swap_remove(field).filter(|value| !value.is_null()).or(default)
    }

    /// Takes the operator's default of a field, whether or not the body has the field.
    pub fn take_default(&mut self, field: &str) -> Option<Value> {
        self.defaults.swap_remove(field)
    }

    /// The value of a field, which stays unread.
    pub fn peek(&self, field: &str) -> Option<&Value> {
        self.map.get(field)
    }

    /// Reads a field; `None` if it is absent or null.
    pub fn optional<T: DeserializeOwned>(&mut self, field: &str) -> Result<Option<T>> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let found = kind(&value);
        let name = self.name(field);
        serde_json::from_value(value).map(Some).map_err(|error| {
            ApiError::field(&name, format!("`{name}` is {found} that cannot be read: {error}"))
        })
    }

    /// Reads a field that must be present.
    pub fn required<T: DeserializeOwned>(&mut self, field: &str) -> Result<T> {
        self.optional(field)?.ok_or_else(|| self.missing(field))
    }

    /// The error for a field that must be present and is not.
    pub fn missing(&self, field: &str) -> ApiError {
        let name = self.name(field);
        ApiError { code: "missing_field", ..ApiError::field(&name, format!("`{name}` is missing")) }
    }

    /// Reads a whole number from `least` to `most`.
    pub fn count(&mut self, field: &str, least: usize, most: usize) -> Result<Option<usize>> {
        let range =
            if most == usize::MAX { format!("at least {least}") } else { format!("{least} to {most}") };
        let is_one = |number| usize::try_from(number).is_ok_and(|number| (least..=most).contains(&number));
        let found = self.whole(field, is_one, &range)?;
        Ok(found.and_then(|number| usize::try_from(number).ok()))
    }

    /// Reads a whole number that passes a test; `expected` describes such numbers.
    pub fn whole(
        &mut self,
        field: &str,
        is_one: impl FnOnce(i128) -> bool,
        expected: &str,
    ) -> Result<Option<i128>> {
        let Some(value) = self.value(field) else { return Ok(None) };
        match whole(&value) {
            Some(number) if is_one(number) => Ok(Some(number)),
            _ => {
                let name = self.name(field);
                let message = format!("`{name}` is {value}, expected a whole number, {expected}");
                Err(ApiError::field(&name, message))
            }
        }
    }

    /// Reads a limit of tokens: a whole number; a negative one means no limit.
    pub fn limit(&mut self, field: &str) -> Result<Option<Limit>> {
        let is_one = |number| number < 0 || usize::try_from(number).is_ok();
        let found = self.whole(field, is_one, "0 or more, or -1 for no limit")?;
        Ok(found.map(|number| usize::try_from(number).map_or(Limit::None, Limit::Tokens)))
    }

    /// Reads a limit of tokens that has several names; the first present name counts.
    pub fn first_limit(&mut self, names: &[&str]) -> Result<Option<Limit>> {
        let mut first = None;
        for name in names {
            let limit = self.limit(name)?;
            first = first.or(limit);
        }
        Ok(first)
    }

    /// Reads a finite number.
    pub fn number(&mut self, field: &str) -> Result<Option<f32>> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| {
            let name = self.name(field);
            ApiError::field(&name, format!("`{name}` is {value}, expected a number"))
        })
    }

    /// Reads a boolean.
    pub fn switch(&mut self, field: &str) -> Result<Option<bool>> {
        self.optional(field)
    }

    /// Refuses a known field that is not supported, unless its value is neutral. `why` is the reason.
    pub fn refuse(&mut self, field: &str, why: &str) -> Result<()> {
        match self.value(field) {
            Some(value) if !Neutral::Empty.holds(&value) => {
                Err(ApiError::unsupported(&self.name(field), why))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a field whose value is not one of `neutral`.
    pub fn only(&mut self, field: &str, neutral: &[Value], why: &str) -> Result<()> {
        match self.value(field) {
            Some(value) if !neutral.contains(&value) => Err(ApiError::unsupported(&self.name(field), why)),
            _ => Ok(()),
        }
    }

    /// Counts the unknown fields of an object inside the body, for objects that are passed on unread.
    pub fn see_inside(&self, place: &str, value: &Value, known: &[&str]) {
        let names = value.as_object().into_iter().flat_map(Map::keys).map(String::as_str);
        self.count_unknown(&format!("{place}."), names.filter(|name| !known.contains(name)));
    }

    fn count_unknown<'a>(&self, place: &str, names: impl Iterator<Item = &'a str>) {
        let names = names.filter(|name| known::left(name) != Some(Left::Inert));
        let mut unknown = self.unknown_inside.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if unknown.len() >= MOST_UNKNOWN {
                return;
            }
            unknown.push(format!("{}{name}", without_numbers(place)));
        }
    }

    /// Refuses unread known fields that would change the answer, unless their values are neutral.
    pub fn check_left(&self) -> Result<()> {
        for (name, value) in &self.map {
            if let Some(Left::Refused(neutral, why)) = known::left(name)
                && !neutral.holds(value)
            {
                return Err(ApiError::unsupported(name, why));
            }
        }
        Ok(())
    }

    /// The names of a body's unknown fields, those inside its objects included. Names within lists have no item numbers. Drops
    /// the values, so that they take no memory while the request runs.
    pub fn end(&mut self) -> Vec<String> {
        let left = std::mem::take(&mut self.map);
        let names = left.keys().filter(|name| known::left(name).is_none()).take(MOST_UNKNOWN).cloned();
        let inside = self.unknown_inside.lock().unwrap_or_else(PoisonError::into_inner);
        names.chain(inside.iter().cloned()).collect()
    }
}

/// The whole number of a JSON number in any spelling: 16, 16.0 or 1.6e1. `None` for other values, and beyond ±2^64, since no
/// field has a larger range.
pub(crate) fn whole(value: &Value) -> Option<i128> {
    const MOST: f64 = u64::MAX as f64;
    if let Some(number) = value.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = value.as_u64() {
        return Some(number.into());
    }
    value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < MOST).map(|number| number as i128)
}

/// A token id from a JSON number in any spelling.
pub(crate) fn token_id(value: &Value) -> Option<u32> {
    whole(value).and_then(|id| u32::try_from(id).ok())
}

/// Deserialises a whole number in any spelling.
pub(crate) fn read_whole<'de, D: serde::Deserializer<'de>, T: TryFrom<i128>>(
    from: D,
) -> std::result::Result<T, D::Error> {
    let value = Value::deserialize(from)?;
    whole(&value)
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| serde::de::Error::custom(format!("{value} found, expected a whole number")))
}

/// A path without its item numbers: `messages[].` for `messages[3].`
fn without_numbers(place: &str) -> String {
    let mut parts = place.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + "[" + part.trim_start_matches(|letter: char| letter.is_ascii_digit())
    })
}

/// A limit of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No limit but the context.
    None,
    /// At most this many.
    Tokens(usize),
}

impl Limit {
    /// The number of tokens; `None` for no limit.
    pub fn tokens(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Tokens(tokens) => Some(tokens),
        }
    }
}
