//! The normaliser: steps that rewrite the text before it is cut.
//!
//! The steps are those of the `tokenizers` crate. A file chooses them, so what a step may do is checked where it is read,
//! and each must leave a text that is not much longer than the one that came in: six times "a hundred for one" would
//! be more than any memory holds. Replacing is done here, with a pattern whose failure is an error.

use serde_json::Value;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer};

use crate::pattern::{self, Fallible};
use crate::{Result, TokenizerError};

/// More steps than any published tokenizer has.
const MOST_STEPS: usize = 64;
/// Times that a text may grow; Unicode's own decompositions reach 18.
const MOST_GROWTH: usize = 32;
/// Bytes that a text of any length may grow by.
const FREE_GROWTH_BYTES: usize = 1 << 16;
/// Bytes of the longest replacement in a table of SentencePiece; its own has 33.
const LONGEST_REPLACEMENT: usize = 64;

/// All steps of a normaliser.
pub struct Normalizers(Vec<Step>);

enum Step {
    /// Any normaliser of the `tokenizers` crate but `Replace` and `Sequence`.
    Hf(Box<NormalizerWrapper>),
    /// Put `content` in place of every match.
    Replace { pattern: Box<fancy_regex::Regex>, content: String },
}

impl From<NormalizerWrapper> for Normalizers {
    fn from(normalizer: NormalizerWrapper) -> Self {
        Self(vec![Step::Hf(Box::new(normalizer))])
    }
}

impl Normalizers {
    /// The `normalizer` of a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Malformed`], naming the step.
    pub fn from_json(value: Option<&Value>) -> Result<Option<Self>> {
        let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
        let mut steps = Vec::new();
        collect(value, &mut steps)?;
        Ok(Some(Self(steps)))
    }
}

fn collect(value: &Value, steps: &mut Vec<Step>) -> Result<()> {
    let malformed =
        |reason: &dyn std::fmt::Display| TokenizerError::malformed("tokenizer.json normalizer", reason);
    // Old files leave the type out, and the crate then guesses it by the fields.
    let has = |field: &str| value.get(field).is_some();
    let kind = match value["type"].as_str() {
        _ if has("normalizers") => Some("Sequence"),
        _ if has("pattern") => Some("Replace"),
        _ if has("precompiled_charsmap") => Some("Precompiled"),
        kind => kind,
    };
    match kind {
        Some("Sequence") => {
            let inner = value["normalizers"].as_array();
            return inner
                .ok_or_else(|| malformed(&"Sequence without a list `normalizers`"))?
                .iter()
                .try_for_each(|step| collect(step, steps));
        }
        Some("Replace") => {
            let pattern = &value["pattern"];
            let pattern = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
                (Some(text), _) => regex::escape(text),
                (None, Some(pattern)) => pattern.to_owned(),
                (None, None) => return Err(malformed(&"Replace without a pattern `String` or `Regex`")),
            };
            let content = value["content"].as_str();
            let content = content.ok_or_else(|| malformed(&"Replace without a text `content`"))?.to_owned();
            let compiled = pattern::compile(&pattern)?;
            if compiled.is_match("").unwrap_or(true) {
                return Err(malformed(&format!(
                    "Replace with the pattern {pattern:?}, which matches no text at all"
                )));
            }
            steps.push(Step::Replace { pattern: Box::new(compiled), content });
        }
        kind => {
            if kind == Some("Precompiled") {
                check_table(value["precompiled_charsmap"].as_str().unwrap_or_default())
                    .map_err(|reason| malformed(&reason))?;
            }
            let inner = serde_json::from_value(value.clone()).map_err(|error| malformed(&error))?;
            steps.push(Step::Hf(Box::new(inner)));
        }
    }
    if steps.len() > MOST_STEPS {
        return Err(malformed(&format!("more than {MOST_STEPS} steps")));
    }
    Ok(())
}

/// Checks a table of SentencePiece before the crate trusts the sizes in it: the size of a trie, the trie, and the
/// replacements, each of which ends with a zero.
fn check_table(base64: &str) -> std::result::Result<(), String> {
    let table = from_base64(base64).ok_or("precompiled_charsmap is not base64")?;
    let (size, rest) = table.split_first_chunk::<4>().ok_or("precompiled_charsmap is empty")?;
    let size = u32::from_le_bytes(*size) as usize;
    if size > rest.len() || size < 4 || !size.is_multiple_of(4) {
        return Err(format!(
            "precompiled_charsmap has a trie of {size} bytes, and {} bytes in all",
            table.len()
        ));
    }
    let longest = rest[size..].split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    if longest > LONGEST_REPLACEMENT {
        return Err(format!(
            "precompiled_charsmap replaces a character by {longest} bytes, expected at most {LONGEST_REPLACEMENT}"
        ));
    }
    Ok(())
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0);
    for digit in text.trim_end_matches('=').bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

impl Normalizers {
    /// The normalised form of `text`.
    ///
    /// # Errors
    ///
    /// Every error of [`normalize`](Self::normalize).
    pub fn normalized(&self, text: &str) -> tokenizers::Result<String> {
        let mut text = NormalizedString::from(text);
        self.normalize(&mut text)?;
        Ok(text.get().to_owned())
    }

    /// Normalises `text`.
    ///
    /// # Errors
    ///
    /// A step that fails, takes too long or makes the text much longer.
    pub fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let most = text.get().len().saturating_mul(MOST_GROWTH).saturating_add(FREE_GROWTH_BYTES);
        let too_long = |bytes: usize| -> tokenizers::Error {
            format!("the normalizer makes {bytes} bytes of it, more than {most}").into()
        };
        for step in &self.0 {
            match step {
                Step::Hf(inner) => inner.normalize(text)?,
                Step::Replace { pattern, content } => {
                    let mut grown = text.get().len();
                    for found in pattern.find_iter(text.get()) {
                        let found = found?;
                        if found.range().is_empty() {
                            return Err("a pattern of the normalizer matches no text at all".into());
                        }
                        grown = (grown + content.len()).saturating_sub(found.range().len());
                    }
                    if grown > most {
                        return Err(too_long(grown));
                    }
                    text.replace(Fallible(pattern), content)?;
                }
            }
            if text.get().len() > most {
                return Err(too_long(text.get().len()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{check_table, from_base64};

    #[test]
    fn base64_is_decoded() {
        assert_eq!(from_base64("aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(from_base64("/+8"), Some(vec![0xFF, 0xEF]));
        assert_eq!(from_base64("a b"), None);
    }

    #[test]
    fn broken_tables_are_refused() {
        for (table, message) in [
            ("", "is empty"),
            ("?", "is not base64"),
            ("////fwAAAAA", "a trie of 2147483647 bytes"),
            ("AAAAAA", "a trie of 0 bytes"),
        ] {
            let error = check_table(table).expect_err(table);
            assert!(error.contains(message), "{error}");
        }
        assert_eq!(check_table("BAAAAAAAAABhAA"), Ok(()));
    }
}
