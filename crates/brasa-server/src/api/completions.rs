//! `/v1/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use brasa::tokenizer::{AddSpecial, ParseSpecial};
use brasa::{GenerateOptions, Model, RequestOptions, Token};
use serde_json::{Value, json};

use crate::answer::generate::{
    Choices, End, MOST_CHOICES, Prompt, Shown, Step, blocking, finish_name, in_time,
};
use crate::answer::logprobs::Legacy;
use crate::answer::usage::{Telling, Usage, progress, timings};
use crate::api::chat::read_stream;
use crate::api::{finish_fields, slots};
use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::http::pool::{self, Lane};
use crate::http::{ids, reply, sse};
use crate::models::loaded_text::LoadedText;
use crate::request::constraint::Constraint;
use crate::request::fields::{self, Fields, Limit};
use crate::request::fill::Fill;
use crate::request::{prompt, sampling, token_limits};
use crate::state::App;

/// Most tokens of an answer if the request sets no limit.
const DEFAULT_TOKENS: usize = 16;

/// Handles `POST /v1/completions`: continues raw texts.
pub(crate) async fn complete(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let request = Request::read(&mut fields, &app, &loaded.model)?;
    let options = sampling::options(&mut fields, &app, &loaded.model)?;
    let options = request.limits(options);
    let constraint = Constraint::read(&mut fields, None)?;
    let slot = slots::named(&mut fields, &app, &loaded)?;
    finish_fields(&app, &mut fields)?;
    let Request { prompt, suffix, choices, echo, top, stream, telling, add, cut, shown, with_ids, .. } =
        request;
    let model = loaded.model.clone();
    let echoed = match (echo, top) {
        (false, _) => Echo::No,
        (true, None) => Echo::Text,
        (true, Some(top)) => Echo::Scored(top),
    };
    let lane = if constraint.is_some() { Lane::Grammars } else { Lane::Texts };
    let (prompts, mask) = pool::blocking(lane, move || {
        let mut prompts = match suffix {
            None => prompt::read("prompt", prompt, &model, add, MOST_CHOICES)?,
            Some(suffix) => {
                let text = prompt.as_str().ok_or_else(|| {
                    ApiError::field("prompt", "`prompt` has to be one text if there is a `suffix`")
                })?;
                vec![Fill { before: text, after: &suffix, extra: &[], begun: "" }.encode(&model)?]
            }
        };
        if let Some(cut) = cut {
            for ids in &mut prompts {
                cut.apply(ids);
            }
        }
        let mask = constraint.map(|constraint| constraint.compile(&model)).transpose()?;
        Ok((prompts, mask))
    })
    .await?;
    if prompts.len() * choices > MOST_CHOICES {
        let message = format!(
            "{} prompts with {choices} choices each: at most {MOST_CHOICES} are possible",
            prompts.len()
        );
        return Err(ApiError::field("n", message));
    }
    let scores = match echoed {
        Echo::Scored(top) => score(&app, &loaded, &prompts, top, &options.request).await?,
        Echo::No | Echo::Text => Vec::new(),
    };
    let (model, ids) = (loaded.model.clone(), prompts.clone());
    let texts: Vec<Text> = blocking(move || match echoed {
        Echo::No => Ok(vec![Text::default(); ids.len()]),
        Echo::Text | Echo::Scored(_) => {
            let mut scores = scores.into_iter();
            ids.iter().map(|ids| Ok(Text::echoed(&model, ids, scores.next().unwrap_or_default())?)).collect()
        }
    })
    .await?;
    let jobs: Vec<Prompt> = prompts
        .iter()
        .flat_map(|ids| (0..choices).map(move |choice| (ids, choice)))
        .map(|(ids, choice)| {
            let mut options = options.clone();
            options.sampling.seed = options.sampling.seed.wrapping_add(choice as u64);
            options.mask = token_limits::both(options.mask, mask.clone());
            Prompt { ids: ids.clone(), options, shown }
        })
        .collect();
    let mut texts: Vec<Text> =
        texts.into_iter().flat_map(|text| std::iter::repeat_n(text, choices)).collect();
    if with_ids {
        for (text, job) in texts.iter_mut().zip(&jobs) {
            text.prompt_ids = Some(job.ids.clone());
        }
    }
    let running = Choices::start(&app, &loaded, &record, slot, jobs).await?;
    let head = Head {
        id: ids::name("cmpl-"),
        created: ids::unix_seconds(),
        model_id: loaded.id().to_owned(),
        model: loaded.model.clone(),
        with_logprobs: top.is_some(),
        with_ids,
        choices,
        telling,
    };
    match stream {
        None => whole(&head, running, texts).await,
        Some(usage) => {
            record.set("stream", true);
            let (events, response) = sse::stream(sse::Pings::Comment, app.options.ping_every);
            sse::spawn(events, |events| stream_texts(events, head, running, texts, usage));
            Ok(response)
        }
    }
}

/// Scores the tokens of prompts. Each prompt runs like a generation: in a slot, with the request's adapters, until its deadline,
/// and only while the client waits.
async fn score(
    app: &App,
    loaded: &Arc<LoadedText>,
    prompts: &[Vec<u32>],
    top: usize,
    request: &RequestOptions,
) -> Result<Vec<Vec<Token>>> {
    let tasks: Vec<_> = prompts.iter().map(|ids| loaded.begin(ids.len(), Some(0), None, None)).collect();
    let mut scores = loaded.model.score_tokens(prompts.to_vec(), top, request);
    let scores = in_time(app, &loaded.presence, |context| scores.poll_next(context)).await;
    drop(tasks);
    scores
}

/// A request for completions, checked.
struct Request {
    prompt: Value,
    suffix: Option<String>,
    max_tokens: usize,
    choices: usize,
    echo: bool,
    /// Number of alternatives of each token; `None` for no probabilities.
    top: Option<usize>,
    stream: Option<bool>,
    telling: Telling,
    add: AddSpecial,
    cut: Option<Cut>,
    shown: Shown,
    /// True if the ids of prompts and answers are shown.
    with_ids: bool,
}

impl Request {
    fn read(fields: &mut Fields, app: &App, model: &Model) -> Result<Self> {
        let prompt = fields.value("prompt").ok_or_else(|| fields.missing("prompt"))?;
        let suffix = fields.optional::<String>("suffix")?.filter(|suffix| !suffix.is_empty());
        let limit = fields.first_limit(&["max_tokens", "max_completion_tokens", "n_predict"])?;
        let default = app.options.default_max_tokens.unwrap_or(DEFAULT_TOKENS);
        let max_tokens = limit.map_or(Some(default), Limit::tokens).unwrap_or(usize::MAX);
        let choices = fields.count("n", 1, MOST_CHOICES)?.unwrap_or(1);
        if fields.count("best_of", 0, usize::MAX)?.is_some_and(|best| best > choices) {
            return Err(ApiError::unsupported(
                "best_of",
                "every choice that is computed is returned; ask for `n`",
            ));
        }
        let echo = fields.switch("echo")?.unwrap_or(false);
        // A switch in newer clients, a number in older ones.
        let top = match fields.value("logprobs") {
            None | Some(Value::Bool(false)) => None,
            Some(Value::Bool(true)) => {
                Some(fields.count("top_logprobs", 0, sampling::MOST_TOP_LOGPROBS)?.unwrap_or(0))
            }
            Some(value) => {
                let most = sampling::MOST_TOP_LOGPROBS;
                let top = fields::whole(&value)
                    .and_then(|top| usize::try_from(top).ok())
                    .filter(|&top| top <= most);
                Some(top.ok_or_else(|| {
                    ApiError::field("logprobs", format!("`logprobs` is {value}, expected 0 to {most}"))
                })?)
            }
        };
        if suffix.is_some() && echo {
            return Err(ApiError::unsupported("echo", "it cannot be combined with `suffix`"));
        }
        let (stream, telling) = (read_stream(fields)?, Telling::read(fields)?);
        let adds = fields.switch("add_special_tokens")?.unwrap_or(true);
        Ok(Self {
            prompt,
            suffix,
            max_tokens,
            choices,
            echo,
            top,
            stream,
            telling,
            add: if adds { AddSpecial::AsModel } else { AddSpecial::No },
            cut: Cut::read(fields, model)?,
            shown: Shown {
                stop: fields.switch("include_stop_str_in_output")?.unwrap_or(false),
                control: !fields.switch("skip_special_tokens")?.unwrap_or(true),
            },
            with_ids: fields.switch("return_token_ids")?.unwrap_or(false),
        })
    }

    fn limits(&self, mut options: GenerateOptions) -> GenerateOptions {
        options.max_tokens = (self.max_tokens < usize::MAX).then_some(self.max_tokens);
        if let Some(top) = self.top {
            options.sampling.logprobs = Some(sampling::logprobs(top));
        }
        options.report_prefill = self.telling.progress && self.stream.is_some();
        options
    }
}

/// How prompts that are too long are cut: vLLM's `truncate_prompt_tokens` and `truncation_side`.
#[derive(Clone, Copy)]
struct Cut {
    /// Most tokens that a prompt keeps.
    most: usize,
    /// True if the prompt's last tokens are kept, false if its first ones are.
    is_left: bool,
}

impl Cut {
    /// Reads `truncate_prompt_tokens` and `truncation_side`; `None` if prompts stay whole. -1 means as many tokens as leave room
    /// for one more token in the context.
    fn read(fields: &mut Fields, model: &Model) -> Result<Option<Self>> {
        let is_left = match fields.optional::<String>("truncation_side")?.as_deref() {
            None | Some("left") => true,
            Some("right") => false,
            Some(other) => {
                let message = format!("`truncation_side` is {other:?}, expected left or right");
                return Err(ApiError::field("truncation_side", message));
            }
        };
        let fitting = model.context().saturating_sub(1).max(1);
        let most = match fields.limit("truncate_prompt_tokens")? {
            None => return Ok(None),
            Some(Limit::Tokens(0)) => {
                let message = "`truncate_prompt_tokens` is 0: nothing would be left of the prompt";
                return Err(ApiError::field("truncate_prompt_tokens", message));
            }
            Some(limit) => limit.tokens().unwrap_or(fitting),
        };
        Ok(Some(Self { most, is_left }))
    }

    fn apply(self, ids: &mut Vec<u32>) {
        if self.is_left {
            ids.drain(..ids.len().saturating_sub(self.most));
        } else {
            ids.truncate(self.most);
        }
    }
}

/// Which part of the prompt an answer repeats.
#[derive(Clone, Copy)]
enum Echo {
    /// The answer does not repeat the prompt.
    No,
    /// The text of the prompt.
    Text,
    /// The text of the prompt, and the probabilities of its tokens with this many alternatives each.
    Scored(usize),
}

/// A text that is being written, with the probabilities of its tokens.
#[derive(Clone, Default)]
struct Text {
    written: String,
    tokens: Vec<(Token, usize)>,
    characters: usize,
    /// Ids of the answer's tokens since its last part, if ids are shown.
    ids: Vec<u32>,
    /// The ids of the prompt, until they have been shown.
    prompt_ids: Option<Vec<u32>>,
}

impl Text {
    /// The prompt as the text before the first generated token, with its tokens if they were scored. Control tokens are part of the text, but
    /// for those that the tokenizer puts in front of any prompt.
    fn echoed(model: &Model, ids: &[u32], tokens: Vec<Token>) -> Result<Self, brasa::Error> {
        let mut text = Self::default();
        let mut stream = model.tokenizer().decode_stream(false);
        let mut tokens = tokens.into_iter();
        let added = model.tokenizer().encode("", AddSpecial::AsModel, ParseSpecial::No)?;
        let begin = if ids.starts_with(&added) { added.len() } else { 0 };
        for (place, &id) in ids.iter().enumerate() {
            if let Some(token) = tokens.next() {
                text.tokens.push((token, text.characters));
            }
            if place >= begin {
                text.push(&stream.push(id)?);
            }
        }
        text.push(&stream.finish());
        Ok(text)
    }

    fn push(&mut self, text: &str) {
        self.characters += text.chars().count();
        self.written += text;
    }
}

/// The fields that all parts of a completion have in common.
struct Head {
    id: String,
    created: u64,
    model_id: String,
    model: Model,
    with_logprobs: bool,
    with_ids: bool,
    /// Number of choices of each prompt.
    choices: usize,
    telling: Telling,
}

impl Head {
    fn object(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model_id,
            "system_fingerprint": ids::FINGERPRINT,
            "choices": choices,
        })
    }

    fn choice(&self, index: usize, text: &mut Text, finish: Option<&str>) -> Value {
        let mut legacy = Legacy::default();
        for (token, offset) in text.tokens.drain(..) {
            legacy.push(&self.model, &token, offset);
        }
        let logprobs = if self.with_logprobs { legacy.take() } else { Value::Null };
        let written = std::mem::take(&mut text.written);
        let mut choice =
            json!({"index": index, "text": written, "logprobs": logprobs, "finish_reason": finish});
        if self.with_ids {
            choice["token_ids"] = std::mem::take(&mut text.ids).into();
            choice["prompt_token_ids"] = json!(text.prompt_ids.take());
        }
        choice
    }

    fn take(&self, text: &mut Text, fragments: Vec<brasa::Fragment>) {
        for fragment in fragments {
            if let Some(token) = fragment.token.as_ref().filter(|_| self.with_ids) {
                text.ids.push(token.id);
            }
            if let Some(token) = fragment.token.filter(|_| self.with_logprobs) {
                text.tokens.push((token, text.characters));
            }
            text.push(&fragment.text);
        }
    }

    /// Adds the end, whose token has a place among the others though it has no text: who scores a text asks for one token behind it,
    /// and takes the last one away.
    fn end(&self, text: &mut Text, end: &mut End) {
        if let Some(token) = end.token.take().filter(|_| self.with_logprobs) {
            text.tokens.push((token, text.characters));
        }
    }

    fn count(&self, usage: &mut Usage, index: usize, end: &End) {
        usage.add(&end.cost, index.is_multiple_of(self.choices));
    }
}

async fn whole(head: &Head, mut running: Choices, mut texts: Vec<Text>) -> Result<Response> {
    let mut ends: Vec<Option<End>> = vec![None; texts.len()];
    while let Some((index, step)) = running.next().await {
        match step? {
            Step::Fragments(fragments) => head.take(&mut texts[index], fragments),
            Step::Prefill => {}
            Step::End(mut end) => {
                head.end(&mut texts[index], &mut end);
                ends[index] = Some(end);
            }
        }
    }
    let mut usage = Usage::default();
    let mut times = Value::Null;
    let mut choices = Vec::with_capacity(texts.len());
    for (index, (text, end)) in texts.iter_mut().zip(&ends).enumerate() {
        if let Some(end) = end {
            head.count(&mut usage, index, end);
            if index == 0 {
                times = timings(&end.cost);
            }
        }
        choices.push(head.choice(index, text, end.as_ref().map(|end| finish_name(end.reason))));
    }
    let mut object = head.object(choices);
    object["usage"] = usage.openai();
    object["timings"] = times;
    Ok(reply::ok(&object))
}

async fn stream_texts(
    events: Arc<sse::Events>,
    head: Head,
    mut running: Choices,
    mut texts: Vec<Text>,
    with_usage: bool,
) -> Result<(), sse::Gone> {
    let mut usage = Usage::default();
    for (index, text) in texts.iter_mut().enumerate().filter(|(_, text)| !text.written.is_empty()) {
        let choice = head.choice(index, text, None);
        events.send(&head.object(vec![choice])).await?;
    }
    while let Some((index, step)) = sse::unless_gone(&events, running.next()).await? {
        let text = &mut texts[index];
        match step {
            Ok(Step::Fragments(fragments)) => {
                head.take(text, fragments);
                if !text.written.is_empty() {
                    let mut part = head.object(vec![head.choice(index, text, None)]);
                    head.telling.add_timings(&mut part, running.cost(index));
                    events.send(&part).await?;
                }
            }
            Ok(Step::Prefill) => {
                let mut part = head.object(vec![head.choice(index, &mut Text::default(), None)]);
                part["prompt_progress"] = progress(running.cost(index));
                head.telling.add_timings(&mut part, running.cost(index));
                events.send(&part).await?;
            }
            Ok(Step::End(mut end)) => {
                head.end(text, &mut end);
                head.count(&mut usage, index, &end);
                let choice = head.choice(index, text, Some(finish_name(end.reason)));
                let mut object = head.object(vec![choice]);
                object["timings"] = timings(&end.cost);
                events.send(&object).await?;
            }
            Err(error) => return events.send(&error.body()).await,
        }
    }
    if with_usage {
        let mut object = head.object(Vec::new());
        object["usage"] = usage.openai();
        events.send(&object).await?;
    }
    events.done().await
}
