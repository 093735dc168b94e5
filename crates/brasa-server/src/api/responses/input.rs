//! Reads the body of a request to `/v1/responses`: its conversation, its items and its tools.

use brasa::Message;
use brasa::tokenizer::Content;
use serde_json::{Value, json};

use crate::http::error::{ApiError, Result};
use crate::request::constraint::Constraint;
use crate::request::conversation::{Conversation, text_of};
use crate::request::custom;
use crate::request::fields::Fields;
use crate::state::App;

/// Types of tools that Codex sends and that are not functions. They are ignored, since a model can answer without them.
const OTHER_TOOLS: &[&str] = &["web_search", "web_search_preview", "namespace", "image_generation"];
/// Reads the format of the answer in `text`.
pub(super) fn format(fields: &mut Fields) -> Result<Option<Constraint>> {
    let Some(text) = fields.value("text") else { return Ok(None) };
    let mut text = fields.inside("text", text)?;
    let name = text.name("format");
    Ok(text.value("format").map(|format| Constraint::of_format(fields, &name, format)).transpose()?.flatten())
}

/// Reads `instructions`, `input`, `tools` and `reasoning`.
pub(super) fn conversation(fields: &mut Fields, app: &App) -> Result<Conversation> {
    let mut conversation = Conversation::begin(fields)?;
    if let Some(instructions) = fields.optional::<String>("instructions")? {
        conversation.messages.push(Message::new("system", instructions));
    }
    match fields.value("input").ok_or_else(|| fields.missing("input"))? {
        Value::String(text) => conversation.messages.push(Message::new("user", text)),
        Value::Array(items) => {
            for (at, item) in items.into_iter().enumerate() {
                read_item(fields, &format!("input[{at}]"), item, &mut conversation.messages)?;
            }
        }
        _ => return Err(ApiError::field("input", "`input` has to be a text or a list of items")),
    }
    if conversation.messages.is_empty() {
        return Err(ApiError::field("input", "`input` is empty: there is nothing to answer"));
    }
    for (at, tool) in fields.optional::<Vec<Value>>("tools")?.unwrap_or_default().into_iter().enumerate() {
        if tool["type"] == "custom" {
            conversation.add_custom(fields, &format!("tools[{at}]"), tool)?;
        } else {
            let tool = tool_of(fields, at, &tool, app)?;
            let tool = tool.map(|tool| fields.exact_numbers(&format!("tools[{at}]"), tool)).transpose()?;
            conversation.tools.extend(tool);
        }
    }
    conversation.choose(fields)?;
    if let Some(reasoning) = fields.value("reasoning") {
        let mut reasoning = fields.inside("reasoning", reasoning)?;
        // Thoughts are shown whole.
        for name in ["summary", "generate_summary"] {
            reasoning.value(name);
        }
        if let Some(effort) = reasoning.optional::<String>("effort")? {
            conversation.set_effort("reasoning.effort", &effort)?;
        }
    }
    Ok(conversation)
}

/// Adds an item of the input to the messages.
fn read_item(body: &Fields, place: &str, item: Value, messages: &mut Vec<Message>) -> Result<()> {
    let mut fields = body.inside(place, item)?;
    // Items of earlier answers come back with these.
    for name in ["id", "status", "phase"] {
        fields.value(name);
    }
    let kind = fields.optional::<String>("type")?.unwrap_or_else(|| "message".to_owned());
    match kind.as_str() {
        "message" => {
            let role: String = fields.required("role")?;
            let role = if role == "developer" { "system".to_owned() } else { role };
            if !["system", "user", "assistant"].contains(&role.as_str()) {
                let name = format!("{place}.role");
                let message = format!("`{name}` is `{role}`, expected system, developer, user or assistant");
                return Err(ApiError::field(&name, message));
            }
            let content = fields.value("content").ok_or_else(|| fields.missing("content"))?;
            let text = text_of(body, &format!("{place}.content"), content)?;
            match messages.last_mut() {
                // Thoughts and the answer that follows them are one message.
                Some(last)
                    if role == "assistant"
                        && last.role == role
                        && last.content == Content::Missing
                        && last.tool_calls.is_empty() =>
                {
                    last.content = Content::Text(text);
                }
                _ => messages.push(Message::new(role, text)),
            }
        }
        "reasoning" => {
            let part = |parts: Option<Value>| match parts {
                Some(Value::Array(parts)) => {
                    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
                    texts.join("\n")
                }
                _ => String::new(),
            };
            // No other server's secret can be read here.
            fields.value("encrypted_content");
            let (content, summary) = (part(fields.value("content")), part(fields.value("summary")));
            let text = if content.is_empty() { summary } else { content };
            if !text.is_empty() {
                let reasoning_content = Some(text);
                messages.push(Message { role: "assistant".into(), reasoning_content, ..Message::default() });
            }
        }
        "function_call" | "custom_tool_call" => {
            let name: String = fields.required("name")?;
            let id: String = fields.required("call_id")?;
            let arguments = if kind == "custom_tool_call" {
                custom::arguments(&fields.required::<String>("input")?)
            } else {
                fields.value("arguments").map_or(Value::Null, |arguments| fields.exact_history(arguments))
            };
            let call =
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            match messages.last_mut() {
                Some(last) if last.role == "assistant" => {
                    last.tool_calls.push(call);
                }
                _ => messages.push(Message {
                    role: "assistant".into(),
                    tool_calls: vec![call],
                    ..Message::default()
                }),
            }
        }
        "function_call_output" | "custom_tool_call_output" => {
            let id: String = fields.required("call_id")?;
            let output = fields.value("output").ok_or_else(|| fields.missing("output"))?;
            let text = text_of(body, &format!("{place}.output"), output)?;
            messages.push(Message { tool_call_id: Some(id), ..Message::new("tool", text) });
        }
        other => {
            let why = format!("items of type `{other}` are not supported");
            return Err(ApiError::unsupported(&format!("{place}.type"), &why));
        }
    }
    Ok(())
}

/// A tool in the form of chat completions, which templates expect; `None` for a tool that is ignored.
fn tool_of(body: &Fields, at: usize, tool: &Value, app: &App) -> Result<Option<Value>> {
    let place = format!("tools[{at}]");
    let kind = tool["type"].as_str().unwrap_or_default();
    if OTHER_TOOLS.contains(&kind) {
        (app.options.log)(&json!({"skipped_tool": kind}).to_string());
        return Ok(None);
    }
    if kind != "function" {
        let why = format!("`{kind}` tools are not supported");
        return Err(ApiError::unsupported(&format!("{place}.type"), &why));
    }
    body.see_inside(&place, tool, &["type", "name", "description", "parameters", "strict"]);
    if tool["name"].as_str().is_none_or(str::is_empty) {
        let name = format!("{place}.name");
        return Err(ApiError::field(&name, format!("`{name}` is missing")));
    }
    let mut function = tool.as_object().cloned().unwrap_or_default();
    function.swap_remove("type");
    Ok(Some(json!({"type": "function", "function": function})))
}
