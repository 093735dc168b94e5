//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use brasa::{GenerateOptions, Model, Turn};
use serde_json::{Map, Value, json};

use crate::answer::choices::{AnswerSettings, Answers, Call, ChatStep, Delta, Ended, WholeAnswer};
use crate::answer::generate::{Choices, MOST_CHOICES, Prompt, Shown, blocking, finish_name};
use crate::answer::logprobs;
use crate::answer::usage::{Telling, Usage, progress, timings};
use crate::api::{finish_fields, slots};
use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::http::pool::{self, Lane};
use crate::http::{ids, reply, sse};
use crate::models::loaded_text::LoadedText;
use crate::request::constraint::Constraint;
use crate::request::conversation::Conversation;
use crate::request::custom::CallKind;
use crate::request::fields::{Fields, Limit};
use crate::request::{sampling, token_limits};
use crate::state::App;

/// Handles `POST /v1/chat/completions`: answers a conversation.
pub(crate) async fn complete(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let request = Request::read(&mut fields, &app, &loaded.model)?;
    let slot = slots::named(&mut fields, &app, &loaded)?;
    finish_fields(&app, &mut fields)?;
    let Request { conversation, options, choices, logprobs, stream, telling, shown, thoughts } = request;
    let job = Job { app: &app, loaded: &loaded, record: &record, slot, choices, logprobs, shown };
    let (answers, _) = job.start(conversation, &options).await?;
    let head = Head {
        id: ids::name("chatcmpl-"),
        created: ids::unix_seconds(),
        model: loaded.id().to_owned(),
        logprobs,
        telling,
        thoughts,
    };
    match stream {
        None => whole(&head, answers).await,
        Some(usage) => {
            record.set("stream", true);
            let (events, response) = sse::stream(sse::Pings::Comment, app.options.ping_every);
            sse::spawn(events, |events| stream_answers(events, head, answers, choices, usage));
            Ok(response)
        }
    }
}

/// Counts the tokens of a conversation.
pub(crate) async fn count(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let conversation = Conversation::read(&mut fields)?;
    let prompt = blocking(move || conversation.encode(&loaded.model)).await?;
    Ok(reply::ok(&json!({"object": "response.input_tokens", "input_tokens": prompt.len()})))
}

/// The settings for starting answers, in any form of the API.
pub(crate) struct Job<'a> {
    pub app: &'a App,
    pub loaded: &'a Arc<LoadedText>,
    pub record: &'a Record,
    /// The slot that the request names, if any.
    pub slot: Option<usize>,
    /// Number of answers to the conversation, which differ by their seeds.
    pub choices: usize,
    pub logprobs: bool,
    pub shown: Shown,
}

impl<'a> Job<'a> {
    /// Settings for one choice, without probabilities and with the usual tokens shown.
    pub fn of_one(
        app: &'a App,
        loaded: &'a Arc<LoadedText>,
        record: &'a Record,
        slot: Option<usize>,
    ) -> Self {
        Self { app, loaded, record, slot, choices: 1, logprobs: false, shown: Shown::default() }
    }

    /// Starts the answers to a conversation, and returns the number of its tokens.
    ///
    /// # Errors
    ///
    /// The errors of the template, of a grammar and of the engine.
    pub async fn start(
        &self,
        conversation: Conversation,
        options: &GenerateOptions,
    ) -> Result<(Answers, usize)> {
        let Self { app, loaded, record, slot, choices, logprobs, shown } = *self;
        for (id, name) in conversation.calls_without_object() {
            let note = "its arguments are no JSON object; the template is given them as text";
            (app.options.log)(&json!({"history_call": {"id": id, "name": name}, "note": note}).to_string());
        }
        let model = loaded.model.clone();
        // The calls of tools have a grammar too.
        let has_grammar = conversation.constraint.is_some() || !conversation.tools.is_empty();
        let lane = if has_grammar { Lane::Grammars } else { Lane::Texts };
        let (conversation, turn) = pool::blocking(lane, move || {
            let turn = conversation.turn(&model)?;
            Ok((conversation, turn))
        })
        .await?;
        let Turn { prompt, mask, parser, .. } = turn;
        let prompts: Vec<Prompt> = (0..choices)
            .map(|choice| {
                let mut options = options.clone();
                options.sampling.seed = options.sampling.seed.wrapping_add(choice as u64);
                options.mask = token_limits::both(options.mask, mask.clone());
                options.stop_marks = loaded.model.stop_marks();
                Prompt { ids: prompt.clone(), options, shown }
            })
            .collect();
        let running = Choices::start(app, loaded, record, slot, prompts).await?;
        let custom: Vec<String> = conversation.custom.iter().map(|tool| tool.name.clone()).collect();
        let settings = (0..choices).map(|_| AnswerSettings {
            custom: custom.clone(),
            parser: parser.clone(),
            one_call: conversation.one_call,
            short_ids: loaded.model.tool_format().name().starts_with("mistral"),
            show_token: logprobs.then(|| logprobs::shower(&loaded.model)),
        });
        let answers = Answers::new(running, settings);
        Ok((answers, prompt.len()))
    }
}

/// A chat request, checked.
struct Request {
    conversation: Conversation,
    options: GenerateOptions,
    choices: usize,
    logprobs: bool,
    /// `None` for a whole answer; for a stream, true if it ends with the usage.
    stream: Option<bool>,
    telling: Telling,
    shown: Shown,
    /// False if thoughts are left out of the answer.
    thoughts: bool,
}

impl Request {
    fn read(fields: &mut Fields, app: &App, model: &Model) -> Result<Self> {
        fields.only("modalities", &[json!(["text"])], "the model takes and makes text alone")?;
        let mut conversation = Conversation::read(fields)?;
        conversation.constraint = Constraint::read(fields, None)?;
        let mut options = sampling::options(fields, app, model)?;
        let limit = fields.first_limit(&["max_completion_tokens", "max_tokens", "n_predict"])?;
        options.max_tokens = limit.map_or(app.options.default_max_tokens, Limit::tokens);
        let choices = fields.count("n", 1, MOST_CHOICES)?.unwrap_or(1);
        let wants_logprobs = fields.switch("logprobs")?.unwrap_or(false);
        let top = fields.count("top_logprobs", 0, sampling::MOST_TOP_LOGPROBS)?;
        if top.is_some_and(|top| top > 0) && !wants_logprobs {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs: true`"));
        }
        if wants_logprobs {
            options.sampling.logprobs = Some(sampling::logprobs(top.unwrap_or(0)));
        }
        let stream = read_stream(fields)?;
        let telling = Telling::read(fields)?;
        options.report_prefill = telling.progress && stream.is_some();
        let stop = fields.switch("include_stop_str_in_output")?.unwrap_or(false);
        let shown = Shown { stop, control: false };
        let thoughts = fields.switch("include_reasoning")?.unwrap_or(true);
        let logprobs = wants_logprobs;
        Ok(Self { conversation, options, choices, logprobs, stream, telling, shown, thoughts })
    }
}

/// Reads `stream` and `stream_options`: `None` for a whole answer; for a stream, true if it ends with the usage.
pub(crate) fn read_stream(fields: &mut Fields) -> Result<Option<bool>> {
    let streams = fields.switch("stream")?.unwrap_or(false);
    let usage = match fields.value("stream_options") {
        None => false,
        Some(_) if !streams => {
            return Err(ApiError::field("stream_options", "`stream_options` needs `stream: true`"));
        }
        Some(options) => fields.inside("stream_options", options)?.switch("include_usage")?.unwrap_or(false),
    };
    Ok(streams.then_some(usage))
}

/// The fields that all parts of a chat answer have in common.
struct Head {
    id: String,
    created: u64,
    model: String,
    logprobs: bool,
    telling: Telling,
    /// False if thoughts are left out.
    thoughts: bool,
}

impl Head {
    fn object(&self, kind: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": ids::FINGERPRINT,
            "choices": choices,
        })
    }

    fn chunk(&self, index: usize, delta: Value, logprobs: Vec<Value>, finish: Option<&str>) -> Value {
        let mut choice = json!({"index": index, "delta": delta, "finish_reason": finish});
        if self.logprobs {
            choice["logprobs"] = if logprobs.is_empty() { Value::Null } else { json!({"content": logprobs}) };
        }
        self.object("chat.completion.chunk", vec![choice])
    }
}

/// The finish reason in OpenAI's terms; `tool_calls` if the answer has calls.
fn reason(ended: &Ended) -> &'static str {
    match finish_name(ended.end.reason) {
        "stop" if ended.has_calls => "tool_calls",
        reason => reason,
    }
}

async fn whole(head: &Head, answers: Answers) -> Result<Response> {
    let wholes = answers.collect().await?;
    let mut usage = Usage::default();
    let mut times = Value::Null;
    let mut choices = Vec::with_capacity(wholes.len());
    for (index, whole) in wholes.into_iter().enumerate() {
        let WholeAnswer { reasoning, content, calls, logprobs, ended } = whole;
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        let is_silent = content.is_empty() && !calls.is_empty();
        message.insert("content".into(), if is_silent { Value::Null } else { content.into() });
        message.insert("refusal".into(), Value::Null);
        if head.thoughts && !reasoning.is_empty() {
            message.insert("reasoning_content".into(), reasoning.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".into(), calls.iter().map(call_form).collect());
        }
        let mut choice =
            json!({"index": index, "message": message, "finish_reason": ended.as_ref().map(reason)});
        choice["logprobs"] = if head.logprobs { json!({"content": logprobs}) } else { Value::Null };
        if let Some(ended) = &ended {
            usage.add(&ended.end.cost, index == 0);
            usage.reasoning_tokens += ended.reasoning_tokens;
            if index == 0 {
                times = timings(&ended.end.cost);
            }
        }
        choices.push(choice);
    }
    let mut object = head.object("chat.completion", choices);
    object["usage"] = usage.openai();
    object["timings"] = times;
    Ok(reply::ok(&object))
}

/// A call in OpenAI's form.
fn call_form(call: &Call) -> Value {
    let Call { id, name, kind, arguments } = call;
    match kind {
        CallKind::Function => {
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        }
        CallKind::Custom => json!({"id": id, "type": "custom", "custom": {"name": name, "input": arguments}}),
    }
}

async fn stream_answers(
    events: Arc<sse::Events>,
    head: Head,
    mut answers: Answers,
    choices: usize,
    with_usage: bool,
) -> Result<(), sse::Gone> {
    let mut usage = Usage::default();
    for index in 0..choices {
        let delta = json!({"role": "assistant", "content": null});
        events.send(&head.chunk(index, delta, Vec::new(), None)).await?;
    }
    while let Some((index, step)) = sse::unless_gone(&events, answers.next()).await? {
        match step {
            Ok(ChatStep::Delta(Delta::Reasoning(_), _)) if !head.thoughts => {}
            Ok(ChatStep::Delta(delta, logprobs)) => {
                let mut chunk = head.chunk(index, delta_form(delta), logprobs, None);
                head.telling.add_timings(&mut chunk, answers.cost(index));
                events.send(&chunk).await?;
            }
            Ok(ChatStep::Prefill) => {
                let mut chunk = head.chunk(index, json!({}), Vec::new(), None);
                chunk["prompt_progress"] = progress(answers.cost(index));
                head.telling.add_timings(&mut chunk, answers.cost(index));
                events.send(&chunk).await?;
            }
            Ok(ChatStep::End(mut ended)) => {
                usage.add(&ended.end.cost, index == 0);
                usage.reasoning_tokens += ended.reasoning_tokens;
                let logprobs = std::mem::take(&mut ended.logprobs);
                let mut chunk = head.chunk(index, json!({}), logprobs, Some(reason(&ended)));
                chunk["timings"] = timings(&ended.end.cost);
                events.send(&chunk).await?;
            }
            Err(error) => return events.send(&error.body()).await,
        }
    }
    if with_usage {
        let mut chunk = head.object("chat.completion.chunk", Vec::new());
        chunk["usage"] = usage.openai();
        events.send(&chunk).await?;
    }
    events.done().await
}

fn delta_form(delta: Delta) -> Value {
    match delta {
        Delta::Reasoning(text) => json!({"reasoning_content": text}),
        Delta::Content(text) => json!({"content": text}),
        Delta::CallBegin { index, id, name, kind } => {
            let mut call = call_form(&Call { id, name, kind, arguments: String::new() });
            call["index"] = index.into();
            json!({"tool_calls": [call]})
        }
        Delta::CallArguments { index, text, kind } => json!({"tool_calls": [match kind {
            CallKind::Function => json!({"index": index, "function": {"arguments": text}}),
            CallKind::Custom => json!({"index": index, "custom": {"input": text}}),
        }]}),
    }
}
