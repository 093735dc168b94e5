//! Constants that the parser would not read as intended.
//!
//! Arrays and objects in `const` and `enum` with numbers that the parser would round are spelled out, so that each number becomes
//! a schema of its own. Draft 4 has no `const`, and the parser would ignore one there; it becomes an `enum`.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::numbers::is_plain;
use super::{LISTS, MAPS, ONE, escaped};
use crate::GrammarError;

/// Keywords that may occur beside a list of values that is spelled out.
const BESIDE: [&str; 10] = [
    "type",
    "title",
    "description",
    "$comment",
    "default",
    "examples",
    "$schema",
    "$id",
    "$defs",
    "definitions",
];

/// The schema with its constants spelled out if the parser would not read them as intended.
///
/// # Errors
///
/// [`GrammarError::Unsupported`] if other keywords restrict the values further.
pub fn spelled_out(schema: &Value) -> Result<Cow<'_, Value>, GrammarError> {
    let is_draft_4 =
        schema.get("$schema").and_then(Value::as_str).is_some_and(|draft| draft.contains("/draft-04/"));
    if !is_draft_4 && !has_rounded(schema) {
        return Ok(Cow::Borrowed(schema));
    }
    let mut schema = schema.clone();
    spell(&mut schema, "#", is_draft_4)?;
    Ok(Cow::Owned(schema))
}

/// True if the parser would round a number anywhere in a value.
fn has_rounded(value: &Value) -> bool {
    match value {
        value if !is_plain(value) => true,
        Value::Array(items) => items.iter().any(has_rounded),
        Value::Object(map) => map.values().any(has_rounded),
        _ => false,
    }
}

fn spell(schema: &mut Value, place: &str, is_draft_4: bool) -> Result<(), GrammarError> {
    let Some(keywords) = schema.as_object_mut() else { return Ok(()) };
    if is_draft_4 && let Some(value) = keywords.get_mut("const") {
        let listed = json!([value.take()]);
        keywords.shift_remove("const");
        if keywords.contains_key("enum") {
            let all = keywords.entry("allOf").or_insert_with(|| json!([]));
            if let Some(all) = all.as_array_mut() {
                all.push(json!({"enum": listed}));
            }
        } else {
            keywords.insert("enum".into(), listed);
        }
    }
    let is_container = |value: &Value| is_plain(value) && has_rounded(value);
    let values = match (keywords.get("const"), keywords.get("enum").and_then(Value::as_array)) {
        (Some(value), _) => vec![value.clone()],
        (None, Some(values)) => values.clone(),
        _ => Vec::new(),
    };
    if values.iter().any(is_container) {
        let other = keywords
            .keys()
            .find(|name| !BESIDE.contains(&name.as_str()) && !matches!(name.as_str(), "const" | "enum"));
        if let Some(other) = other {
            let what = format!(
                "`const` and `enum` with numbers beyond 2^53 in lists and objects, beside `{other}`, are not supported"
            );
            return Err(GrammarError::Unsupported { place: place.into(), what });
        }
        let (spelt, rest): (Vec<Value>, Vec<Value>) = values.into_iter().partition(is_container);
        let mut any: Vec<Value> = spelt.iter().map(structure).collect();
        any.extend((!rest.is_empty()).then(|| json!({"enum": rest})));
        keywords.shift_remove("const");
        keywords.shift_remove("enum");
        match any.as_slice() {
            [Value::Object(only)] => keywords.extend(only.clone()),
            _ => _ = keywords.insert("anyOf".into(), any.into()),
        }
    }
    for (name, value) in keywords.iter_mut() {
        let here = format!("{place}/{}", escaped(name));
        match (name.as_str(), value) {
            (name, Value::Object(map)) if MAPS.contains(&name) || matches!(name, "$defs" | "definitions") => {
                for (key, value) in map {
                    spell(value, &format!("{here}/{}", escaped(key)), is_draft_4)?;
                }
            }
            (name, Value::Array(items)) if name == "items" || LISTS.contains(&name) => {
                for (at, item) in items.iter_mut().enumerate() {
                    spell(item, &format!("{here}/{at}"), is_draft_4)?;
                }
            }
            (name, value) if matches!(name, "items" | "not") || ONE.contains(&name) => {
                spell(value, &here, is_draft_4)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The schema that only `value` matches, in keywords that all drafts have.
fn structure(value: &Value) -> Value {
    match value {
        Value::Array(items) if is_plain(value) && has_rounded(value) => {
            let count = items.len();
            let items: Vec<Value> = items.iter().map(structure).collect();
            json!({"type": "array", "items": items, "additionalItems": false, "minItems": count, "maxItems": count})
        }
        Value::Object(map) if is_plain(value) && has_rounded(value) => {
            let required: Vec<&String> = map.keys().collect();
            let properties: Map<String, Value> =
                map.iter().map(|(key, value)| (key.clone(), structure(value))).collect();
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        }
        value => json!({"enum": [value]}),
    }
}
