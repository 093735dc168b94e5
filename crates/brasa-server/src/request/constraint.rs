//! Grammars of requests, under the field names of OpenAI, Anthropic, llama.cpp and vLLM.

use std::fmt::Write;
use std::sync::Arc;

use brasa::grammar::Literals;
use brasa::{Grammar, MaskSource, Model};
use serde_json::{Value, json};

use crate::http::error::{ApiError, Result};
use crate::request::fields::{Fields, kind};

/// Most texts in a list of choices.
const MOST_TEXTS: usize = 1024;

/// vLLM's older names of the members of `structured_outputs`.
const GUIDED: [&str; 4] = ["json", "regex", "choice", "grammar"];

/// Fields with which a request chooses the form of its answer.
const OWN: [&str; 8] = [
    "response_format",
    "grammar",
    "json_schema",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
];

/// A grammar, and the field of the request that it came from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constraint {
    param: String,
    grammar: Grammar,
}

impl Constraint {
    /// The grammar of the field `param`.
    pub fn new(param: impl Into<String>, grammar: Grammar) -> Self {
        Self { param: param.into(), grammar }
    }

    /// Reads the fields that all forms of request have: `response_format`, `grammar`, `json_schema`, `structured_outputs` and
    /// `guided_…`. `other` is the grammar from a field that only one form has.
    ///
    /// # Errors
    ///
    /// 400 that names the field; also if two fields have a grammar.
    pub fn read(fields: &mut Fields, other: Option<Self>) -> Result<Option<Self>> {
        let mut found: Vec<Self> = other.into_iter().collect();
        // The operator's grammar is for requests that ask for none.
        if !found.is_empty() || OWN.iter().any(|name| fields.peek(name).is_some_and(|value| !value.is_null()))
        {
            fields.take_default("grammar");
            fields.take_default("json_schema");
        }
        if let Some(format) = fields.value("response_format") {
            found.extend(Self::of_format(fields, "response_format", format)?);
        }
        if let Some(text) = fields.optional::<String>("grammar")?.filter(|text| !text.trim().is_empty()) {
            found.push(Self::new("grammar", Grammar::from_text(text)));
        }
        if let Some(schema) = fields.value("json_schema") {
            found.push(Self::new(
                "json_schema",
                Grammar::JsonSchema(schema_of(fields, "json_schema", schema)?),
            ));
        }
        if let Some(outputs) = fields.value("structured_outputs") {
            let mut outputs = fields.inside("structured_outputs", outputs)?;
            for member in ["json", "regex", "choice", "grammar", "json_object"] {
                if let Some(value) = outputs.value(member) {
                    found.extend(Self::of_member(&outputs, &outputs.name(member), member, value)?);
                }
            }
            outputs.refuse("structural_tag", "only whole answers are held to a grammar")?;
            let why = "the white space and the properties of JSON are those that the schema allows";
            for member in ["whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"] {
                outputs.refuse(member, why)?;
            }
        }
        for member in GUIDED {
            let name = format!("guided_{member}");
            if let Some(value) = fields.value(&name) {
                found.extend(Self::of_member(fields, &name, member, value)?);
            }
        }
        let first = (!found.is_empty()).then(|| found.swap_remove(0));
        match (first, found.first()) {
            (Some(first), Some(second)) => Err(ApiError::field(
                &second.param,
                format!(
                    "`{}` and `{}` both ask for a grammar, and an answer has one",
                    first.param, second.param
                ),
            )),
            (first, _) => Ok(first),
        }
    }

    /// Reads an answer format: `{"type": "text" | "json_object" | "json_schema", …}`, with the schema inside or in an object of
    /// its own. `"strict": false` ignores keywords of a schema that are not supported.
    pub fn of_format(body: &Fields, param: &str, format: Value) -> Result<Option<Self>> {
        let mut format = body.inside(param, format)?;
        let kind: String = format.required("type")?;
        let name = format.name("type");
        match kind.as_str() {
            "text" => Ok(None),
            // llama.cpp takes a schema here too. Hugging Face's client sends every schema as a value of this type.
            "json_object" | "json" => {
                for member in ["schema", "value"] {
                    if let Some(schema) = format.value(member) {
                        let name = format.name(member);
                        let grammar = Grammar::JsonSchema(schema_of(body, &name, schema)?);
                        return Ok(Some(Self::new(name, grammar)));
                    }
                }
                Ok(Some(Self::new(param, any_object())))
            }
            "json_schema" => {
                let mut inner = match format.value("json_schema") {
                    Some(inner) => body.inside(&format.name("json_schema"), inner)?,
                    None => format,
                };
                // For people.
                for name in ["name", "description"] {
                    inner.value(name);
                }
                let name = inner.name("schema");
                let schema = schema_of(body, &name, inner.required("schema")?)?;
                let grammar = match inner.switch("strict")? {
                    Some(false) => Grammar::LenientJsonSchema(schema),
                    _ => Grammar::JsonSchema(schema),
                };
                Ok(Some(Self::new(name, grammar)))
            }
            "structural_tag" | "grammar" | "regex" => {
                Err(ApiError::unsupported(&name, "`structured_outputs` takes grammars that are no schemas"))
            }
            other => Err(ApiError::field(
                &name,
                format!("`{name}` is `{other}`, expected text, json_object or json_schema"),
            )),
        }
    }

    /// Reads a member of vLLM's `structured_outputs`.
    fn of_member(fields: &Fields, param: &str, member: &str, value: Value) -> Result<Option<Self>> {
        let text = |value: Value| match value {
            Value::String(text) => Ok(text),
            other => Err(ApiError::field(param, format!("`{param}` is {}, expected a text", kind(&other)))),
        };
        let grammar = match member {
            "json" => {
                let schema = match value {
                    Value::String(text) => {
                        let mut schema = serde_json::from_str(&text).map_err(|error| {
                            ApiError::field(param, format!("`{param}` is a text that is no JSON: {error}"))
                        })?;
                        Literals::of(text.as_bytes()).put_back(&mut schema);
                        schema
                    }
                    value => value,
                };
                Grammar::JsonSchema(schema_of(fields, param, schema)?)
            }
            "regex" => Grammar::Regex(text(value)?),
            "choice" => Grammar::Regex(one_of(param, value)?),
            "grammar" => Grammar::from_text(text(value)?),
            _ if value == Value::Bool(true) => any_object(),
            _ => return Ok(None),
        };
        Ok(Some(Self::new(param, grammar)))
    }

    /// The field that the grammar came from.
    pub fn param(&self) -> &str {
        &self.param
    }

    /// The grammar.
    pub fn grammar(&self) -> &Grammar {
        &self.grammar
    }

    /// Compiles the grammar for a model. Blocks, for about a second if it is the first grammar of a large vocabulary.
    ///
    /// # Errors
    ///
    /// 400 that names the field, and the part of the grammar that is wrong or not supported.
    pub fn compile(&self, model: &Model) -> Result<Arc<dyn MaskSource>> {
        model.grammar(&self.grammar).map_err(|error| ApiError::from(error).with_param(&self.param))
    }
}

/// A grammar of any JSON object.
fn any_object() -> Grammar {
    Grammar::JsonSchema(json!({"type": "object"}))
}

/// A schema with its exact numbers. Refuses a schema that is neither an object nor a boolean.
fn schema_of(fields: &Fields, param: &str, schema: Value) -> Result<Value> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(fields.exact(schema)),
        other => {
            Err(ApiError::field(param, format!("`{param}` is {}, expected a JSON schema", kind(&other))))
        }
    }
}

/// A regular expression that matches exactly the texts of a list.
fn one_of(param: &str, texts: Value) -> Result<String> {
    let texts: Vec<String> = serde_json::from_value(texts)
        .map_err(|error| ApiError::field(param, format!("`{param}` is no list of texts: {error}")))?;
    if texts.is_empty() || texts.len() > MOST_TEXTS {
        let message = format!("`{param}` has {} texts, expected 1 to {MOST_TEXTS}", texts.len());
        return Err(ApiError::field(param, message));
    }
    let mut regex = String::new();
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            regex.push('|');
        }
        for character in text.chars() {
            // Characters by their numbers mean themselves everywhere in a regular expression.
            if character.is_alphanumeric() {
                regex.push(character);
            } else {
                let _ = write!(regex, "\\x{{{:x}}}", u32::from(character));
            }
        }
    }
    Ok(format!("({regex})"))
}
