//! Keeps the text of JSON numbers that parsing rounds.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::schema::{Decimal, LITERAL};

/// Digits from which on a number may be rounded when parsed.
const LEAST_DIGITS: usize = 16;
/// Most rounded numbers that are kept.
const MOST_KEPT: usize = 1000;

/// The numbers of a JSON text that [`Value`] rounds when the text is read: integers beyond 64 bits, and decimals with more digits than an `f64` holds.
///
/// ```
/// use brasa_grammar::{Grammar, Literals};
///
/// let text = r#"{"const": 12345678901234567890123}"#;
/// let mut schema = serde_json::from_str(text)?;
/// Literals::of(text.as_bytes()).put_back(&mut schema);
/// let grammar = Grammar::JsonSchema(schema);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Literals {
    /// The text of each rounded number, by the bits of the rounded value. `None` if two different numbers have the same rounded
    /// value.
    texts: HashMap<u64, Option<String>>,
    /// True if the text has more rounded numbers than are kept.
    is_full: bool,
}

impl Literals {
    /// Finds the rounded numbers of a JSON text. The text need not be valid.
    pub fn of(json: &[u8]) -> Self {
        let mut found = Self::default();
        each_number(json, |text| found.see(text));
        if !found.texts.is_empty() {
            // Another number may have the place of a rounded one.
            each_number(json, |text| found.compare(text));
        }
        found
    }

    /// Replaces the rounded numbers of a schema by their exact form, which only
    /// [`Grammar::JsonSchema`](crate::Grammar::JsonSchema) reads.
    pub fn put_back(&self, schema: &mut Value) {
        self.exchange(schema, &mut |text| {
            // Which one was meant is not known.
            let text = text.unwrap_or("written here, or another one that is rounded alike,");
            json!({LITERAL: text})
        });
    }

    /// Replaces the rounded numbers of a value by the result of `exact` for their texts. The text is `None` for a number with the
    /// same rounded value as another one.
    pub fn exchange(&self, value: &mut Value, exact: &mut dyn FnMut(Option<&str>) -> Value) {
        if self.texts.is_empty() {
            return;
        }
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.exchange(item, exact)),
            Value::Object(map) => map.values_mut().for_each(|value| self.exchange(value, exact)),
            Value::Number(number) if number.is_f64() => {
                let text = number.as_f64().and_then(|number| self.texts.get(&number.to_bits()));
                let text = text.or(self.is_full.then_some(&None));
                if let Some(text) = text {
                    *value = exact(text.as_deref());
                }
            }
            _ => {}
        }
    }

    fn see(&mut self, text: &str) {
        let digits =
            text.bytes().take_while(|byte| !matches!(byte, b'e' | b'E')).filter(u8::is_ascii_digit).count();
        if digits < LEAST_DIGITS {
            return;
        }
        let Some(number) = rounded(text) else { return };
        if Decimal::parse(text) == Decimal::parse(&number.to_string()) {
            return;
        }
        if self.texts.len() < MOST_KEPT {
            self.texts.entry(number.to_bits()).or_insert_with(|| Some(text.to_owned()));
        } else {
            self.is_full = true;
        }
    }

    fn compare(&mut self, text: &str) {
        let known = rounded(text).and_then(|number| self.texts.get_mut(&number.to_bits()));
        if let Some(known) = known.filter(|known| known.as_deref() != Some(text)) {
            *known = None;
        }
    }
}

/// The `f64` to which parsing rounds a number; `None` for integers of 64 bits, which stay exact.
fn rounded(text: &str) -> Option<f64> {
    let is_integer = text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
    // As values are read, which is not always to the nearest.
    if is_integer { None } else { serde_json::from_str(text).ok() }
}

fn each_number(json: &[u8], mut see: impl FnMut(&str)) {
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'"' => at = behind_text(json, at),
            b'-' | b'0'..=b'9' => {
                let is_part =
                    |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
                let length = json[at..].iter().take_while(|byte| is_part(byte)).count();
                if let Ok(text) = std::str::from_utf8(&json[at..at + length]) {
                    see(text);
                }
                at += length;
            }
            _ => at += 1,
        }
    }
}

fn behind_text(json: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < json.len() {
        match json[end] {
            b'\\' => end += 2,
            b'"' => return end + 1,
            _ => end += 1,
        }
    }
    json.len()
}
