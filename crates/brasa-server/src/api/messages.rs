//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's form.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use brasa::tokenizer::{Content, ToolChoice, exact_value};
use brasa::{FinishReason, GenerateOptions, Message, Model};
use serde_json::{Value, json};

use crate::answer::choices::{Answers, ChatStep, Delta, Ended, WholeAnswer};
use crate::answer::generate::blocking;
use crate::answer::usage::Usage;
use crate::api::{chat, documents, finish_fields, slots};
use crate::http::error::{ApiError, Result};
use crate::http::log::{Record, RequestId};
use crate::http::{ids, reply, sse};
use crate::request::constraint::Constraint;
use crate::request::conversation::{Conversation, text_of};
use crate::request::fields::Fields;
use crate::request::sampling;
use crate::state::App;

/// The beginning of a line that clients add before the system prompt. The line changes with every request, which would keep all
/// prompts out of the cache.
const BILLING: &str = "x-anthropic-billing-header:";

/// Handles `POST /v1/messages`: answers a conversation.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    Extension(RequestId(request)): Extension<RequestId>,
    mut fields: Fields,
) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let mut conversation = conversation(&mut fields)?;
    let format = conversation.constraint.take();
    conversation.constraint = Constraint::read(&mut fields, format)?;
    let options = options(&mut fields, &app, &loaded.model)?;
    let streams = fields.switch("stream")?.unwrap_or(false);
    let slot = slots::named(&mut fields, &app, &loaded)?;
    finish_fields(&app, &mut fields)?;
    let job = chat::Job::of_one(&app, &loaded, &record, slot);
    let (answers, prompt_tokens) = job.start(conversation, &options).await?;
    let head = Head { id: ids::name("msg_"), model: loaded.id().to_owned(), request, prompt_tokens };
    if !streams {
        return whole(&head, answers).await;
    }
    record.set("stream", true);
    let (events, response) = sse::stream(sse::Pings::Anthropic, app.options.ping_every);
    sse::spawn(events, |events| stream_answer(events, head, answers));
    Ok(response)
}

/// Counts the tokens of a conversation.
pub(crate) async fn count(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let conversation = conversation(&mut fields)?;
    let prompt = blocking(move || conversation.encode(&loaded.model)).await?;
    Ok(reply::ok(&json!({"input_tokens": prompt.len()})))
}

fn options(fields: &mut Fields, app: &App, model: &Model) -> Result<GenerateOptions> {
    let max_tokens =
        fields.count("max_tokens", 0, usize::MAX)?.ok_or_else(|| fields.missing("max_tokens"))?;
    if let Some(options) = fields.value("stream_options") {
        // A stream ends with its usage anyway.
        fields.inside("stream_options", options)?.switch("include_usage")?;
    }
    let mut options = sampling::options(fields, app, model)?;
    options.max_tokens = Some(max_tokens);
    if let Some(stops) = fields.optional::<Vec<String>>("stop_sequences")? {
        sampling::check_stops("stop_sequences", &stops)?;
        options.stop_strings = stops;
    }
    Ok(options)
}

/// Reads `system`, `messages`, `tools` and `thinking`.
fn conversation(fields: &mut Fields) -> Result<Conversation> {
    let mut conversation = Conversation::begin(fields)?;
    if let Some(system) = fields.value("system") {
        let text = without_billing(&text_of(fields, "system", system)?);
        if !text.trim().is_empty() {
            conversation.messages.push(Message::new("system", text));
        }
    }
    let messages: Vec<Value> = fields.required("messages")?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty: there is nothing to answer"));
    }
    for (at, message) in messages.into_iter().enumerate() {
        read_message(fields, at, message, &mut conversation.messages)?;
    }
    for (at, tool) in fields.optional::<Vec<Value>>("tools")?.unwrap_or_default().into_iter().enumerate() {
        let tool = tool_of(fields, at, &tool)?;
        conversation.tools.push(fields.exact_numbers(&format!("tools[{at}]"), tool)?);
    }
    if let Some(choice) = fields.value("tool_choice") {
        let mut inner = fields.inside("tool_choice", choice.clone())?;
        for name in ["type", "name"] {
            inner.value(name);
        }
        conversation.one_call = inner.switch("disable_parallel_tool_use")?.unwrap_or(false);
        conversation.set_choice(choice_of(&choice)?)?;
    }
    if let Some(thinking) = fields.value("thinking") {
        conversation.set_thinking(fields, &thinking)?;
    }
    if let Some(output) = fields.value("output_config") {
        let mut output = fields.inside("output_config", output)?;
        if let Some(effort) = output.optional::<String>("effort")? {
            conversation.set_effort("output_config.effort", &effort)?;
        }
        if let Some(format) = output.value("format") {
            conversation.constraint = Constraint::of_format(fields, "output_config.format", format)?;
        }
    }
    // The name of earlier versions.
    if let Some(format) = fields.value("output_format") {
        if conversation.constraint.is_some() {
            let message =
                "`output_config.format` and `output_format` both ask for a form, and an answer has one";
            return Err(ApiError::field("output_format", message));
        }
        conversation.constraint = Constraint::of_format(fields, "output_format", format)?;
    }
    Ok(conversation)
}

/// A system prompt without lines that change with every request.
fn without_billing(text: &str) -> String {
    let lines: Vec<&str> = text.split('\n').filter(|line| !line.starts_with(BILLING)).collect();
    lines.join("\n")
}

/// Adds a message. Its tool results come first, each as a message of its own.
fn read_message(body: &Fields, at: usize, value: Value, messages: &mut Vec<Message>) -> Result<()> {
    let place = format!("messages[{at}]");
    let mut fields = body.inside(&place, value)?;
    let role: String = fields.required("role")?;
    if !["user", "assistant", "system"].contains(&role.as_str()) {
        let name = format!("{place}.role");
        return Err(ApiError::field(
            &name,
            format!("`{name}` is `{role}`, expected user, assistant or system"),
        ));
    }
    let content = fields.value("content").ok_or_else(|| fields.missing("content"))?;
    if role == "system" {
        // Claude Code puts reminders between the turns.
        let text = without_billing(&text_of(body, &format!("{place}.content"), content)?);
        messages.push(Message::new(role, text));
        return Ok(());
    }
    let Value::Array(blocks) = content else {
        let text = text_of(body, &format!("{place}.content"), content)?;
        messages.push(Message::new(role, text));
        return Ok(());
    };
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), String::new(), Vec::new());
    for (number, block) in blocks.into_iter().enumerate() {
        let name = format!("{place}.content[{number}]");
        let text = |key: &str| {
            let text = block[key].as_str().map(str::to_owned);
            text.ok_or_else(|| {
                let name = format!("{name}.{key}");
                ApiError::field(&name, format!("`{name}` is missing"))
            })
        };
        if role == "user" && is_document(&block) {
            texts.push(documents::text_of(body, &name, &block)?);
            continue;
        }
        body.see_inside(&name, &block, known_in(&block["type"]));
        match block["type"].as_str() {
            Some("text") => texts.push(text("text")?),
            Some("thinking") => thoughts += &text("thinking")?,
            // Nobody but its maker can read it.
            Some("redacted_thinking") => {}
            Some("tool_use") if role == "assistant" => {
                let arguments = body.exact_history(block["input"].clone());
                calls.push(json!({
                    "id": text("id")?,
                    "type": "function",
                    "function": {"name": text("name")?, "arguments": arguments},
                }));
            }
            Some("tool_result") if role == "user" => {
                messages.push(result_of(body, &name, &block, text("tool_use_id")?)?);
            }
            Some(other) => {
                let why = format!("the model takes text and calls, and this block is `{other}` of {role}");
                return Err(ApiError::unsupported(&format!("{name}.type"), &why));
            }
            None => {
                let name = format!("{name}.type");
                return Err(ApiError::field(&name, format!("`{name}` is missing")));
            }
        }
    }
    if texts.is_empty() && calls.is_empty() && thoughts.is_empty() {
        return Ok(());
    }
    let content = if texts.is_empty() { Content::Missing } else { Content::Text(texts.join("\n")) };
    let reasoning_content = (!thoughts.is_empty()).then_some(thoughts);
    messages.push(Message { role, content, reasoning_content, tool_calls: calls, ..Message::default() });
    Ok(())
}

/// The members of a block of this type that are read or may be ignored.
fn known_in(kind: &Value) -> &'static [&'static str] {
    match kind.as_str() {
        Some("text") => &["type", "text", "citations"],
        Some("thinking") => &["type", "thinking", "signature"],
        Some("redacted_thinking") => &["type", "data"],
        Some("tool_use") => &["type", "id", "name", "input"],
        _ => &["type", "tool_use_id", "content", "is_error"],
    }
}

/// True for a block with the text of a document or a search result.
fn is_document(block: &Value) -> bool {
    matches!(block["type"].as_str(), Some("document" | "search_result"))
}

/// The result of a tool as a message.
fn result_of(body: &Fields, name: &str, block: &Value, call: String) -> Result<Message> {
    let text = match &block["content"] {
        Value::Null => String::new(),
        Value::Array(blocks) if blocks.iter().any(is_document) => {
            let place = format!("{name}.content");
            let text = |(at, block): (usize, &Value)| {
                if is_document(block) {
                    return documents::text_of(body, &format!("{place}[{at}]"), block);
                }
                text_of(body, &place, json!([block]))
            };
            blocks.iter().enumerate().map(text).collect::<Result<Vec<_>>>()?.join("\n")
        }
        content => text_of(body, &format!("{name}.content"), content.clone())?,
    };
    let failed = block["is_error"].as_bool().unwrap_or(false);
    let text = if failed { format!("Error: {text}") } else { text };
    Ok(Message { tool_call_id: Some(call), ..Message::new("tool", text) })
}

/// A tool in OpenAI's form, which templates expect.
fn tool_of(body: &Fields, at: usize, tool: &Value) -> Result<Value> {
    let place = format!("tools[{at}]");
    body.see_inside(&place, tool, &["type", "name", "description", "input_schema", "strict"]);
    if let Some(kind) = tool["type"].as_str().filter(|kind| *kind != "custom") {
        let why = format!("`{kind}` runs on a hosted service");
        return Err(ApiError::unsupported(&format!("{place}.type"), &why));
    }
    let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
        let name = format!("{place}.name");
        return Err(ApiError::field(&name, format!("`{name}` is missing")));
    };
    let mut function = json!({"name": name, "parameters": tool["input_schema"]});
    if let Some(description) = tool["description"].as_str() {
        function["description"] = description.into();
    }
    if let Some(strict) = tool["strict"].as_bool() {
        function["strict"] = strict.into();
    }
    Ok(json!({"type": "function", "function": function}))
}

/// The tool choice in the engine's terms.
fn choice_of(choice: &Value) -> Result<ToolChoice> {
    match (choice["type"].as_str(), choice["name"].as_str()) {
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::None),
        (Some("any"), _) => Ok(ToolChoice::Required),
        (Some("tool"), Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
        _ => Err(ApiError::field(
            "tool_choice",
            format!("`tool_choice` is {choice}, expected auto, any, none or a tool"),
        )),
    }
}

/// The fields that all parts of a message have in common.
struct Head {
    id: String,
    model: String,
    request: String,
    prompt_tokens: usize,
}

impl Head {
    fn message(&self, content: Vec<Value>, ended: Option<&Ended>, usage: &Usage) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": ended.map(stop_reason),
            "stop_sequence": ended.and_then(|ended| ended.end.stop.clone()),
            "usage": usage.anthropic(),
        })
    }
}

fn stop_reason(ended: &Ended) -> &'static str {
    match ended.end.reason {
        FinishReason::Length => "max_tokens",
        FinishReason::ContextFull => "model_context_window_exceeded",
        _ if ended.end.stop.is_some() => "stop_sequence",
        _ if ended.has_calls => "tool_use",
        _ => "end_turn",
    }
}

async fn whole(head: &Head, answers: Answers) -> Result<Response> {
    let mut wholes = answers.collect().await?;
    let WholeAnswer { reasoning, content, calls, ended, .. } = wholes.pop().unwrap_or_default();
    let mut blocks = Vec::new();
    if !reasoning.is_empty() {
        blocks.push(json!({"type": "thinking", "thinking": reasoning, "signature": ""}));
    }
    if !content.is_empty() {
        blocks.push(json!({"type": "text", "text": content}));
    }
    for call in calls {
        // Arguments that were cut off are no object, and nothing is made up in their place.
        let input: Value = exact_value(&call.arguments).unwrap_or_else(|_| json!({}));
        blocks.push(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}));
    }
    let mut usage = Usage::default();
    if let Some(ended) = &ended {
        usage.add(&ended.end.cost, true);
    }
    Ok(reply::exact(&head.message(blocks, ended.as_ref(), &usage)))
}

/// The type of the open block of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Thinking,
    Text,
    Call(usize),
}

/// Writes the events of one answer: blocks open and close one after the other.
struct Writer {
    events: Arc<sse::Events>,
    open: Open,
    blocks: usize,
}

impl Writer {
    async fn send(&self, event: &str, mut value: Value) -> Result<(), sse::Gone> {
        value["type"] = event.into();
        self.events.send_named(event, &value).await
    }

    /// Opens a block of type `kind`, unless one is open already.
    async fn open(&mut self, kind: Open, block: Value) -> Result<(), sse::Gone> {
        if self.open == kind {
            return Ok(());
        }
        self.close().await?;
        self.open = kind;
        self.send("content_block_start", json!({"index": self.blocks, "content_block": block})).await
    }

    async fn close(&mut self) -> Result<(), sse::Gone> {
        if self.open == Open::Nothing {
            return Ok(());
        }
        if self.open == Open::Thinking {
            self.delta(json!({"type": "signature_delta", "signature": ""})).await?;
        }
        self.send("content_block_stop", json!({"index": self.blocks})).await?;
        self.open = Open::Nothing;
        self.blocks += 1;
        Ok(())
    }

    async fn delta(&self, delta: Value) -> Result<(), sse::Gone> {
        self.send("content_block_delta", json!({"index": self.blocks, "delta": delta})).await
    }

    async fn write(&mut self, delta: Delta) -> Result<(), sse::Gone> {
        match delta {
            Delta::Reasoning(text) => {
                self.open(Open::Thinking, json!({"type": "thinking", "thinking": "", "signature": ""}))
                    .await?;
                self.delta(json!({"type": "thinking_delta", "thinking": text})).await
            }
            Delta::Content(text) => {
                self.open(Open::Text, json!({"type": "text", "text": ""})).await?;
                self.delta(json!({"type": "text_delta", "text": text})).await
            }
            Delta::CallBegin { index, id, name, .. } => {
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.open(Open::Call(index), block).await
            }
            Delta::CallArguments { text, .. } => {
                self.delta(json!({"type": "input_json_delta", "partial_json": text})).await
            }
        }
    }
}

async fn stream_answer(events: Arc<sse::Events>, head: Head, mut answers: Answers) -> Result<(), sse::Gone> {
    let mut writer = Writer { events: Arc::clone(&events), open: Open::Nothing, blocks: 0 };
    let begun = Usage { prompt_tokens: head.prompt_tokens, ..Usage::default() };
    writer.send("message_start", json!({"message": head.message(Vec::new(), None, &begun)})).await?;
    writer.send("ping", json!({})).await?;
    while let Some((_, step)) = sse::unless_gone(&events, answers.next()).await? {
        match step {
            Ok(ChatStep::Delta(delta, _)) => writer.write(delta).await?,
            Ok(ChatStep::Prefill) => {}
            Ok(ChatStep::End(ended)) => {
                writer.close().await?;
                let mut usage = Usage::default();
                usage.add(&ended.end.cost, true);
                let delta = json!({"stop_reason": stop_reason(&ended), "stop_sequence": ended.end.stop});
                writer.send("message_delta", json!({"delta": delta, "usage": usage.anthropic()})).await?;
                return writer.send("message_stop", json!({})).await;
            }
            Err(error) => {
                return events.send_named("error", &error.anthropic_body(Some(&head.request))).await;
            }
        }
    }
    Ok(())
}
