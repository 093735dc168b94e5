//! `/v1/responses`: OpenAI's newer form, without any state between requests.

mod events;
mod input;
mod items;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use brasa::{GenerateOptions, Model};
use serde_json::{Map, Value, json};

use crate::answer::choices::{Answers, Call, WholeAnswer};
use crate::answer::generate::blocking;
use crate::api::{chat, finish_fields, slots};
use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::http::{ids, reply, sse};
use crate::request::constraint::Constraint;
use crate::request::fields::Fields;
use crate::request::sampling;
use crate::state::App;
use events::stream_answer;
use input::{conversation, format};
use items::{Head, Status, call_item, call_item_id, message_item, reasoning_item, status_at};

/// Handles `POST /v1/responses`: answers an input.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let settings = Settings::read(&mut fields)?;
    let mut conversation = conversation(&mut fields, &app)?;
    let format = format(&mut fields)?;
    conversation.constraint = Constraint::read(&mut fields, format)?;
    let options = options(&mut fields, &app, &loaded.model)?;
    let streams = fields.switch("stream")?.unwrap_or(false);
    if let Some(options) = fields.value("stream_options") {
        // A response's events end with its usage anyway.
        fields.inside("stream_options", options)?.switch("include_usage")?;
    }
    let slot = slots::named(&mut fields, &app, &loaded)?;
    finish_fields(&app, &mut fields)?;
    let job = chat::Job::of_one(&app, &loaded, &record, slot);
    let (answers, _) = job.start(conversation, &options).await?;
    let head = Head {
        id: ids::name("resp_"),
        created: ids::unix_seconds(),
        model: loaded.id().to_owned(),
        settings: settings.0,
        sampling: options.sampling,
    };
    if !streams {
        return whole(&head, answers).await;
    }
    record.set("stream", true);
    let (events, response) = sse::stream(sse::Pings::Comment, app.options.ping_every);
    sse::spawn(events, |events| stream_answer(events, head, answers));
    Ok(response)
}

/// Counts the tokens of an input.
pub(crate) async fn count(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let conversation = conversation(&mut fields, &app)?;
    let prompt = blocking(move || conversation.encode(&loaded.model)).await?;
    Ok(reply::ok(&json!({"object": "response.input_tokens", "input_tokens": prompt.len()})))
}

/// The settings of the request that a response repeats.
struct Settings(Map<String, Value>);

impl Settings {
    fn read(fields: &mut Fields) -> Result<Self> {
        fields.refuse("prompt", "the server keeps no prompts")?;
        fields
            .refuse("top_logprobs", "responses have no log-probabilities here; chat completions have them")?;
        let truncation = fields.peek("truncation").cloned().filter(|value| !value.is_null());
        fields.only("truncation", &[json!("disabled"), json!("auto")], "the input is taken as it is")?;
        // Results of tools that the server runs, and thoughts in a form that it alone can read: it has neither.
        let include: Vec<String> = fields.optional("include")?.unwrap_or_default();
        if include.iter().any(|wanted| wanted.contains("output_text.logprobs")) {
            let why = "responses have no log-probabilities here; chat completions have them";
            return Err(ApiError::unsupported("include", why));
        }
        if fields.value("previous_response_id").is_some() {
            let message = "the server keeps no responses: send the whole conversation as `input`";
            let error = ApiError { code: "previous_response_not_found", ..ApiError::invalid(message) };
            return Err(error.with_param("previous_response_id"));
        }
        let mut repeated = Map::new();
        for (name, default) in [
            ("instructions", Value::Null),
            ("tool_choice", json!("auto")),
            ("metadata", json!({})),
            ("parallel_tool_calls", json!(true)),
            ("max_output_tokens", Value::Null),
            ("max_tool_calls", Value::Null),
            ("safety_identifier", Value::Null),
            ("prompt_cache_key", Value::Null),
        ] {
            let sent = fields.peek(name).filter(|value| !value.is_null());
            repeated.insert(name.into(), sent.cloned().unwrap_or(default));
        }
        let with = |name: &str, keys: &[(&str, Value)]| {
            with_keys(fields.peek(name).cloned().unwrap_or(Value::Null), keys)
        };
        repeated.insert(
            "reasoning".into(),
            with("reasoning", &[("effort", Value::Null), ("summary", Value::Null)]),
        );
        let mut text = with("text", &[("format", json!({"type": "text"}))]);
        if text["format"]["type"] == "json_schema" {
            let format = fields.exact_numbers("text.format", text["format"].take())?;
            text["format"] = with_keys(format, &[("description", Value::Null), ("strict", json!(true))]);
        }
        repeated.insert("text".into(), text);
        let tools = fields.peek("tools").and_then(Value::as_array).cloned().unwrap_or_default();
        let exact = |(at, tool)| fields.exact_numbers(&format!("tools[{at}]"), tool);
        let tools: Vec<_> = tools.into_iter().enumerate().map(exact).collect::<Result<_>>()?;
        repeated.insert("tools".into(), tools.into_iter().map(repeated_tool).collect());
        let truncation = truncation.unwrap_or_else(|| json!("disabled"));
        repeated.insert("truncation".into(), truncation);
        Ok(Self(repeated))
    }
}

/// A tool in the form in which a response repeats it: a function has all keys.
fn repeated_tool(tool: Value) -> Value {
    if tool["type"] != "function" {
        return tool;
    }
    with_keys(tool, &[("description", Value::Null), ("parameters", Value::Null), ("strict", Value::Null)])
}

/// Adds `keys` to an object, without replacing its own. A value that is not an object is replaced by one.
fn with_keys(value: Value, keys: &[(&str, Value)]) -> Value {
    let mut map = match value {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    for (name, default) in keys {
        map.entry(*name).or_insert_with(|| default.clone());
    }
    Value::Object(map)
}

/// Refuses to compact a conversation: the API's compact form can only be read by the service that made it.
pub(crate) async fn compact() -> ApiError {
    let message = "/responses/compact is not supported: the server keeps nothing and has no form of its own for a conversation; send it whole, or a summary of it as a message";
    ApiError::not_implemented(message)
}

fn options(fields: &mut Fields, app: &App, model: &Model) -> Result<GenerateOptions> {
    let mut options = sampling::options(fields, app, model)?;
    let mut limit = fields.count("max_output_tokens", 0, usize::MAX)?;
    // Chats' names, which some clients send here too.
    for name in ["max_completion_tokens", "max_tokens"] {
        limit = limit.or(fields.count(name, 0, usize::MAX)?);
    }
    options.max_tokens = limit.or(app.options.default_max_tokens);
    Ok(options)
}

async fn whole(head: &Head, answers: Answers) -> Result<Response> {
    let mut wholes = answers.collect().await?;
    let WholeAnswer { reasoning, content, calls, ended, .. } = wholes.pop().unwrap_or_default();
    let last = status_at(ended.as_ref());
    let is_cut_in_thoughts = last == Status::Incomplete && content.is_empty() && !reasoning.is_empty();
    let has_message = !content.is_empty() || (calls.is_empty() && !is_cut_in_thoughts);
    // An answer ends within its last item.
    let status = |is_last: bool| if is_last { last } else { Status::Completed };
    let mut output = Vec::new();
    if !reasoning.is_empty() {
        let status = status(!has_message && calls.is_empty());
        output.push(reasoning_item(&ids::name("rs_"), &reasoning, status));
    }
    if has_message {
        output.push(message_item(&ids::name("msg_"), &content, status(calls.is_empty())));
    }
    let count = calls.len();
    let call =
        |(at, call): (usize, &Call)| call_item(&call_item_id(call.kind), call, status(at + 1 == count));
    output.extend(calls.iter().enumerate().map(call));
    Ok(reply::exact(&head.response(&output, ended.as_ref())))
}
