//! Proves that no value is valid by two schemas.
//!
//! A proof uses only a part of what the schemas say. Ignored parts make a schema look wider than it is, so every proof found is
//! right.

use serde_json::{Map, Value};

/// Most work on all proofs of one schema, counted in examined schemas and listed values.
const MOST_STEPS: usize = 300_000;
/// Most nesting of properties, choices and references that a proof follows.
const MOST_DEPTH: usize = 12;

/// A set of kinds of values. Integers are numbers without a fraction.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kinds(u8);

impl Kinds {
    const NULL: Self = Self(1);
    const BOOLEAN: Self = Self(2);
    const INTEGER: Self = Self(4);
    const FRACTION: Self = Self(8);
    const STRING: Self = Self(16);
    const ARRAY: Self = Self(32);
    const OBJECT: Self = Self(64);
    const NONE: Self = Self(0);
    const ALL: Self = Self(127);

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn of_name(name: &str) -> Self {
        match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::INTEGER.or(Self::FRACTION),
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::ALL,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) => match number.as_f64() {
                Some(number) if number.fract() == 0.0 => Self::INTEGER,
                Some(_) => Self::FRACTION,
                None => Self::INTEGER.or(Self::FRACTION),
            },
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }
}

/// Schemas that a value must match together: all of `plain`, and at least one of each choice.
#[derive(Clone, Default)]
struct Parts<'a> {
    plain: Vec<&'a Map<String, Value>>,
    choices: Vec<&'a [Value]>,
    /// True if no value is valid.
    is_never: bool,
}

/// Proofs about parts of one schema.
pub struct Proofs<'a> {
    /// The schema in which references are looked up.
    root: &'a Value,
    steps: usize,
}

impl<'a> Proofs<'a> {
    /// Proofs about parts of `root`.
    pub fn new(root: &'a Value) -> Self {
        Self { root, steps: 0 }
    }

    /// The schema in which references are looked up.
    pub fn root(&self) -> &'a Value {
        self.root
    }

    /// True if it is proven that no value satisfies all of `one` and all of `other`.
    pub fn are_disjoint<'b>(&mut self, one: &[&'b Value], other: &[&'b Value]) -> bool
    where
        'a: 'b,
    {
        let (one, other) = (self.parts(one), self.parts(other));
        self.disjoint(&one, &other, 0)
    }

    /// True if it is proven that `value` is invalid by one of the schemas `all`.
    pub fn is_wrong<'b>(&mut self, value: &Value, all: &[&'b Value]) -> bool
    where
        'a: 'b,
    {
        let parts = self.parts(all);
        self.wrong(value, &parts, 0)
    }

    /// Names of the properties that schemas which hold together describe, and of those that they require.
    pub fn names<'b>(&mut self, all: &[&'b Value]) -> (Vec<&'b str>, Vec<&'b str>)
    where
        'a: 'b,
    {
        let parts = self.parts(all);
        let described = parts.plain.iter().filter_map(|part| part.get("properties")?.as_object());
        (described.flatten().map(|(name, _)| name.as_str()).collect(), required(&parts))
    }

    /// True if it is proven that a schema allows `null`.
    pub fn allows_null(&mut self, schema: &Value) -> bool {
        self.null(schema, 0)
    }

    fn null(&mut self, schema: &Value, depth: usize) -> bool {
        let Value::Object(keywords) = schema else { return *schema == Value::Bool(true) };
        if !self.goes_on(depth) {
            return false;
        }
        let is_null = |name: &Value| name == "null";
        let has_type = keywords.get("type").is_none_or(|kind| {
            is_null(kind) || kind.as_array().is_some_and(|kinds| kinds.iter().any(is_null))
        });
        let root = self.root;
        let target = |reference: &Value| root.pointer(reference.as_str()?.strip_prefix('#')?);
        has_type
            && !keywords.contains_key("oneOf")
            && keywords.get("const").is_none_or(Value::is_null)
            && list(keywords, "enum").is_none_or(|values| values.iter().any(Value::is_null))
            && keywords
                .get("$ref")
                .is_none_or(|name| target(name).is_some_and(|schema| self.null(schema, depth + 1)))
            && list(keywords, "allOf").is_none_or(|all| all.iter().all(|part| self.null(part, depth + 1)))
            && list(keywords, "anyOf").is_none_or(|any| any.iter().any(|part| self.null(part, depth + 1)))
    }

    fn parts<'b>(&mut self, all: &[&'b Value]) -> Parts<'b>
    where
        'a: 'b,
    {
        let mut parts = Parts::default();
        for schema in all {
            self.add(schema, &mut parts, 0);
        }
        parts
    }

    fn add<'b>(&mut self, schema: &'b Value, parts: &mut Parts<'b>, depth: usize)
    where
        'a: 'b,
    {
        let keywords = match schema {
            Value::Object(keywords) if self.goes_on(depth) => keywords,
            Value::Bool(false) => {
                parts.is_never = true;
                return;
            }
            _ => return,
        };
        if let Some(reference) = keywords.get("$ref") {
            // Up to draft 7, what stands beside a reference says nothing.
            let pointer = reference.as_str().and_then(|name| name.strip_prefix('#')).unwrap_or("?");
            if let Some(target) = self.root.pointer(pointer) {
                self.add(target, parts, depth + 1);
            }
            return;
        }
        self.steps += values(keywords).map_or(0, <[Value]>::len);
        parts.plain.push(keywords);
        for part in list(keywords, "allOf").unwrap_or_default() {
            self.add(part, parts, depth + 1);
        }
        parts.choices.extend(["anyOf", "oneOf"].iter().filter_map(|name| list(keywords, name)));
    }

    /// Counts a step; false if the limit of work or depth is exceeded.
    fn goes_on(&mut self, depth: usize) -> bool {
        self.steps += 1;
        self.steps < MOST_STEPS && depth < MOST_DEPTH
    }

    fn kinds(&mut self, parts: &Parts<'_>, depth: usize) -> Kinds {
        if parts.is_never {
            return Kinds::NONE;
        }
        let mut kinds = parts.plain.iter().fold(Kinds::ALL, |kinds, part| kinds.and(plain_kinds(part)));
        for choice in &parts.choices {
            if !self.goes_on(depth) {
                return kinds;
            }
            let mut any = Kinds::NONE;
            for option in *choice {
                let option = self.parts(&[option]);
                any = any.or(self.kinds(&option, depth + 1));
            }
            kinds = kinds.and(any);
        }
        kinds
    }

    fn disjoint(&mut self, one: &Parts<'_>, other: &Parts<'_>, depth: usize) -> bool {
        if !self.goes_on(depth) {
            return false;
        }
        let common = self.kinds(one, depth).and(self.kinds(other, depth));
        common == Kinds::NONE
            || self.values_are_wrong(one, other, depth)
            || self.values_are_wrong(other, one, depth)
            || same_kind_is_disjoint(common, one, other)
            || common == Kinds::OBJECT && self.properties_are_disjoint(one, other, depth)
            || common == Kinds::ARRAY && self.items_are_disjoint(one, other, depth)
            || self.options_are_disjoint(one, other, depth)
            || self.options_are_disjoint(other, one, depth)
    }

    /// True if `one` allows only listed values, and each of them is invalid by `other`.
    fn values_are_wrong(&mut self, one: &Parts<'_>, other: &Parts<'_>, depth: usize) -> bool {
        one.plain.iter().filter_map(|part| values(part)).any(|values| {
            values
                .iter()
                .all(|value| self.wrong(value, one, depth + 1) || self.wrong(value, other, depth + 1))
        })
    }

    /// True if both require objects with some property for which no value is valid by both.
    fn properties_are_disjoint(&mut self, one: &Parts<'_>, other: &Parts<'_>, depth: usize) -> bool {
        let required: Vec<&str> = [one, other].into_iter().flat_map(required).collect();
        required.into_iter().any(|key| {
            let (one, other) = (self.of_property(one, key), self.of_property(other, key));
            self.disjoint(&one, &other, depth + 1)
        })
    }

    /// True if both require arrays with an item, and no item is valid by both.
    fn items_are_disjoint(&mut self, one: &Parts<'_>, other: &Parts<'_>, depth: usize) -> bool {
        let has_some = [one, other]
            .iter()
            .any(|parts| parts.plain.iter().any(|part| range(part, "minItems", "maxItems").0 >= 1.0));
        let (one, other) = (self.of_items(one), self.of_items(other));
        has_some && self.disjoint(&one, &other, depth + 1)
    }

    fn of_items<'b>(&mut self, parts: &Parts<'b>) -> Parts<'b>
    where
        'a: 'b,
    {
        let all = parts.plain.iter().filter(|part| !part.contains_key("prefixItems"));
        let schemas: Vec<_> = all.filter_map(|part| part.get("items")).collect();
        self.parts(&schemas)
    }

    fn of_property<'b>(&mut self, parts: &Parts<'b>, key: &str) -> Parts<'b>
    where
        'a: 'b,
    {
        let schemas: Vec<_> = parts.plain.iter().filter_map(|part| property(part, key)).collect();
        self.parts(&schemas)
    }

    /// True if a choice of `one` has only options that are disjoint from `other`.
    fn options_are_disjoint(&mut self, one: &Parts<'_>, other: &Parts<'_>, depth: usize) -> bool {
        (0..one.choices.len()).any(|number| {
            one.choices[number].iter().all(|option| {
                let mut narrow = one.clone();
                narrow.choices.swap_remove(number);
                self.add(option, &mut narrow, 0);
                self.disjoint(&narrow, other, depth + 1)
            })
        })
    }

    fn wrong(&mut self, value: &Value, parts: &Parts<'_>, depth: usize) -> bool {
        if parts.is_never {
            return true;
        }
        if !self.goes_on(depth) {
            return false;
        }
        let kind = Kinds::of_value(value);
        self.steps += parts.plain.iter().filter_map(|part| values(part)).map(<[Value]>::len).sum::<usize>();
        parts.plain.iter().any(|part| {
            kind.and(plain_kinds(part)) == Kinds::NONE
                || values(part).is_some_and(|values| !values.iter().any(|other| are_same(value, other)))
                || match value {
                    Value::Object(map) => {
                        required_of(part).any(|key| !map.contains_key(key))
                            || map.iter().any(|(key, value)| {
                                property(part, key).is_some_and(|schema| {
                                    let parts = self.parts(&[schema]);
                                    self.wrong(value, &parts, depth + 1)
                                })
                            })
                    }
                    Value::String(text) => {
                        let count = text.chars().count() as f64;
                        let (least, most) = range(part, "minLength", "maxLength");
                        count < least || count > most
                    }
                    Value::Array(items) => {
                        let (least, most) = range(part, "minItems", "maxItems");
                        (items.len() as f64) < least || items.len() as f64 > most
                    }
                    Value::Number(number) => {
                        let (least, most) = range(part, "minimum", "maximum");
                        number.as_f64().is_some_and(|number| number < least || number > most)
                    }
                    _ => false,
                }
        }) || parts.choices.iter().any(|choice| {
            choice.iter().all(|option| {
                let parts = self.parts(&[option]);
                self.wrong(value, &parts, depth + 1)
            })
        })
    }
}

fn list<'a>(keywords: &'a Map<String, Value>, name: &str) -> Option<&'a [Value]> {
    keywords.get(name).and_then(Value::as_array).map(Vec::as_slice)
}

/// The values that a schema lists; `None` if it lists none.
fn values(keywords: &Map<String, Value>) -> Option<&[Value]> {
    keywords.get("const").map(std::slice::from_ref).or_else(|| list(keywords, "enum"))
}

fn plain_kinds(keywords: &Map<String, Value>) -> Kinds {
    let named = match keywords.get("type") {
        Some(Value::String(name)) => Kinds::of_name(name),
        Some(Value::Array(names)) => names
            .iter()
            .fold(Kinds::NONE, |kinds, name| kinds.or(name.as_str().map_or(Kinds::ALL, Kinds::of_name))),
        _ => Kinds::ALL,
    };
    let listed = values(keywords)
        .map_or(Kinds::ALL, |values| values.iter().map(Kinds::of_value).fold(Kinds::NONE, Kinds::or));
    named.and(listed)
}

fn required_of(keywords: &Map<String, Value>) -> impl Iterator<Item = &str> {
    list(keywords, "required").unwrap_or_default().iter().filter_map(Value::as_str)
}

fn required<'a>(parts: &Parts<'a>) -> Vec<&'a str> {
    parts.plain.iter().copied().flat_map(required_of).collect()
}

/// The schema of the property `key`, if it is known.
fn property<'a>(keywords: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let map = |name: &str| keywords.get(name).and_then(Value::as_object);
    if let Some(schema) = map("properties").and_then(|properties| properties.get(key)) {
        return Some(schema);
    }
    // A pattern might have it.
    map("patternProperties").is_none_or(Map::is_empty).then(|| keywords.get("additionalProperties"))?
}

/// The bounds of a number or of a count, by the keywords `least` and `most`.
fn range(keywords: &Map<String, Value>, least: &str, most: &str) -> (f64, f64) {
    let number = |name: &str| keywords.get(name).and_then(Value::as_f64);
    (number(least).unwrap_or(f64::NEG_INFINITY), number(most).unwrap_or(f64::INFINITY))
}

/// True if the only common kind's values differ in size between `one` and `other`.
fn same_kind_is_disjoint(common: Kinds, one: &Parts<'_>, other: &Parts<'_>) -> bool {
    let (least, most) = match common {
        Kinds::STRING => ("minLength", "maxLength"),
        Kinds::ARRAY => ("minItems", "maxItems"),
        kinds if kinds.and(Kinds::INTEGER.or(Kinds::FRACTION)) == kinds => ("minimum", "maximum"),
        _ => return false,
    };
    let range = |parts: &Parts<'_>| {
        parts
            .plain
            .iter()
            .map(|part| range(part, least, most))
            .fold((f64::NEG_INFINITY, f64::INFINITY), |(low, high), (least, most)| {
                (low.max(least), high.min(most))
            })
    };
    let ((one_low, one_high), (other_low, other_high)) = (range(one), range(other));
    one_high < other_low || other_high < one_low
}

/// True if two values may be equal. Numbers are compared by value.
pub fn are_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| are_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| are_same(value, other)))
        }
        _ => one == other,
    }
}
