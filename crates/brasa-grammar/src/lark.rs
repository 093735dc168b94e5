//! Checks JSON schemas within Lark grammars in the same way as schemas alone.

use serde_json::{Deserializer, Value, json};

use crate::schema::{self, Notes, Unsupported, bounded};
use crate::{GrammarError, Literals};

/// The word before a schema within a Lark grammar.
const JSON: &str = "%json";
/// The keyword that stores the place of a schema in the grammar, for errors.
const PLACE: &str = "x-brasa-place";
/// The keyword that holds options of the parser.
const OPTIONS: &str = "x-guidance";

/// The grammar with the schemas after `%json` converted to the parser's form.
///
/// # Errors
///
/// The errors of [`schema::checked`], with the schema's place in the grammar.
pub fn with_checked_schemas(text: &str, notes: &mut Notes) -> Result<String, GrammarError> {
    let mut checked = String::new();
    let mut rest = text;
    while let Some(at) = next_schema(rest) {
        let (before, behind) = rest.split_at(at + JSON.len());
        checked.push_str(before);
        let mut values = Deserializer::from_str(behind).into_iter::<Value>();
        match values.next() {
            Some(Ok(mut schema)) => {
                let (schema_text, behind) = behind.split_at(values.byte_offset());
                Literals::of(schema_text.as_bytes()).put_back(&mut schema);
                rest = behind;
                checked.push(' ');
                checked.push_str(&checked_schema(schema, notes)?.to_string());
            }
            // The parser says what is wrong.
            _ => rest = behind,
        }
    }
    checked.push_str(rest);
    Ok(checked)
}

fn checked_schema(mut schema: Value, notes: &mut Notes) -> Result<Value, GrammarError> {
    bounded(&schema)?;
    let mut take = |name: &str| schema.as_object_mut().and_then(|keywords| keywords.shift_remove(name));
    let (place, options) = (take(PLACE), take(OPTIONS));
    let is_lenient =
        options.as_ref().is_some_and(|options| options.get("lenient") == Some(&Value::Bool(true)));
    let unsupported = if is_lenient { Unsupported::Ignored } else { Unsupported::Refused };
    let checked = schema::checked(&schema, unsupported, notes).map_err(|error| match &place {
        Some(Value::String(place)) => error.within(place),
        _ => error,
    })?;
    let mut exact = checked.exact;
    let mut options = options.unwrap_or_else(|| json!({}));
    let escapes = schema::escapes(&exact);
    if let Some(options) = options.as_object_mut() {
        options.entry("json_allowed_escapes").or_insert_with(|| escapes.into());
        if notes.one_of.coerces() {
            options.insert("coerce_one_of".into(), true.into());
        }
    }
    if let Some(keywords) = exact.as_object_mut() {
        keywords.insert(OPTIONS.into(), options);
    }
    Ok(exact)
}

/// The offset of the next `%json` that is not inside a string, an expression or a comment.
fn next_schema(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'%' if text[at..].starts_with(JSON) => return Some(at),
            b'/' if bytes.get(at + 1) == Some(&b'/') => at = end_of_line(bytes, at),
            b'#' => at = end_of_line(bytes, at),
            quote @ (b'"' | b'/') => at = behind_quoted(bytes, at, quote),
            _ => at += 1,
        }
    }
    None
}

fn end_of_line(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| at + end)
}

/// The offset after a string or an expression, which ends at the end of its line at the latest.
fn behind_quoted(bytes: &[u8], at: usize, quote: u8) -> usize {
    let mut end = at + 1;
    while end < bytes.len() && (quote == b'/' || bytes[end] != b'\n') {
        match bytes[end] {
            b'\\' => end += 2,
            byte if byte == quote => return end + 1,
            _ => end += 1,
        }
    }
    end.min(bytes.len())
}
