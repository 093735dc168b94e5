//! Numbers of JSON texts that a parsed value rounds.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::schema::{Decimal, LITERAL};

/// Digits from which on a number may be rounded.
const LEAST_DIGITS: usize = 16;

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
    /// The text of each rounded number by what it is rounded to. `None` if two numbers become one.
    texts: HashMap<u64, Option<String>>,
    /// What the numbers are that are not rounded.
    exact: HashSet<u64>,
}

impl Literals {
    /// The rounded numbers of a text. The text may be wrong.
    pub fn of(json: &[u8]) -> Self {
        let mut found = Self::default();
        let mut at = 0;
        while at < json.len() {
            match json[at] {
                b'"' => at = behind_text(json, at),
                b'-' | b'0'..=b'9' => {
                    let rest = &json[at..];
                    let is_part =
                        |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
                    let length = rest.iter().take_while(|byte| is_part(byte)).count();
                    found.see(&rest[..length]);
                    at += length;
                }
                _ => at += 1,
            }
        }
        found
    }

    /// Puts the numbers of a schema back as they were, in a form that [`Grammar::JsonSchema`](crate::Grammar::JsonSchema) reads. Others do not read that form.
    pub fn put_back(&self, schema: &mut Value) {
        if self.texts.is_empty() {
            return;
        }
        match schema {
            Value::Array(items) => items.iter_mut().for_each(|item| self.put_back(item)),
            Value::Object(map) => map.values_mut().for_each(|value| self.put_back(value)),
            Value::Number(number) if number.is_f64() => {
                let text = number.as_f64().and_then(|number| self.texts.get(&number.to_bits()));
                if let Some(text) = text {
                    // Which one was meant is not known.
                    let text =
                        text.as_deref().unwrap_or("written here, or another one that is rounded alike,");
                    *schema = json!({LITERAL: text});
                }
            }
            _ => {}
        }
    }

    fn see(&mut self, text: &[u8]) {
        let Ok(text) = std::str::from_utf8(text) else { return };
        if text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() {
            return;
        }
        // As values are read, which is not always to the nearest.
        let Ok(number) = serde_json::from_str::<f64>(text) else { return };
        let digits =
            text.bytes().take_while(|byte| !matches!(byte, b'e' | b'E')).filter(u8::is_ascii_digit).count();
        let is_rounded =
            digits >= LEAST_DIGITS && Decimal::parse(text) != Decimal::parse(&number.to_string());
        let bits = number.to_bits();
        match self.texts.get_mut(&bits) {
            Some(known) if known.as_deref() != Some(text) => *known = None,
            None if is_rounded => {
                let is_shared = self.exact.contains(&bits);
                self.texts.insert(bits, (!is_shared).then(|| text.to_owned()));
            }
            Some(_) => {}
            None => _ = self.exact.insert(bits),
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
