//! A row of a file: one example before it is encoded as token ids.

use brasa_tokenizer::Message;
use serde_json::{Map, Value};

use super::other_forms;

/// One example.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// A conversation and the tools that it may call.
    Chat { messages: Vec<Message>, tools: Option<Vec<Value>> },
    /// A prompt and its completion.
    Completion { prompt: String, completion: String },
    /// A text.
    Text(String),
    /// A conversation, or a prompt, with a preferred and a rejected answer.
    Preference { chosen: Vec<Message>, rejected: Vec<Message> },
    /// Token ids; `weights` is a factor for the loss of each.
    Tokens { tokens: Vec<u32>, weights: Option<Vec<f32>> },
}

/// A mistake in a row, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub what: String,
    pub hint: String,
}

impl Fault {
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

const FORMS: &str = "a row has `messages` (and `tools`), `prompt` and `completion`, `text`, `tokens` (and `weights`), or `prompt`, `chosen` and `rejected`; Alpaca's and ShareGPT's rows are read too";

impl Row {
    /// The fields of a line of JSON.
    pub fn fields(line: &str) -> Result<Map<String, Value>, Fault> {
        let value: Value = serde_json::from_str(line)
            .map_err(|error| Fault::new(format!("not JSON: {error}"), hint_of(line)))?;
        match value {
            Value::Object(row) => Ok(row),
            Value::Array(_) => Err(Fault::new("a list, expected an object", hint_of(line))),
            other => Err(Fault::new(format!("{}, expected an object", kind(&other)), FORMS)),
        }
    }

    /// The example of a row's fields. Fields that no form has are ignored.
    pub fn of(row: &mut Map<String, Value>) -> Result<Self, Fault> {
        other_forms::translate(row)?;
        if row.contains_key("input_ids") && !row.contains_key("tokens") {
            let ids = row.remove("input_ids").unwrap_or_default();
            row.insert("tokens".into(), ids);
        }
        if row.contains_key("chosen") || row.contains_key("rejected") {
            return preference(row);
        }
        let forms = ["messages", "prompt", "text", "tokens"];
        let found: Vec<&str> = forms.into_iter().filter(|form| row.contains_key(*form)).collect();
        match found[..] {
            ["messages"] => chat(row),
            ["prompt"] if row.contains_key("completion") => {
                Ok(Self::Completion { prompt: text(row, "prompt")?, completion: text(row, "completion")? })
            }
            ["prompt"] => Err(Fault::new("`prompt` without `completion`", FORMS)),
            ["text"] => Ok(Self::Text(text(row, "text")?)),
            ["tokens"] => tokens(row),
            [] => Err(Fault::new(format!("no example in {}", fields(row)), FORMS)),
            _ => Err(Fault::new(
                format!(
                    "{} in one row",
                    found.iter().map(|form| format!("`{form}`")).collect::<Vec<_>>().join(" and ")
                ),
                "a row is one example: leave one of them",
            )),
        }
    }
}

/// The remedy for a line that is not a JSON object.
fn hint_of(line: &str) -> &'static str {
    if line.trim_start().starts_with('[') {
        "each line is one JSON object; `jq -c '.[]' FILE` makes lines of a JSON array"
    } else {
        "each line is one JSON object"
    }
}

fn chat(row: &mut Map<String, Value>) -> Result<Row, Fault> {
    let value = row.remove("messages").unwrap_or_default();
    let messages = read_messages("messages", value, "messages are a list of {\"role\": …, \"content\": …}")?;
    if messages.is_empty() {
        return Err(Fault::new("messages: none", "leave the row out"));
    }
    let tools = match row.remove("tools") {
        None | Some(Value::Null) => None,
        Some(Value::Array(tools)) => Some(tools),
        Some(other) => {
            return Err(Fault::new(
                format!("tools: {}, expected a list", kind(&other)),
                "tools are a list of schemas",
            ));
        }
    };
    Ok(Row::Chat { messages, tools })
}

/// Reads messages as a server does, but refuses calls with arguments that are not a JSON object. In a row such a mistake can be
/// corrected, and would otherwise be learned.
fn read_messages(field: &str, value: Value, hint: &str) -> Result<Vec<Message>, Fault> {
    let messages = Message::read_all(value, field).map_err(|error| Fault::new(error.to_string(), hint))?;
    for (at, message) in messages.iter().enumerate() {
        if let Some(call) = message.calls_without_object().next() {
            let what = format!("{field}[{at}].tool_calls[{call}].function.arguments: no JSON object");
            return Err(Fault::new(what, "arguments are an object, or the JSON text of one"));
        }
    }
    Ok(messages)
}

/// Reads the two answers, each after the prompt. Both may be conversations that include the prompt.
fn preference(row: &mut Map<String, Value>) -> Result<Row, Fault> {
    let hint = "`prompt`, `chosen` and `rejected` are texts or lists of messages; the answers differ in their last turn alone";
    let mut messages = |field: &str, role: &str| -> Result<Vec<Message>, Fault> {
        match row.remove(field) {
            Some(Value::String(text)) => Ok(vec![Message::new(role, text)]),
            Some(list @ Value::Array(_)) => read_messages(field, list, hint),
            None if field == "prompt" => Ok(Vec::new()),
            other => {
                let found = other.as_ref().map_or("nothing", kind);
                Err(Fault::new(format!("{field}: {found}, expected a text or messages"), hint))
            }
        }
    };
    let prompt = messages("prompt", "user")?;
    let mut answer = |field: &str| -> Result<Vec<Message>, Fault> {
        let all = [prompt.clone(), messages(field, "assistant")?].concat();
        match all.last() {
            Some(last) if last.role == "assistant" && all.len() > 1 => Ok(all),
            Some(last) if last.role == "assistant" => {
                Err(Fault::new(format!("{field}: no prompt before it"), hint))
            }
            _ => Err(Fault::new(format!("{field}: its last turn is not the assistant's"), hint)),
        }
    };
    let (chosen, rejected) = (answer("chosen")?, answer("rejected")?);
    let before = |messages: &[Message]| messages.len() - 1;
    if chosen[..before(&chosen)] != rejected[..before(&rejected)] {
        return Err(Fault::new("chosen and rejected answer different conversations", hint));
    }
    if chosen == rejected {
        return Err(Fault::new("chosen and rejected are the same", "leave the row out"));
    }
    Ok(Row::Preference { chosen, rejected })
}

fn tokens(row: &mut Map<String, Value>) -> Result<Row, Fault> {
    let hint = "tokens are a list of ids, weights a list of as many numbers from 0";
    let ids = row.remove("tokens").unwrap_or_default();
    let tokens: Vec<u32> =
        serde_json::from_value(ids).map_err(|error| Fault::new(format!("tokens: {error}"), hint))?;
    let weights: Option<Vec<f32>> = match row.remove("weights") {
        None | Some(Value::Null) => None,
        Some(weights) => Some(
            serde_json::from_value(weights).map_err(|error| Fault::new(format!("weights: {error}"), hint))?,
        ),
    };
    if let Some(weights) = &weights {
        if weights.len() != tokens.len() {
            let what = format!("weights: {} for {} tokens", weights.len(), tokens.len());
            return Err(Fault::new(what, hint));
        }
        if let Some(at) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0) {
            return Err(Fault::new(format!("weights[{at}]: {}", weights[at]), hint));
        }
    }
    Ok(Row::Tokens { tokens, weights })
}

fn text(row: &mut Map<String, Value>, field: &str) -> Result<String, Fault> {
    match row.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(_)) => {
            Err(Fault::new(format!("{field}: a list, expected text"), "conversations go under `messages`"))
        }
        other => {
            let found = other.as_ref().map_or("nothing", kind);
            Err(Fault::new(format!("{field}: {found}, expected text"), FORMS))
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn fields(row: &Map<String, Value>) -> String {
    let names: Vec<String> = row.keys().take(8).map(|name| format!("`{name:.40}`")).collect();
    if names.is_empty() { "an empty row".into() } else { format!("the fields {}", names.join(", ")) }
}
