//! Schemas of arguments in the form for call grammars: an object that names its properties allows no others, unless its schema says
//! so.
//!
//! Models invent arguments if a schema allows them. If several schemas apply to one object, none of them has all of its names, so
//! all stay open.

use serde_json::{Map, Value, json};

/// Keywords with subschemas that apply to the same value as the schema itself.
const PARTS: [&str; 6] = ["allOf", "anyOf", "oneOf", "if", "then", "else"];
/// Keywords with which a schema itself decides about further properties.
const OPENNESS: [&str; 2] = ["additionalProperties", "unevaluatedProperties"];
/// Deepest nesting of schemas that is processed.
const DEEPEST: usize = 100;

/// The schema with closed objects.
pub fn closed(schema: &Value) -> Value {
    let mut combined = Vec::new();
    find_combined(schema, false, &mut combined, 0);
    let mut closed = schema.clone();
    close(&mut closed, "#", Place::Alone, &combined, 0);
    closed
}

/// Whether other schemas apply to the same value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Alone,
    Combined,
}

/// Finds references to schemas that apply to a value together with others.
fn find_combined(schema: &Value, is_combined: bool, found: &mut Vec<String>, depth: usize) {
    if depth > DEEPEST {
        return;
    }
    match schema {
        Value::Object(keywords) => {
            let is_shared = is_combined || has_names(keywords) || keywords.contains_key("allOf");
            if let Some(reference) = keywords.get("$ref").and_then(Value::as_str)
                && is_shared
            {
                found.push(reference.to_owned());
            }
            for (name, value) in keywords {
                let is_part = PARTS.contains(&name.as_str());
                let is_whole = name == "allOf" && value.as_array().is_some_and(|parts| parts.len() > 1);
                find_combined(
                    value,
                    is_part && (is_shared && name != "allOf" || is_whole || has_names(keywords)),
                    found,
                    depth + 1,
                );
            }
        }
        Value::Array(items) => {
            for item in items {
                find_combined(item, is_combined, found, depth + 1);
            }
        }
        _ => {}
    }
}

fn has_names(keywords: &Map<String, Value>) -> bool {
    ["properties", "patternProperties"].iter().any(|name| keywords.contains_key(*name))
}

fn close(schema: &mut Value, here: &str, place: Place, combined: &[String], depth: usize) {
    let Some(keywords) = schema.as_object_mut().filter(|_| depth < DEEPEST) else { return };
    let place = if combined.iter().any(|name| name == here) { Place::Combined } else { place };
    let parts = || PARTS.iter().filter_map(|name| keywords.get(*name));
    let adds_names = keywords.contains_key("$ref") || parts().any(|part| part_names(part, 0));
    let is_closed = place == Place::Alone
        && keywords.get("properties").is_some_and(Value::is_object)
        && !OPENNESS.iter().any(|name| keywords.contains_key(*name))
        && !adds_names;
    let is_alone = place == Place::Alone && !has_names(keywords);
    for (name, value) in keywords.iter_mut() {
        let inner = format!("{here}/{}", name.replace('~', "~0").replace('/', "~1"));
        match (name.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(map)) => {
                for (key, value) in map {
                    let inner = format!("{inner}/{}", key.replace('~', "~0").replace('/', "~1"));
                    close(value, &inner, Place::Alone, combined, depth + 1);
                }
            }
            ("items" | "additionalProperties" | "additionalItems", value @ Value::Object(_)) => {
                close(value, &inner, Place::Alone, combined, depth + 1);
            }
            (name @ ("items" | "prefixItems" | "anyOf" | "oneOf" | "allOf"), Value::Array(items)) => {
                let is_alone = match name {
                    "items" | "prefixItems" => true,
                    "allOf" => is_alone && items.len() == 1,
                    _ => is_alone,
                };
                let place = if is_alone { Place::Alone } else { Place::Combined };
                for (at, item) in items.iter_mut().enumerate() {
                    close(item, &format!("{inner}/{at}"), place, combined, depth + 1);
                }
            }
            _ => {}
        }
    }
    if is_closed {
        keywords.insert("additionalProperties".into(), json!(false));
    }
}

/// True if a subschema that applies to the same value may name properties.
fn part_names(part: &Value, depth: usize) -> bool {
    match part {
        Value::Array(parts) => parts.iter().any(|part| part_names(part, depth)),
        Value::Object(keywords) => {
            depth > DEEPEST
                || has_names(keywords)
                || keywords.contains_key("$ref")
                || PARTS.iter().filter_map(|name| keywords.get(*name)).any(|part| part_names(part, depth + 1))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::closed;

    #[test]
    fn objects_that_name_their_properties_are_closed() {
        let object = |others: Value| {
            let mut schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
            schema.as_object_mut().expect("object").extend(others.as_object().expect("object").clone());
            schema
        };
        let shut = || object(json!({"additionalProperties": false}));
        let open = || object(json!({}));
        for (schema, expected) in [
            (open(), shut()),
            (json!({"type": "object"}), json!({"type": "object"})),
            (object(json!({"additionalProperties": true})), object(json!({"additionalProperties": true}))),
            (json!({"type": "array", "items": open()}), json!({"type": "array", "items": shut()})),
            (json!({"anyOf": [open(), {"type": "null"}]}), json!({"anyOf": [shut(), {"type": "null"}]})),
            (json!({"allOf": [open()]}), json!({"allOf": [shut()]})),
            (json!({"allOf": [open(), open()]}), json!({"allOf": [open(), open()]})),
            (object(json!({"anyOf": [open()]})), object(json!({"anyOf": [open()]}))),
            (
                object(json!({"anyOf": [{"required": ["a"]}]})),
                object(json!({"anyOf": [{"required": ["a"]}], "additionalProperties": false})),
            ),
            (
                json!({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": open()}}),
                json!({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": shut()}}),
            ),
            (
                json!({"allOf": [{"$ref": "#/$defs/x"}, open()], "$defs": {"x": open()}}),
                json!({"allOf": [{"$ref": "#/$defs/x"}, open()], "$defs": {"x": open()}}),
            ),
            (
                json!({"type": "object", "properties": {"allOf": open()}}),
                json!({"type": "object", "properties": {"allOf": shut()}, "additionalProperties": false}),
            ),
        ] {
            assert_eq!(closed(&schema), expected, "{schema}");
        }
    }
}
