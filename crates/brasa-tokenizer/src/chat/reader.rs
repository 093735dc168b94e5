//! Reads messages: of requests, of training rows, of saved conversations, and from serde.
//!
//! Messages are in OpenAI's form as clients and data sets write it. A null is an absent field. Arguments of earlier calls may be
//! any text, because they can no longer be corrected; [`ChatTemplate::fit`](super::ChatTemplate::fit) converts them to a form
//! that a template takes.

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};

use super::message::{Content, Message};
use crate::{Result, TokenizerError};

/// Names of the field for thoughts before an answer; the first one with a text is used.
const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

impl Message {
    /// Reads a message. Errors name it by `place`, such as `messages[1]`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Message`], [`TokenizerError::MissingField`] or [`TokenizerError::NotText`] with the place.
    pub fn read(value: Value, place: &str) -> Result<Self> {
        let mut fields = match value {
            Value::Object(fields) => fields,
            other => return Err(wrong(place, &other, "an object with `role` and `content`")),
        };
        fields.retain(|_, value| !value.is_null());
        let mut text = |name: &str| match fields.swap_remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&format!("{place}.{name}"), &other, "a text")),
        };
        let role = text("role")?.ok_or_else(|| missing(place, "role"))?;
        let (refusal, tool_call_id, name) = (text("refusal")?, text("tool_call_id")?, text("name")?);
        let thoughts = THOUGHTS.map(&mut text);
        let mut reasoning_content = None;
        for thoughts in thoughts {
            let thoughts = thoughts?.filter(|text| !text.is_empty());
            reasoning_content = reasoning_content.or(thoughts);
        }
        let mut content =
            Content::read(fields.swap_remove("content").unwrap_or_default(), &format!("{place}.content"))?;
        if content == Content::Missing {
            content = refusal.map_or(content, Content::Text);
        }
        if content == Content::Missing && ["system", "developer", "user", "tool"].contains(&role.as_str()) {
            return Err(missing(place, "content"));
        }
        let tool_calls = match fields.swap_remove("tool_calls") {
            None => Vec::new(),
            Some(Value::Array(calls)) => {
                let calls = calls.into_iter().enumerate();
                calls
                    .map(|(at, call)| read_call(call, &format!("{place}.tool_calls[{at}]")))
                    .collect::<Result<_>>()?
            }
            Some(other) => return Err(wrong(&format!("{place}.tool_calls"), &other, "a list of calls")),
        };
        Ok(Self { role, content, reasoning_content, tool_calls, tool_call_id, name, other: fields })
    }

    /// Reads a list of messages. Errors name it by `place`, such as `messages`.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn read_all(value: Value, place: &str) -> Result<Vec<Self>> {
        match value {
            Value::Array(list) => {
                let list = list.into_iter().enumerate();
                list.map(|(at, message)| Self::read(message, &format!("{place}[{at}]"))).collect()
            }
            other => Err(wrong(place, &other, "a list of messages")),
        }
    }

    /// Indices of the calls with arguments that are neither an object nor the JSON text of one.
    pub fn calls_without_object(&self) -> impl Iterator<Item = usize> {
        let calls = self.tool_calls.iter().enumerate();
        calls.filter_map(|(at, call)| {
            matches!(Arguments::of(&call["function"]["arguments"]), Arguments::Other(_)).then_some(at)
        })
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Self::read(Value::deserialize(deserializer)?, "message").map_err(de::Error::custom)
    }
}

impl Content {
    /// Reads a content: a text, or parts with texts, which may include parts of thoughts. Errors name it by `place`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::NotText`] for a part of another type, else the errors of [`Message::read`].
    pub fn read(value: Value, place: &str) -> Result<Self> {
        match value {
            Value::Null => Ok(Self::Missing),
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(parts) => {
                for (at, part) in parts.iter().enumerate() {
                    text_of(part, &format!("{place}[{at}]"))?;
                }
                Ok(Self::Parts(parts))
            }
            other => Err(wrong(place, &other, "a text or a list of parts")),
        }
    }

    /// The content with its text parts joined as [`text`](Self::text) joins them. The parts stay separate if some are thoughts,
    /// since some templates support these.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub(super) fn flat(self, place: &str) -> Result<Self> {
        let Self::Parts(parts) = &self else { return Ok(self) };
        let mut has_thoughts = false;
        for (at, part) in parts.iter().enumerate() {
            has_thoughts |= text_of(part, &format!("{place}[{at}]"))?.is_none();
        }
        Ok(if has_thoughts { self } else { Self::Text(self.text()) })
    }

    /// The content as one text: the texts of all parts, joined by line breaks, if there are parts.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts = parts.iter().filter_map(|part| text_of(part, "").ok().flatten());
                texts.collect::<Vec<_>>().join("\n")
            }
            Self::Missing => String::new(),
        }
    }
}

/// The text of a part; `None` for thoughts.
fn text_of<'a>(part: &'a Value, place: &str) -> Result<Option<&'a str>> {
    if let Value::String(text) = part {
        return Ok(Some(text));
    }
    if !part.is_object() {
        return Err(wrong(place, part, "a text or a part with a `type`"));
    }
    let (member, optional) = match part["type"].as_str() {
        Some("text" | "input_text" | "output_text") => ("text", false),
        None if part["type"].is_null() && part["text"].is_string() => ("text", false),
        Some("refusal") => ("refusal", true),
        Some("thinking") => return Ok(None),
        Some(kind) => {
            let reason = format!("a part of type `{kind}`, and the model reads text only");
            return Err(TokenizerError::NotText { field: format!("{place}.type"), reason });
        }
        None => return Err(missing(place, "type")),
    };
    match &part[member] {
        Value::String(text) => Ok(Some(text)),
        Value::Null if optional => Ok(Some("")),
        Value::Null => Err(missing(place, member)),
        other => Err(wrong(&format!("{place}.{member}"), other, "a text")),
    }
}

/// Reads a call as a call of a function. A call of a custom tool becomes a call with the text as its only argument.
fn read_call(call: Value, place: &str) -> Result<Value> {
    let mut fields = match call {
        Value::Object(fields) => fields,
        other => return Err(wrong(place, &other, "a call")),
    };
    fields.retain(|_, value| !value.is_null());
    let is_custom = fields.get("type").is_some_and(|kind| kind == "custom");
    let kind = if is_custom { "custom" } else { "function" };
    // Some data sets write name and arguments into the call itself.
    let (place, mut inner) = match fields.swap_remove(kind) {
        Some(Value::Object(inner)) => (format!("{place}.{kind}"), inner),
        Some(other) => return Err(wrong(&format!("{place}.{kind}"), &other, "an object with a `name`")),
        None if fields.contains_key("name") && !is_custom => {
            let inner = ["name", "arguments"].map(|name| (name.to_owned(), fields.swap_remove(name)));
            let inner = inner.into_iter().filter_map(|(name, value)| Some((name, value?)));
            (place.to_owned(), inner.collect::<Map<_, _>>())
        }
        None => return Err(missing(&format!("{place}.{kind}"), "name")),
    };
    match inner.get("name") {
        Some(Value::String(name)) if !name.is_empty() => {}
        None | Some(Value::Null | Value::String(_)) => return Err(missing(&place, "name")),
        Some(other) => return Err(wrong(&format!("{place}.name"), other, "a text")),
    }
    if is_custom {
        let input = match inner.swap_remove("input") {
            Some(Value::String(input)) => input,
            None | Some(Value::Null) => return Err(missing(&place, "input")),
            Some(other) => return Err(wrong(&format!("{place}.input"), &other, "a text")),
        };
        inner.insert("arguments".into(), json!({"input": input}));
        fields.insert("type".into(), "function".into());
    }
    fields.insert("function".into(), Value::Object(inner));
    Ok(Value::Object(fields))
}

/// Arguments of an earlier call.
#[derive(Clone, Debug, PartialEq)]
pub enum Arguments {
    /// A JSON object. Its large whole numbers are [exact](super::exact).
    Object(Map<String, Value>),
    /// Any other text, such as an object that was cut off.
    Other(String),
}

impl Arguments {
    /// Reads arguments, which are an object or the JSON text of one. Missing arguments are an empty object.
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Object(arguments) => Self::Object(arguments.clone()),
            Value::Null => Self::Object(Map::new()),
            Value::String(text) if text.trim().is_empty() => Self::Object(Map::new()),
            Value::String(text) => match super::exact::exact_value(text) {
                Ok(Value::Object(arguments)) => Self::Object(arguments),
                _ => Self::Other(text.clone()),
            },
            other => Self::Other(other.to_string()),
        }
    }
}

fn wrong(place: &str, found: &Value, expected: &str) -> TokenizerError {
    TokenizerError::message(place, format!("{}, expected {expected}", json_kind(found)))
}

/// The kind of a JSON value with its article, for messages: `a number`.
pub fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn missing(place: &str, field: &str) -> TokenizerError {
    TokenizerError::MissingField { field: format!("{place}.{field}") }
}
