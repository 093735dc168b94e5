//! The tools that an answer may call, and the types of their arguments.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::chat::exact;

/// Tools by name, with the JSON schemas of their arguments.
#[derive(Clone, Debug, Default)]
pub struct Tools(Arc<BTreeMap<String, Value>>);

impl Tools {
    /// The tools of a list that `may_call` allows. Each is `{"type": "function", "function": {"name": …, "parameters": {…}}}`.
    pub fn new(tools: &[Value], may_call: impl Fn(&str) -> bool) -> Self {
        let named = tools.iter().filter_map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            Some((function.get("name")?.as_str()?.to_owned(), parameters(function)))
        });
        Self(Arc::new(named.filter(|(name, _)| may_call(name)).collect()))
    }

    /// True if there are no tools.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if there is a tool called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The tools and the schemas of their arguments, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, schema)| (name.as_str(), schema))
    }

    /// The names of a tool's arguments.
    pub fn arguments(&self, tool: &str) -> impl Iterator<Item = &str> {
        let schema = self.0.get(tool).and_then(|schema| schema.get("properties")?.as_object());
        schema.into_iter().flat_map(|properties| properties.keys().map(String::as_str))
    }

    /// The types that an argument of a tool may have.
    pub fn types(&self, tool: &str, argument: &str) -> Types {
        let schema = self.0.get(tool).and_then(|schema| schema.get("properties")?.get(argument));
        schema.map_or(Types::ANY, |schema| Types::of(schema, 0))
    }
}

fn parameters(function: &Value) -> Value {
    let schema = function.get("parameters").or_else(|| function.get("input_schema"));
    schema
        .filter(|schema| schema.is_object())
        .cloned()
        .unwrap_or_else(|| serde_json::json!({"type": "object"}))
}

/// A set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    /// Any type.
    pub const ANY: Self = Self(0b11_1111);
    /// Strings.
    pub const STRING: Self = Self(1);
    /// Numbers, whole or not.
    pub const NUMBER: Self = Self(2);
    /// `true` and `false`.
    pub const BOOLEAN: Self = Self(4);
    /// `null`.
    pub const NULL: Self = Self(8);
    /// Objects.
    pub const OBJECT: Self = Self(16);
    /// Arrays.
    pub const ARRAY: Self = Self(32);

    /// The types that a schema allows, judged by `type`, `enum`, `const`, `anyOf` and `oneOf`.
    pub fn of(schema: &Value, depth: usize) -> Self {
        let union = |list: &[Value], of: &dyn Fn(&Value) -> Self| {
            list.iter().fold(Self(0), |all, one| Self(all.0 | of(one).0))
        };
        let found = if let Some(kind) = schema.get("type") {
            match kind {
                Value::Array(kinds) => union(kinds, &Self::named),
                kind => Self::named(kind),
            }
        } else if let Some(Value::Array(values)) = schema.get("enum") {
            union(values, &Self::of_value)
        } else if let Some(value) = schema.get("const") {
            Self::of_value(value)
        } else if let Some(Value::Array(schemas)) = schema.get("anyOf").or_else(|| schema.get("oneOf"))
            && depth < 8
        {
            union(schemas, &|schema| Self::of(schema, depth + 1))
        } else {
            Self::ANY
        };
        if found == Self(0) { Self::ANY } else { found }
    }

    /// True if the set contains the type `one`.
    pub fn contains(self, one: Self) -> bool {
        self.0 & one.0 != 0
    }

    /// True if the set contains strings alone.
    pub fn is_string(self) -> bool {
        self == Self::STRING
    }

    /// The JSON text of an argument that was written without quotation marks: a value of an allowed type if `text` is one,
    /// otherwise a string.
    pub fn json(self, text: &str) -> String {
        let trimmed = text.trim();
        let word = match trimmed {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            _ => trimmed,
        };
        match serde_json::from_str::<Value>(word) {
            Ok(value) if self.has(&value) && !value.is_string() => word.to_owned(),
            Ok(_) if !self.contains(Self::STRING) => word.to_owned(),
            // Quotation marks are part of a string that needs none.
            _ => Value::from(text).to_string(),
        }
    }

    fn has(self, value: &Value) -> bool {
        self.contains(Self::of_value(value))
    }

    fn named(kind: &Value) -> Self {
        match kind.as_str() {
            Some("string") => Self::STRING,
            Some("number" | "integer") => Self::NUMBER,
            Some("boolean") => Self::BOOLEAN,
            Some("null") => Self::NULL,
            Some("object") => Self::OBJECT,
            Some("array") => Self::ARRAY,
            _ => Self::ANY,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(_) => Self::NUMBER,
            Value::String(text) if exact::digits(text).is_some() => Self::NUMBER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }
}
