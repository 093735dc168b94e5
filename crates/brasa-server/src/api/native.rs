//! llama.cpp's own forms: `/completion` and `/infill`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use brasa::sampling::{Distribution, Logprobs};
use brasa::tokenizer::AddSpecial;
use brasa::{FinishReason, Fragment, GenerateOptions, Model};
use serde_json::{Value, json};

use crate::answer::generate::{Choices, End, MOST_CHOICES, Prompt, Shown, Step};
use crate::answer::logprobs::native_form;
use crate::answer::usage::{Telling, progress, timings};
use crate::api::native_end::EarlyEnd;
use crate::api::{finish_fields, slots};
use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::http::pool::{self, Lane};
use crate::http::{reply, sse};
use crate::models::loaded_text::LoadedText;
use crate::request::constraint::Constraint;
use crate::request::fields::{Fields, Limit};
use crate::request::fill::Fill;
use crate::request::{prompt, sampling, token_limits};
use crate::state::App;

/// Most names in `response_fields`.
const MOST_WANTED: usize = 64;

/// Handles `/completion`: continues raw texts.
pub(crate) async fn complete(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let prompt = fields.value("prompt").ok_or_else(|| fields.missing("prompt"))?;
    let is_list = matches!(&prompt, Value::Array(items) if !items.iter().any(Value::is_number));
    let mut wishes = Wishes::read(&mut fields, &app, &loaded)?;
    finish_fields(&app, &mut fields)?;
    let model = loaded.model.clone();
    let (wishes, prompts) = pool::blocking(wishes.lane(), move || {
        wishes.compile(&model)?;
        Ok((wishes, prompt::read("prompt", prompt, &model, AddSpecial::AsModel, MOST_CHOICES)?))
    })
    .await?;
    answer(&app, loaded, &record, wishes, prompts, is_list).await
}

/// Handles `/infill`: fills a gap in a text.
pub(crate) async fn infill(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let before: String = fields.required("input_prefix")?;
    let after: String = fields.required("input_suffix")?;
    let begun: String = fields.optional("prompt")?.unwrap_or_default();
    let extra: Vec<Value> = fields.optional("input_extra")?.unwrap_or_default();
    let extra = extra.iter().enumerate().map(|(at, file)| {
        // Editors say when they saw the text.
        fields.see_inside(&format!("input_extra[{at}]"), file, &["text", "filename", "time"]);
        let text = file["text"].as_str().ok_or_else(|| {
            let name = format!("input_extra[{at}].text");
            ApiError::field(&name, format!("`{name}` is missing"))
        })?;
        Ok((file["filename"].as_str().unwrap_or("file").to_owned(), text.to_owned()))
    });
    let extra = extra.collect::<Result<Vec<_>>>()?;
    let mut wishes = Wishes::read(&mut fields, &app, &loaded)?;
    finish_fields(&app, &mut fields)?;
    let model = loaded.model.clone();
    let (wishes, prompt) = pool::blocking(wishes.lane(), move || {
        wishes.compile(&model)?;
        let fill = Fill { before: &before, after: &after, extra: &extra, begun: &begun };
        Ok((wishes, fill.encode(&model)?))
    })
    .await?;
    answer(&app, loaded, &record, wishes, vec![prompt], false).await
}

/// The settings of a request besides its prompt.
struct Wishes {
    options: GenerateOptions,
    constraint: Option<Constraint>,
    /// The slot that the request names, if any.
    slot: Option<usize>,
    stream: bool,
    with_tokens: bool,
    /// `None` for no probabilities; true for those of the distribution that tokens were drawn from, false for the model's own.
    with_logprobs: Option<bool>,
    telling: Telling,
    early_end: EarlyEnd,
    /// The requested fields of the answer, as paths with `/`; empty for all fields.
    wanted: Vec<String>,
}

impl Wishes {
    /// The lane of blocking work that these settings need.
    fn lane(&self) -> Lane {
        if self.constraint.is_some() { Lane::Grammars } else { Lane::Texts }
    }

    fn read(fields: &mut Fields, app: &App, loaded: &LoadedText) -> Result<Self> {
        let early_end = EarlyEnd::read(fields)?;
        let mut options = sampling::options(fields, app, &loaded.model)?;
        let limit = fields.first_limit(&["n_predict", "max_completion_tokens", "max_tokens"])?;
        options.max_tokens = limit.map_or(app.options.default_max_tokens, Limit::tokens);
        let most = sampling::MOST_TOP_LOGPROBS;
        let (n_probs, logprobs) = (fields.count("n_probs", 0, most)?, fields.count("logprobs", 0, most)?);
        let top = n_probs.or(logprobs).unwrap_or(0);
        let is_final = fields.switch("post_sampling_probs")?.unwrap_or(false);
        if top > 0 {
            let of = if is_final { Distribution::Final } else { Distribution::Raw };
            options.sampling.logprobs = Some(Logprobs { top, of });
        }
        let wanted: Vec<String> = fields.optional("response_fields")?.unwrap_or_default();
        if wanted.len() > MOST_WANTED {
            let message =
                format!("`response_fields` has {} fields, at most {MOST_WANTED} are possible", wanted.len());
            return Err(ApiError::field("response_fields", message));
        }
        let stream = fields.switch("stream")?.unwrap_or(false);
        if let Some(options) = fields.value("stream_options") {
            // The end of a stream counts its tokens anyway.
            fields.inside("stream_options", options)?.switch("include_usage")?;
        }
        let telling = Telling::read(fields)?;
        options.report_prefill = telling.progress && stream;
        Ok(Self {
            options,
            constraint: Constraint::read(fields, None)?,
            slot: slots::named(fields, app, loaded)?,
            stream,
            telling,
            with_tokens: fields.switch("return_tokens")?.unwrap_or(false),
            with_logprobs: (top > 0).then_some(is_final),
            early_end,
            wanted,
        })
    }

    /// Compiles the grammar. Blocks.
    fn compile(&mut self, model: &Model) -> Result<()> {
        let mask = self.constraint.take().map(|constraint| constraint.compile(model)).transpose()?;
        self.options.mask = token_limits::both(self.options.mask.take(), mask);
        Ok(())
    }
}

/// The fields that all parts of an answer have in common.
struct Head {
    loaded: Arc<LoadedText>,
    settings: Value,
    with_tokens: bool,
    /// `None` for no probabilities; true for those of the distribution that tokens were drawn from, false for the model's own.
    with_logprobs: Option<bool>,
    telling: Telling,
    wanted: Vec<String>,
}

/// A text that is being written.
#[derive(Clone, Default)]
struct Text {
    content: String,
    ids: Vec<u32>,
    probabilities: Vec<Value>,
    early_end: EarlyEnd,
    /// True once the text has ended early.
    is_cut: bool,
}

async fn answer(
    app: &App,
    loaded: Arc<LoadedText>,
    record: &Record,
    wishes: Wishes,
    prompts: Vec<Vec<u32>>,
    is_list: bool,
) -> Result<Response> {
    let Wishes { options, slot, stream, with_tokens, with_logprobs, telling, early_end, wanted, .. } = wishes;
    let settings = settings(&loaded.model, &options, stream);
    let mut texts = vec![Text { early_end, ..Text::default() }; prompts.len()];
    let jobs =
        prompts.into_iter().map(|ids| Prompt { ids, options: options.clone(), shown: Shown::default() });
    let mut running = Choices::start(app, &loaded, record, slot, jobs.collect()).await?;
    let head = Head { loaded, settings, with_tokens, with_logprobs, telling, wanted };
    if stream {
        record.set("stream", true);
        let (events, response) = sse::stream(sse::Pings::Comment, app.options.ping_every);
        sse::spawn(events, |events| stream_texts(events, head, running, texts));
        return Ok(response);
    }
    let mut answers = vec![Value::Null; texts.len()];
    while let Some((index, step)) = running.next().await {
        match step? {
            Step::Fragments(fragments) => head.take(&mut texts[index], fragments, &mut running, index),
            Step::Prefill => {}
            Step::End(end) => answers[index] = head.last(index, &mut texts[index], &end),
        }
    }
    let answer = if is_list { Value::Array(answers) } else { answers.swap_remove(0) };
    Ok(reply::ok(&answer))
}

async fn stream_texts(
    events: Arc<sse::Events>,
    head: Head,
    mut running: Choices,
    mut texts: Vec<Text>,
) -> Result<(), sse::Gone> {
    while let Some((index, step)) = sse::unless_gone(&events, running.next()).await? {
        let text = &mut texts[index];
        match step {
            Ok(Step::Fragments(fragments)) => {
                head.take(text, fragments, &mut running, index);
                if !text.content.is_empty() {
                    let mut part = head.part(index, text);
                    let cost = running.cost(index);
                    part["tokens_predicted"] = cost.generated_tokens.into();
                    part["tokens_evaluated"] = cost.prompt_tokens.into();
                    head.telling.add_timings(&mut part, running.cost(index));
                    events.send(&part).await?;
                }
            }
            Ok(Step::Prefill) => {
                let mut part = head.part(index, &mut Text::default());
                part["prompt_progress"] = progress(running.cost(index));
                head.telling.add_timings(&mut part, running.cost(index));
                events.send(&part).await?;
            }
            Ok(Step::End(end)) => {
                events.send(&head.last(index, text, &end)).await?;
            }
            Err(error) => return events.send(&error.body()).await,
        }
    }
    Ok(())
}

impl Head {
    /// Adds fragments to a text. Ends the choice if the text ends early with one of them.
    fn take(&self, text: &mut Text, fragments: Vec<Fragment>, running: &mut Choices, index: usize) {
        for fragment in fragments {
            if text.is_cut {
                return;
            }
            let (more, is_cut) = text.early_end.take(&fragment.text, running.cost(index).decode_time);
            text.content += more;
            text.is_cut = is_cut;
            if is_cut {
                running.end(index);
            }
            if let Some(token) = &fragment.token {
                if self.with_tokens {
                    text.ids.push(token.id);
                }
                if let Some(is_final) = self.with_logprobs {
                    text.probabilities.push(native_form(&self.loaded.model, token, is_final));
                }
            }
        }
    }

    /// The next part of a stream: the text since the last part.
    fn part(&self, index: usize, text: &mut Text) -> Value {
        let (content, ids) = (std::mem::take(&mut text.content), std::mem::take(&mut text.ids));
        let mut part = json!({"index": index, "content": content, "tokens": ids, "stop": false});
        if self.with_logprobs.is_some() {
            part["completion_probabilities"] = std::mem::take(&mut text.probabilities).into();
        }
        part
    }

    fn last(&self, index: usize, text: &mut Text, end: &End) -> Value {
        let stop_type = match (end.reason, &end.stop) {
            _ if text.is_cut => "limit",
            (FinishReason::Text(_), _) => "word",
            (FinishReason::End | FinishReason::Id(_), _) => "eos",
            (FinishReason::Cancelled, _) => "none",
            _ => "limit",
        };
        let mut last = self.part(index, text);
        // llama.cpp's sign for none.
        last["id_slot"] = end.slot.map_or(json!(-1), |slot| json!(slot));
        last["stop"] = true.into();
        last["model"] = self.loaded.id().into();
        last["tokens_predicted"] = end.cost.generated_tokens.into();
        last["tokens_evaluated"] = end.cost.prompt_tokens.into();
        last["tokens_cached"] = end.cost.cached_tokens.into();
        last["generation_settings"] = self.settings.clone();
        last["truncated"] = false.into();
        last["stop_type"] = stop_type.into();
        last["stopping_word"] = end.stop.clone().unwrap_or_default().into();
        last["timings"] = timings(&end.cost);
        if self.wanted.is_empty() {
            return last;
        }
        let field = |path: &String| {
            let value = path.split('/').try_fold(&last, |inner, name| inner.get(name))?;
            Some((path.clone(), value.clone()))
        };
        Value::Object(self.wanted.iter().filter_map(field).collect())
    }
}

/// The options of a generation under llama.cpp's names.
pub(crate) fn settings(model: &Model, options: &GenerateOptions, stream: bool) -> Value {
    let sampling = &options.sampling;
    json!({
        "n_ctx": model.context(),
        "n_predict": options.max_tokens.map_or(json!(-1), |tokens| json!(tokens)),
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "top_n_sigma": sampling.top_n_sigma,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "dynatemp_range": sampling.dynatemp_range,
        "dynatemp_exponent": sampling.dynatemp_exponent,
        "dry_multiplier": sampling.dry.multiplier,
        "dry_base": sampling.dry.base,
        "dry_allowed_length": sampling.dry.allowed_length,
        "dry_penalty_last_n": sampling.dry.last_n.map_or(json!(-1), |tokens| json!(tokens)),
        "repeat_penalty": sampling.repeat_penalty,
        "repeat_last_n": sampling.repeat_last_n.map_or(json!(-1), |tokens| json!(tokens)),
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "samplers": sampling.order.stages().iter().map(|stage| stage.name()).collect::<Value>(),
        "ignore_eos": options.ignore_eos,
        "stop": options.stop_strings,
        "stream": stream,
    })
}
