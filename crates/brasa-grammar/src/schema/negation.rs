//! Schemas of the values that another schema does not allow.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Names of types.
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Remarks, which say nothing about values.
const REMARKS: [&str; 6] = ["title", "description", "$comment", "default", "examples", "deprecated"];
/// Alternatives that one schema may have.
const MOST_ALTERNATIVES: usize = 32;

/// Schemas such that a value matches at least one of them exactly if it does not match `schema`. `None` if they are not known.
pub fn negated(schema: &Value) -> Option<Vec<Value>> {
    let keywords = match schema {
        Value::Bool(true) => return Some(Vec::new()),
        Value::Bool(false) => return Some(vec![json!(true)]),
        Value::Object(keywords) => keywords,
        _ => return None,
    };
    let mut alternatives = Vec::new();
    for (name, value) in keywords {
        if REMARKS.contains(&name.as_str()) {
            continue;
        }
        alternatives.extend(match name.as_str() {
            "type" => of_types(value)?,
            "const" => of_values(std::slice::from_ref(value))?,
            "enum" => of_values(value.as_array()?)?,
            "required" => of_required(value)?,
            "properties" => of_properties(value.as_object()?)?,
            "anyOf" => {
                let parts: Option<Vec<Value>> =
                    value.as_array()?.iter().map(|part| Some(any(&negated(part)?))).collect();
                vec![json!({"allOf": parts?})]
            }
            "allOf" => value.as_array()?.iter().map(negated).collect::<Option<Vec<_>>>()?.concat(),
            "not" => vec![value.clone()],
            "minimum" => vec![
                json!({"type": "number", "exclusiveMaximum": number(keywords, value, "exclusiveMinimum")?}),
            ],
            "maximum" => vec![
                json!({"type": "number", "exclusiveMinimum": number(keywords, value, "exclusiveMaximum")?}),
            ],
            "exclusiveMinimum" if value.is_number() => vec![json!({"type": "number", "maximum": value})],
            "exclusiveMaximum" if value.is_number() => vec![json!({"type": "number", "minimum": value})],
            "minLength" => below(value, "string", "maxLength")?,
            "maxLength" => vec![json!({"type": "string", "minLength": value.as_u64()?.checked_add(1)?})],
            "minItems" => below(value, "array", "maxItems")?,
            "maxItems" => vec![json!({"type": "array", "minItems": value.as_u64()?.checked_add(1)?})],
            _ => return None,
        });
    }
    (alternatives.len() <= MOST_ALTERNATIVES).then_some(alternatives)
}

fn any(alternatives: &[Value]) -> Value {
    if alternatives.is_empty() { json!(false) } else { json!({"anyOf": alternatives}) }
}

/// A bound, unless a truth value of draft 4 says more about it.
fn number<'a>(keywords: &Map<String, Value>, value: &'a Value, exclusive: &str) -> Option<&'a Value> {
    (value.is_number() && !keywords.get(exclusive).is_some_and(Value::is_boolean)).then_some(value)
}

fn below(value: &Value, kind: &str, most: &str) -> Option<Vec<Value>> {
    Some(match value.as_u64()?.checked_sub(1) {
        Some(count) => vec![json!({"type": kind, most: count})],
        None => Vec::new(),
    })
}

fn of_types(value: &Value) -> Option<Vec<Value>> {
    let kinds: Vec<&str> = match value {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(Value::as_str).collect::<Option<_>>()?,
        _ => return None,
    };
    // Numbers with a fraction have no type of their own.
    if kinds.contains(&"integer") && !kinds.contains(&"number")
        || kinds.iter().any(|kind| *kind != "integer" && !TYPES.contains(kind))
    {
        return None;
    }
    let others: Vec<&str> = TYPES.into_iter().filter(|kind| !kinds.contains(kind)).collect();
    Some(if others.is_empty() { Vec::new() } else { vec![json!({"type": others})] })
}

/// An object that lacks a name.
fn of_required(value: &Value) -> Option<Vec<Value>> {
    let absent = |name: &Value| Some(json!({"type": "object", "properties": {name.as_str()?: false}}));
    value.as_array()?.iter().map(absent).collect()
}

/// An object with a property of another schema.
fn of_properties(properties: &Map<String, Value>) -> Option<Vec<Value>> {
    let mut alternatives = Vec::new();
    for (key, schema) in properties {
        let wrong = negated(schema)?;
        if !wrong.is_empty() {
            alternatives.push(json!({"type": "object", "properties": {key: any(&wrong)}, "required": [key]}));
        }
    }
    Some(alternatives)
}

/// A value that is none of a list.
fn of_values(values: &[Value]) -> Option<Vec<Value>> {
    let mut texts = Vec::new();
    let mut numbers: Vec<&Value> = Vec::new();
    let mut kinds = vec!["array", "object"];
    for value in values {
        match value {
            Value::String(text) => texts.push(text.as_str()),
            Value::Number(number) if number.as_f64().is_some_and(|number| number.abs() < 9e15) => {
                numbers.push(value);
            }
            Value::Null | Value::Bool(_) => {}
            _ => return None,
        }
    }
    let mut alternatives = Vec::new();
    kinds.extend((!values.contains(&Value::Null)).then_some("null"));
    kinds.extend(numbers.is_empty().then_some("number"));
    kinds.extend(texts.is_empty().then_some("string"));
    let truths: Vec<bool> =
        [true, false].into_iter().filter(|truth| !values.contains(&Value::Bool(*truth))).collect();
    match truths.as_slice() {
        [_, _] => kinds.push("boolean"),
        [] => {}
        one => alternatives.push(json!({"enum": one})),
    }
    alternatives.push(json!({"type": kinds}));
    if !texts.is_empty() {
        alternatives.push(json!({"type": "string", "pattern": format!("^{}$", other_texts(&texts))}));
    }
    if !numbers.is_empty() {
        numbers.sort_by(|one, other| {
            one.as_f64().partial_cmp(&other.as_f64()).unwrap_or(std::cmp::Ordering::Equal)
        });
        numbers.dedup_by(|one, other| one.as_f64() == other.as_f64());
        for at in 0..=numbers.len() {
            let mut between = json!({"type": "number"});
            if at > 0 {
                between["exclusiveMinimum"] = numbers[at - 1].clone();
            }
            if let Some(number) = numbers.get(at) {
                between["exclusiveMaximum"] = (*number).clone();
            }
            alternatives.push(between);
        }
    }
    Some(alternatives)
}

/// A pattern of the texts that are none of a list.
fn other_texts(texts: &[&str]) -> String {
    let mut behind: BTreeMap<char, Vec<&str>> = BTreeMap::new();
    for text in texts {
        let mut letters = text.chars();
        if let Some(letter) = letters.next() {
            behind.entry(letter).or_default().push(letters.as_str());
        }
    }
    let class: String = behind.keys().map(|&letter| escaped(letter)).collect();
    let mut alternatives: Vec<String> =
        behind.iter().map(|(&letter, texts)| format!("{}{}", escaped(letter), other_texts(texts))).collect();
    alternatives.push(if class.is_empty() { r"[\s\S][\s\S]*".into() } else { format!(r"[^{class}][\s\S]*") });
    let is_listed = texts.iter().any(|text| text.is_empty());
    format!("({}){}", alternatives.join("|"), if is_listed { "" } else { "?" })
}

/// A letter by its number, which means itself in a pattern.
fn escaped(letter: char) -> String {
    format!(r"\x{{{:x}}}", u32::from(letter))
}
