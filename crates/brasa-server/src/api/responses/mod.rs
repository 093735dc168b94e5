//! `/v1/responses`: OpenAI's newer form, without any state between requests.

mod events;
mod input;
mod items;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use brasa::{GenerateOptions, Model};
use serde_json::{Map, Value, json};

use crate::answer::{Answers, Whole};
use crate::api::{chat, finish_fields};
use crate::constraint::Constraint;
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::generate::blocking;
use crate::log::Record;
use crate::state::App;
use crate::usage::Telling;
use crate::{ids, reply, sampling, sse};
use events::stream_answer;
use input::{conversation, format};
use items::{Head, call_item, call_item_id, message_item, reasoning_item};

/// Answers an input.
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
        fields.see_inside("stream_options", &options, &["include_usage"]);
    }
    finish_fields(&app, &mut fields);
    let job = chat::Job { app: &app, loaded: &loaded, record: &record, choices: 1, logprobs: false };
    let (answers, _) = job.start(conversation, &options).await?;
    let head = Head {
        id: ids::name("resp_"),
        created: ids::unix_seconds(),
        model: loaded.id().to_owned(),
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
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
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
