//! Token ids against the embedding table: every token needs a row, and a special token has to be a token.

use serde_json::Value;

use crate::source::Source;
use crate::{ModelError, Result};
use brasa_formats::Container;

/// GGUF keys of the special tokens that decide how the model begins and ends texts.
const NEEDED: [&str; 2] = ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"];
/// End of the keys of special tokens, in both containers.
const ENDING: &str = "_token_id";

/// True for a key of GGUF that names a special token by its id.
pub(crate) fn is_token_id(key: &str) -> bool {
    key.strip_prefix("tokenizer.ggml.").is_some_and(|key| key.ends_with(ENDING))
}

/// Checks the vocabulary of a checkpoint against the `rows` of its embedding table; returns warnings.
///
/// # Errors
///
/// [`ModelError::Dimensions`] for more tokens than rows, [`ModelError::BadValue`] for a first or last token of texts that
/// does not exist.
pub(crate) fn check(source: &Source, rows: usize) -> Result<Vec<String>> {
    let tokens = source.values.get(Source::VOCABULARY).and_then(Value::as_u64).map(|count| count as usize);
    let mut warnings = Vec::new();
    if let Some(tokens) = tokens {
        if tokens > rows {
            return Err(ModelError::Dimensions {
                what: format!("a vocabulary of {tokens} tokens, and an embedding table of {rows} rows"),
                expected: "a row for every token".into(),
            });
        }
        warnings.extend(padding(tokens, rows));
    }
    let known = tokens.unwrap_or(rows);
    match source.container {
        Container::Gguf => {
            for (key, value) in &source.token_ids {
                if is_none(value) || is_below(value, known) {
                    continue;
                }
                let expected = format!("the id of one of {known} tokens, or -1 for none");
                let bad = ModelError::BadValue { key: key.clone(), found: value.to_string(), expected };
                if NEEDED.contains(&key.as_str()) {
                    return Err(bad);
                }
                warnings.push(bad.to_string());
            }
        }
        Container::HuggingFace => {
            for (key, value) in source.values.iter().chain(&source.outer) {
                // Text alone needs no tokens of images, and the tokenizer's files say which tokens begin and end a text.
                if !matches!(key.as_str(), "bos_token_id" | "eos_token_id" | "pad_token_id") {
                    continue;
                }
                let ids = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                if let Some(id) = ids.iter().find(|id| !is_none(id) && !is_below(id, known)) {
                    let key = source.spelled(key);
                    let expected = format!("the id of one of {known} tokens");
                    warnings.push(ModelError::BadValue { key, found: id.to_string(), expected }.to_string());
                }
            }
        }
    }
    Ok(warnings)
}

/// A note about an embedding table that has far more rows than there are tokens. Rows are padded to multiples of 64 to 512
/// as a rule.
pub fn padding(tokens: usize, rows: usize) -> Option<String> {
    let spare = rows.checked_sub(tokens)?;
    (spare > (rows / 16).max(1024)).then(|| {
        format!("the embedding table has {rows} rows for {tokens} tokens: {spare} rows can be drawn and are no text")
    })
}

/// True for null and for the other spellings by which files say that there is no such token.
fn is_none(value: &Value) -> bool {
    value.is_null() || value.as_i64() == Some(-1) || value.as_u64() == Some(u64::from(u32::MAX))
}

fn is_below(value: &Value, tokens: usize) -> bool {
    value.as_u64().is_some_and(|id| id < tokens as u64)
}
