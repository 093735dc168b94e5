//! Custom tools, which take a free text in place of JSON arguments.
//!
//! The model sees a custom tool as a function with the text as its only argument, `input`. Calls of that function are converted
//! back to texts.

use brasa::Grammar;
use serde_json::{Value, json};

use crate::http::error::{ApiError, Result};
use crate::request::constraint::Constraint;
use crate::request::fields::Fields;

/// The form of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// A function with JSON arguments.
    Function,
    /// A custom tool with a text.
    Custom,
}

/// A custom tool of a request.
#[derive(Clone, Debug)]
pub(crate) struct CustomTool {
    pub name: String,
    /// The grammar of the tool's text alone; `None` for any text.
    pub constraint: Option<Constraint>,
}

impl CustomTool {
    /// Reads a tool with `name`, `description` and `format`. Also returns the function that the model sees.
    ///
    /// # Errors
    ///
    /// 400 that names the field.
    pub fn read(body: &Fields, place: &str, tool: Value) -> Result<(Self, Value)> {
        let mut fields = body.inside(place, tool)?;
        fields.value("type");
        let name: String = fields.required("name")?;
        if name.is_empty() {
            return Err(fields.missing("name"));
        }
        let mut input = json!({"type": "string"});
        let mut function = json!({"name": name});
        if let Some(description) = fields.optional::<String>("description")? {
            function["description"] = description.into();
        }
        let mut constraint = None;
        if let Some(format) = fields.value("format") {
            let format = body.inside(&fields.name("format"), format)?;
            if let Some((grammar, keyword)) = read_format(body, format)? {
                input["x-grammar"] = keyword;
                constraint = Some(grammar);
            }
        }
        function["parameters"] = json!({"type": "object", "properties": {"input": input}, "required": ["input"],
            "additionalProperties": false});
        if constraint.is_some() {
            function["strict"] = true.into();
        }
        Ok((Self { name, constraint }, json!({"type": "function", "function": function})))
    }
}

/// Reads the format of a tool's text: its grammar, and the schema keyword that describes the grammar to the model. `None` for any
/// text.
fn read_format(body: &Fields, mut format: Fields) -> Result<Option<(Constraint, Value)>> {
    let kind: String = format.required("type")?;
    match kind.as_str() {
        "text" => Ok(None),
        "grammar" => {
            // Chat completions have the grammar in an object of its own.
            let mut inner = match format.value("grammar") {
                Some(inner) => body.inside(&format.name("grammar"), inner)?,
                None => format,
            };
            let syntax: String = inner.required("syntax")?;
            let definition: String = inner.required("definition")?;
            let grammar = match syntax.as_str() {
                "lark" => Grammar::Lark(definition.clone()),
                "regex" => Grammar::Regex(definition.clone()),
                other => {
                    let name = inner.name("syntax");
                    let message = format!("`{name}` is `{other}`, expected lark or regex");
                    return Err(ApiError::field(&name, message));
                }
            };
            let constraint = Constraint::new(inner.name("definition"), grammar);
            Ok(Some((constraint, json!({"syntax": syntax, "definition": definition}))))
        }
        other => {
            let name = format.name("type");
            Err(ApiError::field(&name, format!("`{name}` is `{other}`, expected text or grammar")))
        }
    }
}

/// The JSON arguments that represent a custom tool's text, for the template.
pub(crate) fn arguments(input: &str) -> Value {
    json!({"input": input})
}
