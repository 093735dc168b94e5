//! JSON schemas: what of them is supported, found out before the parser sees them, so that errors name the place.

mod disjoint;
mod exclusive;
mod lengths;
mod texts;
mod unique;

use std::collections::HashSet;

use serde_json::{Map, Value};

pub use self::texts::Loose;
use crate::GrammarError;
use crate::limits::{SCHEMA_DEPTH, SOURCE_BYTES, SUBSCHEMAS};

/// Keywords that change which values are right, and that are not supported.
const UNSUPPORTED: [&str; 19] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$recursiveRef",
    "$recursiveAnchor",
    "$dynamicRef",
    "$dynamicAnchor",
    "x-guidance",
];

/// Formats of strings that the parser supports.
const FORMATS: [&str; 11] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];
/// Formats that JSON Schema defines and that are not supported. Every other format is a remark by JSON Schema's rules (2020-12,
/// validation, section 7.2.3), and says nothing about which values are right: `int64`, `AWS::EC2::VPC.Id`.
const OTHER_FORMATS: [&str; 9] = [
    "idn-email",
    "idn-hostname",
    "uri-reference",
    "iri",
    "iri-reference",
    "json-pointer",
    "relative-json-pointer",
    "regex",
    "color",
];
/// Patterns that a format adds to a schema. URI templates (RFC 6570) are those in ASCII with plain names. The parser's times allow the second
/// 60 in every minute, where only leap seconds have it (RFC 3339, section 5.7): here no time has it.
const PATTERNS: [(&str, &str); 3] = [
    (
        "uri-template",
        r"^([A-Za-z0-9._~:/?#@!$&()*+,;=-]|%[0-9A-F]{2}|\{[+#./;?&]?[A-Za-z0-9_]+\*?(,[A-Za-z0-9_]+\*?)*\})*$",
    ),
    ("date-time", r"^.{17}[0-5]"),
    ("time", r"^.{6}[0-5]"),
];

/// Keywords whose value is a schema.
const ONE: [&str; 2] = ["additionalProperties", "additionalItems"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords whose value is a map of schemas.
const MAPS: [&str; 2] = ["properties", "patternProperties"];

/// A schema all of which is supported, in the parser's terms.
pub struct Checked {
    pub exact: Value,
    /// The schema without lengths of texts that matter only behind many characters.
    pub loose: Option<Loose>,
}

/// The schema without keywords that say nothing, if all of it is supported. It is [`bounded`].
///
/// # Errors
///
/// [`GrammarError::Keyword`], [`GrammarError::Schema`], [`GrammarError::TooLarge`].
pub fn checked(schema: &Value) -> Result<Checked, GrammarError> {
    let mut walk = Walk {
        root: schema,
        seen: HashSet::new(),
        open: Vec::new(),
        neutral: Vec::new(),
        patterns: Vec::new(),
        texts: Vec::new(),
        exclusive: Vec::new(),
        unique: Vec::new(),
        count: 0,
    };
    walk.open.push(("#".into(), schema));
    while let Some((place, schema)) = walk.open.pop() {
        walk.check(&place, schema)?;
    }
    let mut exact = schema.clone();
    for (place, keyword) in &walk.neutral {
        edit(&mut exact, place, |keywords| {
            keywords.remove(*keyword);
        });
    }
    for (place, pattern) in &walk.patterns {
        edit(&mut exact, place, |keywords| {
            keywords.insert("pattern".into(), (*pattern).into());
        });
    }
    for place in &walk.texts {
        edit(&mut exact, place, texts::drop_implied_lengths);
    }
    let mut loose = texts::loosen(&exact, &walk.texts);
    walk.replace(&mut exact);
    if let Some(loose) = &mut loose {
        walk.replace(&mut loose.schema);
    }
    Ok(Checked { exact, loose })
}

/// Changes the keywords at a place.
fn edit(schema: &mut Value, place: &str, change: impl FnOnce(&mut Map<String, Value>)) {
    let found = schema.pointer_mut(place.strip_prefix('#').unwrap_or_default());
    if let Some(keywords) = found.and_then(Value::as_object_mut) {
        change(keywords);
    }
}

/// The schema, of which unsupported keywords will be ignored.
///
/// # Errors
///
/// [`GrammarError::Schema`].
pub fn lenient(schema: &Value) -> Result<Value, GrammarError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(wrong("#", format!("expected an object, found {}", kind(schema))));
    }
    Ok(schema.clone())
}

/// Refuses values that are too deep or too large to be walked.
///
/// # Errors
///
/// [`GrammarError::TooLarge`].
pub fn bounded(schema: &Value) -> Result<(), GrammarError> {
    let mut open = vec![(schema, 1)];
    let mut bytes = 0_usize;
    while let Some((value, depth)) = open.pop() {
        if depth > SCHEMA_DEPTH {
            return Err(GrammarError::TooLarge {
                what: "levels of a JSON schema",
                count: depth,
                most: SCHEMA_DEPTH,
            });
        }
        bytes += 2;
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => {
                bytes += map.keys().map(|key| key.len() + 4).sum::<usize>();
                open.extend(map.values().map(|item| (item, depth + 1)));
            }
            _ => {}
        }
    }
    if bytes > SOURCE_BYTES {
        return Err(GrammarError::TooLarge {
            what: "bytes of a JSON schema",
            count: bytes,
            most: SOURCE_BYTES,
        });
    }
    Ok(())
}

/// A walk over all schemas that a value may be measured by. Definitions count only if something refers to them.
struct Walk<'a> {
    root: &'a Value,
    /// References that were followed.
    seen: HashSet<&'a str>,
    open: Vec<(String, &'a Value)>,
    /// Unsupported keywords with values that say nothing.
    neutral: Vec<(String, &'static str)>,
    /// Patterns that formats add, with their places.
    patterns: Vec<(String, &'static str)>,
    /// Places of patterns.
    texts: Vec<String>,
    /// Places of `oneOf`.
    exclusive: Vec<String>,
    /// Places of lists without equal items, which are spelled out.
    unique: Vec<String>,
    count: usize,
}

impl<'a> Walk<'a> {
    fn check(&mut self, place: &str, schema: &'a Value) -> Result<(), GrammarError> {
        self.count += 1;
        if self.count > SUBSCHEMAS {
            return Err(GrammarError::TooLarge {
                what: "subschemas of a JSON schema",
                count: self.count,
                most: SUBSCHEMAS,
            });
        }
        let Value::Object(keywords) = schema else {
            return match schema {
                Value::Bool(_) => Ok(()),
                other => Err(wrong(place, format!("expected a schema, found {}", kind(other)))),
            };
        };
        for keyword in UNSUPPORTED {
            if let Some(value) = keywords.get(keyword) {
                if keyword == "uniqueItems"
                    && *value == Value::Bool(true)
                    && unique::lists(keywords).is_some()
                {
                    self.unique.push(place.into());
                } else if !says_nothing(keyword, value, keywords) {
                    return Err(GrammarError::Keyword { keyword: keyword.into(), place: place.into() });
                }
                self.neutral.push((place.into(), keyword));
            }
        }
        if let Some(format) = keywords.get("format").and_then(Value::as_str) {
            let has_pattern = keywords.contains_key("pattern");
            if OTHER_FORMATS.contains(&format) || format == "uri-template" && has_pattern {
                return Err(GrammarError::Keyword {
                    keyword: format!("format: {format}"),
                    place: place.into(),
                });
            }
            if let Some((_, pattern)) = PATTERNS.iter().find(|(name, _)| *name == format)
                && !has_pattern
            {
                self.patterns.push((place.into(), pattern));
            }
            if !FORMATS.contains(&format) {
                self.neutral.push((place.into(), "format"));
            }
        }
        if keywords.contains_key("pattern") {
            self.texts.push(place.into());
        }
        if keywords.contains_key("oneOf") {
            self.exclusive.push(place.into());
        }
        if let Some(reference) = keywords.get("$ref") {
            self.follow(place, reference)?;
        }
        for (keyword, value) in keywords {
            let here = format!("{place}/{}", escaped(keyword));
            match (keyword.as_str(), value) {
                (keyword, _) if ONE.contains(&keyword) => self.open.push((here, value)),
                ("items", Value::Array(items)) => self.open_list(&here, items),
                ("items", _) => self.open.push((here, value)),
                (keyword, Value::Array(items)) if LISTS.contains(&keyword) => self.open_list(&here, items),
                (keyword, Value::Object(map)) if MAPS.contains(&keyword) => {
                    self.open
                        .extend(map.iter().map(|(key, item)| (format!("{here}/{}", escaped(key)), item)));
                }
                (keyword, other) if LISTS.contains(&keyword) => {
                    return Err(wrong(&here, format!("expected a list of schemas, found {}", kind(other))));
                }
                (keyword, other) if MAPS.contains(&keyword) => {
                    return Err(wrong(&here, format!("expected a map of schemas, found {}", kind(other))));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn open_list(&mut self, here: &str, items: &'a [Value]) {
        self.open.extend(items.iter().enumerate().map(|(at, item)| (format!("{here}/{at}"), item)));
    }

    /// Says with `anyOf` what the parser does not know: lists without equal items, and each `oneOf` for which the same values are known.
    fn replace(&self, schema: &mut Value) {
        for place in &self.unique {
            edit(schema, place, |keywords| {
                if let Some(lists) = unique::lists(keywords) {
                    keywords.insert("anyOf".into(), Value::Array(lists));
                }
            });
        }
        // References into branches have to find them where they are.
        if self.exclusive.is_empty() || self.seen.iter().any(|reference| reference.contains("/oneOf/")) {
            return;
        }
        let root = schema.clone();
        let mut proofs = disjoint::Proofs::new(&root);
        // Inner ones first, as their places are below the outer ones'.
        let mut places: Vec<_> = self.exclusive.iter().collect();
        places.sort_by_key(|place| std::cmp::Reverse(place.len()));
        for place in places {
            edit(schema, place, |keywords| exclusive::replace(&mut proofs, keywords));
        }
    }

    /// Opens the schema that a reference names, the first time.
    fn follow(&mut self, place: &str, reference: &'a Value) -> Result<(), GrammarError> {
        let Some(name) = reference.as_str() else {
            return Err(wrong(place, format!("`$ref`: expected a text, found {}", kind(reference))));
        };
        if !self.seen.insert(name) {
            return Ok(());
        }
        let Some(pointer) = name.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/'))
        else {
            return Err(wrong(
                place,
                format!("`$ref` to {name:?}: only places of this schema (`#/…`) can be named"),
            ));
        };
        let pointer = if pointer == "/" { "" } else { pointer };
        if pointer.contains(['~', '%']) {
            return Err(wrong(place, format!("`$ref` to {name:?}: names with escapes are not supported")));
        }
        match self.root.pointer(pointer) {
            Some(target) => self.open.push((format!("#{pointer}"), target)),
            None => return Err(wrong(place, format!("`$ref` to {name:?}: there is no such place"))),
        }
        Ok(())
    }
}

/// True if an unsupported keyword allows all values.
fn says_nothing(keyword: &str, value: &Value, keywords: &serde_json::Map<String, Value>) -> bool {
    let is_any = |value: &Value| {
        *value == Value::Bool(true) || value.as_object().is_some_and(serde_json::Map::is_empty)
    };
    match keyword {
        "not" => *value == Value::Bool(false),
        "uniqueItems" => {
            *value == Value::Bool(false)
                || keywords.get("maxItems").and_then(Value::as_u64).is_some_and(|most| most < 2)
        }
        "if" => !keywords.contains_key("then") && !keywords.contains_key("else"),
        "then" | "else" => !keywords.contains_key("if") || is_any(value),
        "minContains" | "maxContains" => !keywords.contains_key("contains"),
        "propertyNames" | "unevaluatedItems" | "unevaluatedProperties" => is_any(value),
        "dependencies" | "dependentRequired" | "dependentSchemas" => {
            value.as_object().is_some_and(serde_json::Map::is_empty)
        }
        _ => false,
    }
}

fn wrong(place: &str, what: String) -> GrammarError {
    GrammarError::Schema { place: place.into(), what }
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
