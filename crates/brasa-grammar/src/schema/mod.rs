//! JSON schemas: finds unsupported parts before the parser sees them, so that errors name the place.

mod absence;
mod classes;
mod constants;
mod counts;
mod decimal;
mod disjoint;
mod exact;
mod exclusive;
mod lengths;
mod negation;
mod numbers;
mod rewrite;
mod texts;
mod unique;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

pub use self::decimal::Decimal;
pub use self::exact::Exact;
pub use self::numbers::LITERAL;
pub use self::texts::Loose;
use crate::GrammarError;
use crate::limits::{OPTIONAL_PROPERTIES, PATTERNS_TOGETHER, SCHEMA_DEPTH, SOURCE_BYTES, SUBSCHEMAS};

/// Keywords that change which values are valid, and that are not supported.
const UNSUPPORTED: [&str; 20] = [
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
    numbers::MARK,
];

/// Formats of strings that the parser supports.
const FORMATS: [&str; 11] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];
/// Formats that JSON Schema defines and that are not supported. Every other format is an annotation by JSON Schema's rules
/// (2020-12, validation, section 7.2.3), and does not restrict values: `int64`, `AWS::EC2::VPC.Id`.
const OTHER_FORMATS: [&str; 2] = ["regex", "color"];
/// Formats of texts in all languages, each with the corresponding format in ASCII, which answers use.
const NARROWER: [(&str, &str); 4] = [
    ("idn-email", "email"),
    ("idn-hostname", "hostname"),
    ("iri", "uri"),
    ("iri-reference", "uri-reference"),
];
/// Patterns that a format adds to a schema. URI templates (RFC 6570) are those in ASCII with plain names. References (RFC 3986, section 4.1) have
/// names as hosts. The parser's times allow the second
/// 60 in every minute, where only leap seconds have it (RFC 3339, section 5.7): here no time has it. The parser's years all have a 29th of
/// February: here only leap years have it, and there is no year 0000.
const PATTERNS: [(&str, &str); 7] = [
    (
        "uri-reference",
        r"^(([A-Za-z][A-Za-z0-9+.-]*:)?(//([A-Za-z0-9._~-]|%[0-9A-Fa-f]{2})+(:[0-9]{1,5})?(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*|/(([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*)?)|[A-Za-z][A-Za-z0-9+.-]*:(([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*)?|(([A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})+(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*)?)(\?([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?(#([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?$",
    ),
    ("json-pointer", r"^(/([^~/]|~[01])*)*$"),
    ("relative-json-pointer", r"^(0|[1-9][0-9]*)(#|(/([^~/]|~[01])*)*)$"),
    (
        "uri-template",
        r"^([A-Za-z0-9._~:/?#@!$&()*+,;=-]|%[0-9A-F]{2}|\{[+#./;?&]?[A-Za-z0-9_]+\*?(,[A-Za-z0-9_]+\*?)*\})*$",
    ),
    (
        "date",
        r"^((000[1-9]|00[1-9].|0[1-9]..|[1-9]...)-(0[13-9]|1|02-[01]|02-2[0-8])|(..(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)",
    ),
    (
        "date-time",
        r"^((000[1-9]|00[1-9].|0[1-9]..|[1-9]...)-((0[13-9]|1.)-..|02-([01].|2[0-8]))|(..(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29).{7}[0-5]",
    ),
    ("time", r"^.{6}[0-5]"),
];

/// Escapes in texts of schemas that name properties, see [`escapes`].
const ESCAPES: &str = "nrbtf\\\"";
/// Keywords that name properties.
const NAMING: [&str; 3] = ["properties", "patternProperties", "required"];

/// Most places of `oneOf` that warnings name.
const MOST_WARNINGS: usize = 8;

/// Keywords with a schema as their value.
const ONE: [&str; 2] = ["additionalProperties", "additionalItems"];
/// Keywords with a list of schemas as their value.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords with a map of schemas as their value.
const MAPS: [&str; 2] = ["properties", "patternProperties"];

/// A fully supported schema, in the parser's form.
pub struct Checked {
    pub exact: Value,
    /// The schema without those length limits that matter only after many characters.
    pub loose: Option<Loose>,
}

/// Additional results of checking the schemas of one grammar.
#[derive(Clone, Default)]
pub struct Notes {
    /// Numbers that the parser would round.
    pub numbers: Exact,
    /// The treatment of a `oneOf` with schemas that may overlap.
    pub one_of: OneOf,
    /// Places of each `oneOf` that may overlap.
    pub overlaps: Vec<String>,
    /// True if some `oneOf` allows fewer values than it should.
    pub is_narrowed: bool,
}

/// The treatment of a `oneOf` with schemas that may overlap in unknown ways.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum OneOf {
    /// Such a `oneOf` allows some of the values that are right by one schema alone. If no such values are known, it is an error.
    #[default]
    Narrowed,
    /// Like [`Narrowed`](Self::Narrowed), but a `oneOf` for which no such values are known is read as `anyOf`.
    NarrowedOrAnyOf,
    /// Such a `oneOf` is read as `anyOf`.
    AsAnyOf,
}

impl OneOf {
    /// True if some `oneOf` may be read as `anyOf`.
    pub fn coerces(self) -> bool {
        self != Self::Narrowed
    }
}

/// Treatment of keywords that are not supported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unsupported {
    /// The first unsupported keyword is an error.
    Refused,
    /// Unsupported keywords are ignored, and `oneOf` is read as `anyOf`.
    Ignored,
}

/// The schema in the parser's form, without keywords that have no effect, after checking that it is [`bounded`]. Adds to the
/// notes of the whole grammar.
///
/// # Errors
///
/// [`GrammarError::Keyword`], [`GrammarError::Schema`], [`GrammarError::TooLarge`].
pub fn checked(schema: &Value, unsupported: Unsupported, notes: &mut Notes) -> Result<Checked, GrammarError> {
    let schema = &*constants::spelled_out(schema)?;
    let schema = &*rewrite::rewritten(schema);
    let mut walk = Walk {
        root: schema,
        unsupported,
        seen: HashSet::new(),
        open: Vec::new(),
        neutral: Vec::new(),
        patterns: Vec::new(),
        formats: Vec::new(),
        texts: Vec::new(),
        exclusive: Vec::new(),
        unique: Vec::new(),
        numbers: Vec::new(),
        count: 0,
    };
    walk.open.push(("#".into(), schema, Position::Value));
    let has_numbers = numbers::may_matter(schema);
    while let Some((place, schema, position)) = walk.open.pop() {
        walk.check(&place, schema)?;
        let patterns = if position == Position::Value && schema.get("allOf").is_some() {
            texts::patterns_together(walk.root, schema, &mut 200)
        } else {
            0
        };
        if patterns > PATTERNS_TOGETHER {
            let what = format!(
                "{patterns} patterns that hold together are not supported, at most {PATTERNS_TOGETHER} are"
            );
            return Err(GrammarError::Unsupported { place, what });
        }
        if position == Position::Value
            && has_numbers
            && let Some(marked) = numbers::mark(
                walk.root,
                &place,
                schema,
                unsupported == Unsupported::Ignored || notes.one_of.coerces(),
                &mut notes.numbers,
            )?
        {
            walk.numbers.push((place, marked));
        }
    }
    let mut exact = schema.clone();
    for (place, keyword) in &walk.neutral {
        edit(&mut exact, place, |keywords| {
            keywords.shift_remove(*keyword);
        });
    }
    for (place, pattern) in &walk.patterns {
        edit(&mut exact, place, |keywords| add_pattern(keywords, pattern));
    }
    for (place, format) in &walk.formats {
        edit(&mut exact, place, |keywords| {
            keywords.insert("format".into(), (*format).into());
        });
    }
    for place in &walk.texts {
        edit(&mut exact, place, texts::drop_implied_lengths);
        edit(&mut exact, place, narrow_patterns);
    }
    let mut marked = Vec::new();
    for (place, replacement) in std::mem::take(&mut walk.numbers) {
        edit(&mut exact, &place, |keywords| {
            keywords.insert(numbers::MARK.into(), marked.len().into());
        });
        marked.push(replacement);
    }
    let mut loose = match unsupported {
        Unsupported::Refused => texts::loosen(&exact, &walk.texts),
        Unsupported::Ignored => None,
    };
    let extent = match (unsupported, notes.one_of) {
        (Unsupported::Refused, OneOf::Narrowed | OneOf::NarrowedOrAnyOf) => exclusive::Extent::Part,
        _ => exclusive::Extent::All,
    };
    for form in std::iter::once(&mut exact).chain(loose.as_mut().map(|loose| &mut loose.schema)) {
        for place in walk.replace(form, extent, &mut notes.is_narrowed) {
            if !notes.overlaps.contains(place) && notes.overlaps.len() < MOST_WARNINGS {
                notes.overlaps.push(place.clone());
            }
        }
        if !marked.is_empty() {
            let mut used = HashSet::new();
            numbers::place(form, &marked, &mut used);
            numbers::define(form, &used);
        }
    }
    // The two forms might be narrowed differently.
    let loose = loose.filter(|_| !notes.is_narrowed);
    Ok(Checked { exact, loose })
}

/// Escapes that texts may have; `None` for all of JSON.
///
/// If a schema names a property `a`, the parser takes `"\u0061"` for a further one, so that no text of such a schema has escapes by number.
pub fn escapes(schema: &Value) -> Option<&'static str> {
    let names_properties = match schema {
        Value::Object(map) => {
            map.iter().any(|(key, value)| NAMING.contains(&key.as_str()) || escapes(value).is_some())
        }
        Value::Array(items) => items.iter().any(|item| escapes(item).is_some()),
        _ => false,
    };
    names_properties.then_some(ESCAPES)
}

/// Adds a pattern, beside the one that the schema may have.
fn add_pattern(keywords: &mut Map<String, Value>, pattern: &str) {
    if !keywords.contains_key("pattern") {
        keywords.insert("pattern".into(), pattern.into());
        return;
    }
    let all = keywords.entry("allOf").or_insert_with(|| json!([]));
    if let Some(all) = all.as_array_mut() {
        all.push(json!({"pattern": pattern}));
    }
}

/// Rewrites the patterns of texts and names as the parser needs them.
fn narrow_patterns(keywords: &mut Map<String, Value>) {
    if let Some(narrow) = keywords.get("pattern").and_then(Value::as_str).and_then(classes::narrowed) {
        keywords.insert("pattern".into(), narrow.into());
    }
    let names = keywords.get_mut("patternProperties").and_then(Value::as_object_mut);
    if let Some(names) = names.filter(|names| names.keys().any(|name| classes::narrowed(name).is_some())) {
        let narrowed = std::mem::take(names).into_iter();
        *names = narrowed.map(|(name, schema)| (classes::narrowed(&name).unwrap_or(name), schema)).collect();
    }
}

/// Changes the keywords of the schema at `place`.
fn edit(schema: &mut Value, place: &str, change: impl FnOnce(&mut Map<String, Value>)) {
    let found = schema.pointer_mut(place.strip_prefix('#').unwrap_or_default());
    if let Some(keywords) = found.and_then(Value::as_object_mut) {
        change(keywords);
    }
}

/// Refuses values that are too deep or too large to be processed.
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

/// The position of a schema within other schemas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    /// The schema applies to a value by itself.
    Value,
    /// The schema is a part of one that applies to the same value.
    Part,
}

/// A walk over all schemas that may apply to a value. Definitions are visited only if something refers to them.
struct Walk<'a> {
    root: &'a Value,
    unsupported: Unsupported,
    /// References that have been followed.
    seen: HashSet<&'a str>,
    open: Vec<(String, &'a Value, Position)>,
    /// Unsupported keywords with values that have no effect, by place.
    neutral: Vec<(String, &'static str)>,
    /// Patterns that formats add, with their places.
    patterns: Vec<(String, &'static str)>,
    /// Formats that replace others, with their places.
    formats: Vec<(String, &'static str)>,
    /// Places of schemas with patterns.
    texts: Vec<String>,
    /// Places of schemas with `oneOf`.
    exclusive: Vec<String>,
    /// Places of schemas with `uniqueItems` that are spelled out.
    unique: Vec<String>,
    /// Places of schemas whose numbers get expressions of their own.
    numbers: Vec<(String, numbers::Marked)>,
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
        let count = counts::optional(keywords).len();
        if count > OPTIONAL_PROPERTIES {
            return Err(GrammarError::TooLarge {
                what: "optional properties of one object in a JSON schema",
                count,
                most: OPTIONAL_PROPERTIES,
            });
        }
        for keyword in UNSUPPORTED {
            if let Some(value) = keywords.get(keyword) {
                if keyword == "uniqueItems"
                    && *value == Value::Bool(true)
                    && !keywords.get("items").is_some_and(numbers::is_rounded)
                    && unique::lists(keywords).is_some()
                {
                    self.unique.push(place.into());
                } else if self.unsupported == Unsupported::Refused && !says_nothing(keyword, value, keywords)
                {
                    return Err(GrammarError::Keyword { keyword: keyword.into(), place: place.into() });
                }
                self.neutral.push((place.into(), keyword));
            }
        }
        if self.unsupported == Unsupported::Refused && !counts::is_exact(keywords) {
            return Err(GrammarError::Keyword { keyword: "minProperties".into(), place: place.into() });
        }
        if let Some(format) = keywords.get("format").and_then(Value::as_str) {
            let narrower = NARROWER.iter().find(|(wide, _)| *wide == format).map(|(_, narrow)| *narrow);
            let format = narrower.unwrap_or(format);
            if OTHER_FORMATS.contains(&format) && self.unsupported == Unsupported::Refused {
                return Err(GrammarError::Keyword {
                    keyword: format!("format: {format}"),
                    place: place.into(),
                });
            }
            if let Some((_, pattern)) = PATTERNS.iter().find(|(name, _)| *name == format) {
                self.patterns.push((place.into(), pattern));
            }
            match narrower {
                Some(narrow) if FORMATS.contains(&narrow) => self.formats.push((place.into(), narrow)),
                _ if !FORMATS.contains(&format) => self.neutral.push((place.into(), "format")),
                _ => {}
            }
        }
        if keywords.contains_key("pattern") || keywords.contains_key("patternProperties") {
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
                (keyword, _) if ONE.contains(&keyword) => self.open.push((here, value, Position::Value)),
                ("items" | "prefixItems", Value::Array(items)) => {
                    self.open_list(&here, items, Position::Value);
                }
                ("items", _) => self.open.push((here, value, Position::Value)),
                (keyword, Value::Array(items)) if LISTS.contains(&keyword) => {
                    self.open_list(&here, items, Position::Part);
                }
                (keyword, Value::Object(map)) if MAPS.contains(&keyword) => {
                    let place = |key: &str| format!("{here}/{}", escaped(key));
                    self.open.extend(map.iter().map(|(key, item)| (place(key), item, Position::Value)));
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

    fn open_list(&mut self, here: &str, items: &'a [Value], position: Position) {
        self.open.extend(items.iter().enumerate().map(|(at, item)| (format!("{here}/{at}"), item, position)));
    }

    /// Says with `anyOf` what the parser does not know: lists without equal items, and each `oneOf` for which the values are known to this
    /// extent. Returns the places of the others.
    fn replace(&self, schema: &mut Value, extent: exclusive::Extent, is_narrowed: &mut bool) -> Vec<&String> {
        for place in &self.unique {
            edit(schema, place, |keywords| {
                if let Some(lists) = unique::lists(keywords) {
                    keywords.insert("anyOf".into(), Value::Array(lists));
                }
            });
        }
        // References into branches have to find them where they are.
        if self.exclusive.is_empty() || self.seen.iter().any(|reference| reference.contains("/oneOf/")) {
            return self.exclusive.iter().collect();
        }
        let root = schema.clone();
        let mut proofs = disjoint::Proofs::new(&root);
        // Inner ones first, as their places are below the outer ones'.
        let mut places: Vec<_> = self.exclusive.iter().collect();
        places.sort_by_key(|place| std::cmp::Reverse(place.len()));
        places.retain(|place| {
            let mut stays = false;
            edit(schema, place, |keywords| {
                *is_narrowed |= exclusive::replace(&mut proofs, keywords, extent);
                stays = keywords.contains_key("oneOf");
            });
            stays
        });
        places
    }

    /// Visits the schema that a reference names, if it was not visited before.
    fn follow(&mut self, place: &str, reference: &'a Value) -> Result<(), GrammarError> {
        let Some(name) = reference.as_str() else {
            return Err(wrong(place, format!("`$ref`: expected a text, found {}", kind(reference))));
        };
        if !self.seen.insert(name) {
            return Ok(());
        }
        let pointer = name.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if self.unsupported == Unsupported::Ignored && pointer.is_none_or(|rest| rest.contains(['~', '%'])) {
            // The parser follows more of them, and says what it does not.
            return Ok(());
        }
        let Some(pointer) = pointer else {
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
            Some(target) => self.open.push((format!("#{pointer}"), target, Position::Value)),
            None => return Err(wrong(place, format!("`$ref` to {name:?}: there is no such place"))),
        }
        Ok(())
    }
}

/// True if an unsupported keyword with this value allows all values.
fn says_nothing(keyword: &str, value: &Value, keywords: &serde_json::Map<String, Value>) -> bool {
    let is_any = |value: &Value| {
        *value == Value::Bool(true) || value.as_object().is_some_and(serde_json::Map::is_empty)
    };
    let excludes = |kind: &str| match keywords.get("type") {
        Some(Value::String(name)) => name != kind,
        Some(Value::Array(names)) => !names.iter().any(|name| name == kind),
        _ => false,
    };
    let is_about_others = match keyword {
        "uniqueItems" | "contains" | "minContains" | "maxContains" | "unevaluatedItems" => excludes("array"),
        "propertyNames"
        | "dependencies"
        | "dependentRequired"
        | "dependentSchemas"
        | "unevaluatedProperties" => excludes("object"),
        _ => false,
    };
    if is_about_others {
        return true;
    }
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
