//! `/v1/responses`: OpenAI's newer form, without any state between requests.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use brasa::tokenizer::Content;
use brasa::{FinishReason, GenerateOptions, Message, Model};
use serde_json::{Map, Value, json};

use crate::answer::{Answers, Call, ChatStep, Delta, Ended, Whole};
use crate::api::{chat, finish_fields};
use crate::constraint::Constraint;
use crate::conversation::{Conversation, arguments_of, text_of};
use crate::custom::{self, CallKind};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::generate::blocking;
use crate::log::Record;
use crate::state::App;
use crate::usage::{Telling, Usage};
use crate::{ids, reply, sampling, sse};

/// Types of tools that Codex sends and that are no functions. A model without them still answers, so they are left out.
const OTHER_TOOLS: &[&str] = &["web_search", "web_search_preview", "namespace", "image_generation"];

/// Answers an input.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let loaded = app.registry.acquire(fields.optional::<String>("model")?.as_deref()).await?;
    let settings = Settings::read(&mut fields)?;
    let mut conversation = conversation(&mut fields, &app)?;
    let format = format(&mut fields)?;
    conversation.constraint = Constraint::read(&mut fields, format)?;
    let options = options(&mut fields, &app, &loaded.model)?;
    let streams = fields.switch("stream")?.unwrap_or(false);
    if let Some(options) = fields.value("stream_options") {
        // A response's events end with its usage anyway.
        fields.see_inside("stream_options", &options, &["include_usage"]);
    }
    finish_fields(&app, &fields);
    let job = chat::Job { app: &app, loaded: &loaded, record: &record, choices: 1, logprobs: false };
    let (answers, _) = job.start(conversation, &options).await?;
    let head = Head {
        id: ids::name("resp_"),
        created: ids::unix_seconds(),
        model: loaded.id.clone(),
        settings: settings.0,
        temperature: options.sampling.temperature,
        top_p: options.sampling.top_p,
        max_output_tokens: options.max_tokens,
    };
    if !streams {
        return whole(&head, answers).await;
    }
    record.set("stream", true);
    let (events, response) = sse::stream(sse::Pings::Comment, app.options.ping_every);
    sse::spawn(events, |events| stream_answer(events, head, answers));
    Ok(response)
}

/// How many tokens an input has.
pub(crate) async fn count(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    let loaded = app.registry.acquire(fields.optional::<String>("model")?.as_deref()).await?;
    let conversation = conversation(&mut fields, &app)?;
    let prompt = blocking(move || conversation.encode(&loaded.model)).await?;
    Ok(reply::ok(&json!({"object": "response.input_tokens", "input_tokens": prompt.len()})))
}

/// The settings that answers repeat.
struct Settings(Map<String, Value>);

impl Settings {
    fn read(fields: &mut Fields) -> Result<Self> {
        fields.refuse("background", "answers are made while the client waits")?;
        fields.refuse("conversation", "the server keeps no conversations")?;
        fields.refuse("prompt", "the server keeps no prompts")?;
        fields
            .refuse("top_logprobs", "responses have no log-probabilities here; chat completions have them")?;
        fields.only("truncation", &[json!("disabled"), json!("auto")], "the input is taken as it is")?;
        // Results of tools that the server runs, and thoughts in a form that it alone can read: it has neither.
        let include = fields.value("include");
        if include.is_some_and(|include| include.to_string().contains("output_text.logprobs")) {
            let why = "responses have no log-probabilities here; chat completions have them";
            return Err(ApiError::unsupported("include", why));
        }
        if fields.value("previous_response_id").is_some() {
            let message = "the server keeps no responses: send the whole conversation as `input`";
            let error = ApiError { code: "previous_response_not_found", ..ApiError::invalid(message) };
            return Err(error.with_param("previous_response_id"));
        }
        let mut repeated = Map::new();
        for name in
            ["instructions", "tools", "tool_choice", "reasoning", "text", "metadata", "parallel_tool_calls"]
        {
            repeated.insert(name.into(), fields.peek(name).cloned().unwrap_or(Value::Null));
        }
        Ok(Self(repeated))
    }
}

fn options(fields: &mut Fields, app: &App, model: &Model) -> Result<GenerateOptions> {
    Telling::refuse(fields)?;
    let mut options = sampling::options(fields, app, model)?;
    let limit = fields.count("max_output_tokens", 0, usize::MAX)?;
    options.max_tokens = limit.or(app.options.default_max_tokens);
    Ok(options)
}

/// Reads the grammar in `text`.
fn format(fields: &mut Fields) -> Result<Option<Constraint>> {
    let Some(text) = fields.value("text") else { return Ok(None) };
    let mut text = fields.inside("text", text)?;
    let name = text.name("format");
    Ok(text.value("format").map(|format| Constraint::of_format(fields, &name, format)).transpose()?.flatten())
}

/// Reads `instructions`, `input`, `tools` and `reasoning`.
fn conversation(fields: &mut Fields, app: &App) -> Result<Conversation> {
    let mut conversation = Conversation::default();
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
            conversation.tools.extend(tool_of(fields, at, &tool, app)?);
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
                let arguments = fields.value("arguments").unwrap_or(Value::Null);
                arguments_of(&format!("{place}.arguments"), &arguments)?
            };
            let call =
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            match messages.last_mut() {
                Some(last) if last.role == "assistant" => {
                    if last.content == Content::Missing {
                        last.content = Content::Text(String::new());
                    }
                    last.tool_calls.push(call);
                }
                _ => messages.push(Message {
                    role: "assistant".into(),
                    content: Content::Text(String::new()),
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

/// A tool in the form of chat completions, which templates expect; `None` for one that is left out.
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

/// What all parts of an answer have in common.
struct Head {
    id: String,
    created: u64,
    model: String,
    settings: Map<String, Value>,
    temperature: f32,
    top_p: f32,
    max_output_tokens: Option<usize>,
}

impl Head {
    fn response(&self, output: &[Value], ended: Option<&Ended>) -> Value {
        let is_cut = ended.is_some_and(|ended| {
            matches!(ended.end.reason, FinishReason::Length | FinishReason::ContextFull)
        });
        let status = match ended {
            None => "in_progress",
            Some(_) if is_cut => "incomplete",
            Some(_) => "completed",
        };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": if is_cut { json!({"reason": "max_output_tokens"}) } else { Value::Null },
            "max_output_tokens": self.max_output_tokens,
            "model": self.model,
            "output": output,
            "previous_response_id": null,
            "store": false,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "truncation": "disabled",
            "usage": ended.map(usage_of),
        });
        for (name, value) in &self.settings {
            let default = match name.as_str() {
                "tools" => json!([]),
                "tool_choice" => json!("auto"),
                "parallel_tool_calls" => json!(true),
                "metadata" => json!({}),
                "text" => json!({"format": {"type": "text"}}),
                _ => Value::Null,
            };
            response[name] = if value.is_null() { default } else { value.clone() };
        }
        response
    }
}

fn usage_of(ended: &Ended) -> Value {
    let mut usage = Usage { reasoning_tokens: ended.reasoning_tokens, ..Usage::default() };
    usage.add(&ended.end.cost, true);
    usage.responses()
}

fn reasoning_item(id: &str, text: &str) -> Value {
    let content: Vec<Value> =
        if text.is_empty() { Vec::new() } else { vec![json!({"type": "reasoning_text", "text": text})] };
    json!({"id": id, "type": "reasoning", "summary": [], "content": content, "encrypted_content": null})
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn message_item(id: &str, text: Option<&str>) -> Value {
    let status = if text.is_some() { "completed" } else { "in_progress" };
    let content: Vec<Value> = text.map(text_part).into_iter().collect();
    json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
}

fn call_item(id: &str, call: &Call, status: &str) -> Value {
    let (kind, text) = match call.kind {
        CallKind::Function => ("function_call", "arguments"),
        CallKind::Custom => ("custom_tool_call", "input"),
    };
    json!({
        "id": id,
        "type": kind,
        "call_id": call.id,
        "name": call.name,
        text: call.arguments,
        "status": status,
    })
}

/// A new id for a call's item.
fn call_item_id(kind: CallKind) -> String {
    ids::name(match kind {
        CallKind::Function => "fc_",
        CallKind::Custom => "ctc_",
    })
}

async fn whole(head: &Head, answers: Answers) -> Result<Response> {
    let mut wholes = answers.collect().await?;
    let Whole { reasoning, content, calls, ended, .. } = wholes.pop().unwrap_or_default();
    let mut output = Vec::new();
    if !reasoning.is_empty() {
        output.push(reasoning_item(&ids::name("rs_"), &reasoning));
    }
    if !content.is_empty() || calls.is_empty() {
        output.push(message_item(&ids::name("msg_"), Some(&content)));
    }
    output.extend(calls.iter().map(|call| call_item(&call_item_id(call.kind), call, "completed")));
    Ok(reply::ok(&head.response(&output, ended.as_ref())))
}

/// The item of a stream that is open, with its id and what it holds.
enum Open {
    Nothing,
    Reasoning(String, String),
    Message(String, String),
    Call(String, Call),
}

/// Writes the events of one response: items open and close one after the other, and every event has its number.
struct Writer {
    events: Arc<sse::Events>,
    number: usize,
    open: Open,
    output: Vec<Value>,
}

impl Writer {
    async fn send(&mut self, event: &str, mut value: Value) -> Result<(), sse::Gone> {
        value["type"] = event.into();
        value["sequence_number"] = self.number.into();
        self.number += 1;
        self.events.send_named(event, &value).await
    }

    async fn add(&mut self, item: Value) -> Result<(), sse::Gone> {
        let index = self.output.len();
        self.send("response.output_item.added", json!({"output_index": index, "item": item})).await
    }

    async fn done(&mut self, item: Value) -> Result<(), sse::Gone> {
        let index = self.output.len();
        self.send("response.output_item.done", json!({"output_index": index, "item": item})).await?;
        self.output.push(item);
        Ok(())
    }

    /// Closes the open item.
    async fn close(&mut self) -> Result<(), sse::Gone> {
        let index = self.output.len();
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => Ok(()),
            Open::Reasoning(id, text) => {
                let done = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text});
                self.send("response.reasoning_text.done", done).await?;
                self.done(reasoning_item(&id, &text)).await
            }
            Open::Message(id, text) => {
                let done = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": []});
                self.send("response.output_text.done", done).await?;
                let done = json!({"item_id": id, "output_index": index, "content_index": 0, "part": text_part(&text)});
                self.send("response.content_part.done", done).await?;
                self.done(message_item(&id, Some(&text))).await
            }
            Open::Call(id, call) => {
                let (event, done) = match call.kind {
                    CallKind::Function => (
                        "response.function_call_arguments.done",
                        json!({"item_id": id, "output_index": index, "name": call.name, "arguments": call.arguments}),
                    ),
                    CallKind::Custom => (
                        "response.custom_tool_call_input.done",
                        json!({"item_id": id, "output_index": index, "input": call.arguments}),
                    ),
                };
                self.send(event, done).await?;
                self.done(call_item(&id, &call, "completed")).await
            }
        }
    }

    async fn open_message(&mut self) -> Result<(), sse::Gone> {
        self.close().await?;
        let id = ids::name("msg_");
        self.add(message_item(&id, None)).await?;
        let index = self.output.len();
        let part = json!({"item_id": id, "output_index": index, "content_index": 0, "part": text_part("")});
        self.send("response.content_part.added", part).await?;
        self.open = Open::Message(id, String::new());
        Ok(())
    }

    async fn write(&mut self, delta: Delta) -> Result<(), sse::Gone> {
        let index = self.output.len();
        match delta {
            Delta::Reasoning(text) => {
                if !matches!(self.open, Open::Reasoning(..)) {
                    self.close().await?;
                    let id = ids::name("rs_");
                    self.add(reasoning_item(&id, "")).await?;
                    self.open = Open::Reasoning(id, String::new());
                }
                let index = self.output.len();
                let Open::Reasoning(id, whole) = &mut self.open else { return Ok(()) };
                whole.push_str(&text);
                let delta = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
                self.send("response.reasoning_text.delta", delta).await
            }
            Delta::Content(text) => {
                if !matches!(self.open, Open::Message(..)) {
                    self.open_message().await?;
                }
                let index = self.output.len();
                let Open::Message(id, whole) = &mut self.open else { return Ok(()) };
                whole.push_str(&text);
                let delta = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": []});
                self.send("response.output_text.delta", delta).await
            }
            Delta::CallBegin { id: call_id, name, kind, .. } => {
                self.close().await?;
                let id = call_item_id(kind);
                let call = Call { id: call_id, name, kind, arguments: String::new() };
                self.add(call_item(&id, &call, "in_progress")).await?;
                self.open = Open::Call(id, call);
                Ok(())
            }
            Delta::CallArguments { text, .. } => {
                let Open::Call(id, call) = &mut self.open else { return Ok(()) };
                call.arguments.push_str(&text);
                let delta = json!({"item_id": id, "output_index": index, "delta": text});
                let event = match call.kind {
                    CallKind::Function => "response.function_call_arguments.delta",
                    CallKind::Custom => "response.custom_tool_call_input.delta",
                };
                self.send(event, delta).await
            }
        }
    }
}

async fn stream_answer(events: Arc<sse::Events>, head: Head, mut answers: Answers) -> Result<(), sse::Gone> {
    let mut writer =
        Writer { events: Arc::clone(&events), number: 0, open: Open::Nothing, output: Vec::new() };
    for event in ["response.created", "response.in_progress"] {
        writer.send(event, json!({"response": head.response(&[], None)})).await?;
    }
    while let Some((_, step)) = sse::unless_gone(&events, answers.next()).await? {
        match step {
            Ok(ChatStep::Delta(delta, _)) => writer.write(delta).await?,
            Ok(ChatStep::Prefill) => {}
            Ok(ChatStep::End(ended)) => {
                if writer.output.is_empty() && matches!(writer.open, Open::Nothing | Open::Reasoning(..)) {
                    // An answer without a word is a message all the same.
                    writer.open_message().await?;
                }
                writer.close().await?;
                let response = head.response(&writer.output, Some(&ended));
                let event = format!("response.{}", response["status"].as_str().unwrap_or("completed"));
                return writer.send(&event, json!({"response": response})).await;
            }
            Err(error) => {
                let mut response = head.response(&writer.output, None);
                response["status"] = "failed".into();
                response["error"] = json!({"code": error.code, "message": error.message});
                return writer.send("response.failed", json!({"response": response})).await;
            }
        }
    }
    Ok(())
}
