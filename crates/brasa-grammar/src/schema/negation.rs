//! The negation of schemas: schemas of the values that another schema does not allow.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{FORMATS, NARROWER, OTHER_FORMATS, PATTERNS, absence, classes};

/// Names of types.
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Keywords that restrict values and whose negation is not known. Every other keyword that this module does not handle does not
/// restrict values.
const OTHERS: [&str; 28] = [
    "$dynamicRef",
    "$recursiveRef",
    "additionalItems",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "if",
    "items",
    "maxContains",
    "maxProperties",
    "minContains",
    "multipleOf",
    "oneOf",
    "patternProperties",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "x-guidance",
    super::numbers::LITERAL,
    super::numbers::MARK,
];
/// Most alternatives of one negation.
const MOST_ALTERNATIVES: usize = 32;
/// Most nesting of references and parts that are followed.
const MOST_DEPTH: usize = 8;
/// Most names of a closed object whose negation is spelled out.
const MOST_NAMES: usize = 3;

/// Schemas such that a value matches at least one of them exactly if it does not match `schema`, whose references are looked up in
/// `root`. `None` if they are not known.
pub fn negated(root: &Value, schema: &Value) -> Option<Vec<Value>> {
    negate(root, schema, 0)
}

fn negate(root: &Value, schema: &Value, depth: usize) -> Option<Vec<Value>> {
    let negated = |schema: &Value| negate(root, schema, depth + 1);
    let keywords = match schema {
        Value::Bool(true) => return Some(Vec::new()),
        Value::Bool(false) => return Some(vec![json!(true)]),
        Value::Object(keywords) if depth < MOST_DEPTH => keywords,
        _ => return None,
    };
    let is_reference = keywords.contains_key("$ref") && ignores_siblings(root);
    let mut alternatives = Vec::new();
    for (name, value) in keywords.iter().filter(|(name, _)| !is_reference || *name == "$ref") {
        alternatives.extend(match name.as_str() {
            "type" => of_types(value)?,
            "const" => of_values(std::slice::from_ref(value))?,
            "enum" => of_values(value.as_array()?)?,
            "required" => of_required(value)?,
            "properties" => of_properties(value.as_object()?, &negated)?,
            "additionalProperties" if *value == Value::Bool(false) => of_closed(keywords)?,
            "additionalProperties" if !says_nothing(value) => return None,
            "minProperties" => below(value, "object", "maxProperties")?,
            "additionalProperties" | "items" if says_nothing(value) => Vec::new(),
            "uniqueItems" if *value == Value::Bool(false) => Vec::new(),
            "pattern" => absence::of_pattern(value.as_str()?)?,
            "format" if is_remark(value) => Vec::new(),
            "$ref" => {
                let pointer = value.as_str()?.strip_prefix('#')?;
                negated(root.pointer(if pointer == "/" { "" } else { pointer })?)?
            }
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
            // Said by `minimum` and `maximum`.
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => Vec::new(),
            "exclusiveMinimum" | "exclusiveMaximum" | "format" => return None,
            "minLength" => below(value, "string", "maxLength")?,
            "maxLength" => vec![json!({"type": "string", "minLength": value.as_u64()?.checked_add(1)?})],
            "minItems" => below(value, "array", "maxItems")?,
            "maxItems" => vec![json!({"type": "array", "minItems": value.as_u64()?.checked_add(1)?})],
            other if OTHERS.contains(&other) => return None,
            _ => Vec::new(),
        });
    }
    (alternatives.len() <= MOST_ALTERNATIVES).then_some(alternatives)
}

/// True if the schema's draft gives no meaning to keywords beside `$ref`, as all drafts up to 7 do.
fn ignores_siblings(root: &Value) -> bool {
    root.get("$schema").and_then(Value::as_str).is_some_and(|draft| draft.contains("/draft-0"))
}

/// One schema that allows the values of all `alternatives`.
pub fn any(alternatives: &[Value]) -> Value {
    if alternatives.is_empty() { json!(false) } else { json!({"anyOf": alternatives}) }
}

/// True for a schema that allows all values.
fn says_nothing(schema: &Value) -> bool {
    *schema == Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty)
}

/// True for a format that JSON Schema does not define, which is an annotation.
fn is_remark(format: &Value) -> bool {
    format.as_str().is_some_and(|format| {
        let is_pattern = PATTERNS.iter().any(|(name, _)| *name == format);
        let is_narrower = NARROWER.iter().any(|(name, _)| *name == format);
        !is_pattern && !is_narrower && !FORMATS.contains(&format) && !OTHER_FORMATS.contains(&format)
    })
}

/// Objects with a property that a closed object may not have: for each subset of its properties, one more property.
fn of_closed(keywords: &Map<String, Value>) -> Option<Vec<Value>> {
    if keywords.contains_key("patternProperties") {
        return None;
    }
    let properties = keywords.get("properties").and_then(Value::as_object).into_iter().flatten();
    let names: Vec<&String> = properties.map(|(name, _)| name).collect();
    if names.len() > MOST_NAMES {
        return None;
    }
    let choice = |chosen: usize| {
        let is_chosen = |at: usize| chosen >> at & 1 == 1;
        let absent = names.iter().enumerate().filter(|(at, _)| !is_chosen(*at));
        let absent: Map<String, Value> =
            absent.map(|(_, name)| ((*name).clone(), Value::Bool(false))).collect();
        let present: Vec<&&String> =
            names.iter().enumerate().filter(|(at, _)| is_chosen(*at)).map(|(_, name)| name).collect();
        let least = present.len() + 1;
        json!({"type": "object", "properties": absent, "required": present, "minProperties": least})
    };
    Some((0..1 << names.len()).map(choice).collect())
}

/// The value of a bound, unless draft 4's boolean `exclusive` keyword changes its meaning.
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

/// Objects that lack a required property.
fn of_required(value: &Value) -> Option<Vec<Value>> {
    let absent = |name: &Value| Some(json!({"type": "object", "properties": {name.as_str()?: false}}));
    value.as_array()?.iter().map(absent).collect()
}

/// Objects in which a property has a value that its schema does not allow.
fn of_properties(
    properties: &Map<String, Value>,
    negated: &dyn Fn(&Value) -> Option<Vec<Value>>,
) -> Option<Vec<Value>> {
    let mut alternatives = Vec::new();
    for (key, schema) in properties {
        let wrong = negated(schema)?;
        if !wrong.is_empty() {
            alternatives.push(json!({"type": "object", "properties": {key: any(&wrong)}, "required": [key]}));
        }
    }
    Some(alternatives)
}

/// Values that are not in a list.
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
        alternatives.push(text(format!("^{}$", other_texts(&texts))));
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

/// A schema of the texts that match a pattern.
pub fn text(pattern: String) -> Value {
    let pattern = classes::narrowed(&pattern).unwrap_or(pattern);
    json!({"type": "string", "pattern": pattern})
}

/// A pattern of the texts that are not in a list.
pub fn other_texts(texts: &[&str]) -> String {
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

/// A character by its number, so that it has no special meaning in a pattern.
pub fn escaped(letter: char) -> String {
    format!(r"\x{{{:x}}}", u32::from(letter))
}
