//! Rewrites keywords that the parser does not support into keywords that it supports.
//!
//! A schema that is rewritten here allows the same values. Keywords that cannot be rewritten stay unchanged, and are refused by
//! name later.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::negation::negated;
use super::{LISTS, MAPS, ONE, counts};

/// Keywords that this module may rewrite.
const REWRITTEN: [&str; 10] = [
    "not",
    "if",
    "then",
    "else",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "propertyNames",
    "minProperties",
    "maxProperties",
];
/// Most alternatives that are added to one schema.
const MOST_ALTERNATIVES: usize = 64;
/// Keywords about properties of objects.
const ABOUT_NAMES: [&str; 3] = ["properties", "patternProperties", "additionalProperties"];

/// The schema without the keywords that can be rewritten.
pub fn rewritten(schema: &Value) -> Cow<'_, Value> {
    if !has_some(schema) {
        return Cow::Borrowed(schema);
    }
    let mut rewritten = schema.clone();
    rewrite(schema, &mut rewritten);
    Cow::Owned(rewritten)
}

/// True if a key anywhere in a value is one of [`REWRITTEN`].
fn has_some(value: &Value) -> bool {
    match value {
        Value::Object(map) => {
            map.iter().any(|(key, value)| REWRITTEN.contains(&key.as_str()) || has_some(value))
        }
        Value::Array(items) => items.iter().any(has_some),
        _ => false,
    }
}

/// Rewrites `schema` and its parts. `root` is the whole schema before rewriting.
fn rewrite(root: &Value, schema: &mut Value) {
    let Some(keywords) = schema.as_object_mut() else { return };
    for (name, value) in keywords.iter_mut() {
        match (name.as_str(), value) {
            (name, Value::Object(map))
                if MAPS.contains(&name)
                    || matches!(name, "$defs" | "definitions" | "dependencies" | "dependentSchemas") =>
            {
                map.values_mut().for_each(|value| rewrite(root, value));
            }
            (name, Value::Array(items)) if name == "items" || LISTS.contains(&name) => {
                for item in items {
                    rewrite(root, item);
                }
            }
            (name, value)
                if ONE.contains(&name) || matches!(name, "items" | "not" | "if" | "then" | "else") =>
            {
                rewrite(root, value);
            }
            _ => {}
        }
    }
    let mut added: Vec<Vec<Value>> = Vec::new();
    let mut say = |keywords: &mut Map<String, Value>, names: &[&str], choices: Vec<Vec<Value>>| {
        let count = added.iter().chain(&choices).map(Vec::len).fold(1, usize::saturating_mul);
        if count <= MOST_ALTERNATIVES {
            for name in names {
                keywords.shift_remove(*name);
            }
            added.extend(choices);
        }
    };
    if let Some(alternatives) = keywords.get("not").and_then(|not| negated(root, not)) {
        say(keywords, &["not"], vec![alternatives]);
    }
    if let Some(alternatives) = conditional(root, keywords) {
        say(keywords, &["if", "then", "else"], vec![alternatives]);
    }
    for name in ["dependencies", "dependentRequired", "dependentSchemas"] {
        if let Some(choices) = keywords.get(name).and_then(|value| dependent(keywords, value)) {
            say(keywords, &[name], choices);
        }
    }
    if let Some(names) = names_as_properties(keywords) {
        keywords.shift_remove("propertyNames");
        keywords.extend(names);
    }
    if let Some(alternatives) = counts::alternatives(keywords) {
        let closed = counts::is_closed(keywords);
        let names: &[&str] = if closed { &["minProperties", "maxProperties"] } else { &["minProperties"] };
        say(keywords, names, vec![alternatives]);
    }
    let added = added.into_iter().map(|alternatives| match alternatives.len() {
        0 => Value::Bool(false),
        _ => json!({"anyOf": alternatives}),
    });
    let added: Vec<Value> = added.collect();
    if !added.is_empty() {
        // Behind the properties, whose order they keep.
        let mut all =
            keywords.shift_remove("allOf").and_then(|all| all.as_array().cloned()).unwrap_or_default();
        all.extend(added);
        keywords.insert("allOf".into(), all.into());
    }
}

/// The `alternatives` for objects, plus those for the schema's other types.
pub fn with_other_types(keywords: &Map<String, Value>, mut alternatives: Vec<Value>) -> Vec<Value> {
    if keywords.get("type").is_none_or(|kind| kind != "object") {
        alternatives.push(json!({"type": ["null", "boolean", "number", "string", "array"]}));
    }
    alternatives
}

/// Converts `if`, `then` and `else` to alternatives.
fn conditional(root: &Value, keywords: &Map<String, Value>) -> Option<Vec<Value>> {
    let condition = keywords.get("if")?;
    let (then, otherwise) = (keywords.get("then"), keywords.get("else"));
    if then.is_none() && otherwise.is_none() {
        return None;
    }
    let mut alternatives = match then {
        Some(then) => vec![json!({"allOf": [condition, then]})],
        None => vec![condition.clone()],
    };
    alternatives.extend(negated(root, condition)?.into_iter().map(|not| match otherwise {
        Some(otherwise) => json!({"allOf": [not, otherwise]}),
        None => not,
    }));
    Some(alternatives)
}

/// Converts dependencies to alternatives, a list for each property: the property is absent, or its dependency holds.
fn dependent(keywords: &Map<String, Value>, value: &Value) -> Option<Vec<Vec<Value>>> {
    let each = value.as_object()?.iter().map(|(key, then)| {
        let present = match then {
            Value::Array(names) if names.iter().all(Value::is_string) => {
                let mut required = vec![json!(key)];
                required.extend(names.iter().filter(|name| *name != key).cloned());
                json!({"type": "object", "required": required})
            }
            Value::Object(_) | Value::Bool(_) => {
                json!({"allOf": [{"type": "object", "required": [key]}, then]})
            }
            _ => return None,
        };
        let absent = json!({"type": "object", "properties": {key: false}});
        Some(with_other_types(keywords, vec![absent, present]))
    });
    each.collect()
}

/// Converts `propertyNames` to the properties that an object may have.
fn names_as_properties(keywords: &Map<String, Value>) -> Option<Map<String, Value>> {
    let names = keywords.get("propertyNames")?.as_object()?;
    let additional = keywords.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    if ABOUT_NAMES[..2].iter().any(|name| keywords.contains_key(*name)) {
        return None;
    }
    let says = names.iter().filter(|(name, value)| {
        let says_nothing = matches!(name.as_str(), "title" | "description" | "$comment");
        !says_nothing && (*name != "type" || *value != "string")
    });
    let (name, value) = (says.clone().next(), says.count());
    let (properties, name) = match (name?, value) {
        ((name, Value::Array(values)), 1) if name == "enum" => {
            let properties =
                values.iter().map(|value| Some((value.as_str()?.to_owned(), additional.clone())));
            (Value::Object(properties.collect::<Option<_>>()?), "properties")
        }
        ((name, Value::String(pattern)), 1) if name == "pattern" => {
            (json!({pattern: additional}), "patternProperties")
        }
        _ => return None,
    };
    Some(Map::from_iter([
        (name.to_owned(), properties),
        ("additionalProperties".to_owned(), Value::Bool(false)),
    ]))
}
