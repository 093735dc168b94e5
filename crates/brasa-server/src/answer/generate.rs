//! Running generations, for every API: several choices at once, read without blocking a thread.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use brasa::engine::EngineError;
use brasa::{FinishReason, Fragment, GenerateOptions, Metrics, Token, TokenStream};

use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::http::pool::{self, Lane};
use crate::models::loaded_text::{LoadedText, Reserved, Task};
use crate::models::presence::Presence;
use crate::models::slots::SlotText;
use crate::state::App;

/// Most choices that one request may have in all.
pub(crate) const MOST_CHOICES: usize = 256;

/// A text to continue, with its options.
pub(crate) struct Prompt {
    /// Token ids of the prompt.
    pub ids: Vec<u32>,
    /// Options of the generation.
    pub options: GenerateOptions,
    /// Parts of the answer that are shown besides its text.
    pub shown: Shown,
}

/// Which parts of an answer are shown besides its text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    /// True if the stop string or stop token that ended the answer is shown.
    pub stop: bool,
    /// True if control tokens are shown as text.
    pub control: bool,
}

/// Generations that belong to one request, in the order of its choices. Dropping them cancels those that still run.
pub(crate) struct Choices {
    choices: Vec<Choice>,
    /// The choice that is polled first. It changes with each poll, so that all choices are treated alike.
    turn: usize,
}

/// An event of one choice.
pub(crate) enum Step {
    /// Tokens, or text that was held back: everything since the last step.
    Fragments(Vec<Fragment>),
    /// A part of the prompt has been computed. Sent on request only.
    Prefill,
    /// The end of the choice.
    End(End),
}

/// The end of a choice.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// The reason of the end.
    pub reason: FinishReason,
    /// The stop string that ended the choice, if one did.
    pub stop: Option<String>,
    /// The token that ended it without being a part of it.
    pub token: Option<Token>,
    /// Times and token counts of the answer.
    pub cost: Metrics,
    /// Slot that the request ran in, if it had one.
    pub slot: Option<usize>,
}

/// One generation.
#[expect(clippy::struct_excessive_bools, reason = "facts about an answer, which are independent")]
struct Choice {
    stream: TokenStream,
    task: Task,
    loaded: Arc<LoadedText>,
    app: App,
    record: Record,
    /// The stop strings of the request.
    stops: Vec<String>,
    started: Instant,
    /// The engine's time from the first token to the last.
    decode_time: Option<Duration>,
    /// True if the answer was ended although the model would go on.
    is_cut: bool,
    /// True if the stop text that ends the answer is still to be shown.
    shows_stop: bool,
    shows_control: bool,
    ended: bool,
    /// An item that the stream yielded after the fragments of the last step, to be handled after them. `Pending` for no item.
    behind: Poll<Option<Result<Fragment, EngineError>>>,
}

impl Choices {
    /// Starts all generations. A generation that names its slot waits until that slot is free.
    ///
    /// # Errors
    ///
    /// 400 for several generations in one slot. The engine's error if it refuses a generation; the others are cancelled then.
    pub async fn start(
        app: &App,
        loaded: &Arc<LoadedText>,
        record: &Record,
        slot: Option<usize>,
        prompts: Vec<Prompt>,
    ) -> Result<Self> {
        record.set("model", loaded.id());
        // The texts have become tokens, which are few bytes.
        record.memory.release();
        let mut reserved = match slot {
            None => None,
            Some(_) if prompts.len() != 1 => {
                let message =
                    format!("`id_slot` names one slot, and the request has {} answers", prompts.len());
                return Err(ApiError::field("id_slot", message));
            }
            Some(slot) => Some(loaded.reserve(slot).await),
        };
        let choices =
            prompts.into_iter().map(|prompt| Choice::start(app, loaded, record, reserved.take(), prompt));
        Ok(Self { choices: choices.collect::<Result<_>>()?, turn: 0 })
    }

    /// The next step of any choice, with the choice's number; `None` when all have ended.
    ///
    /// # Errors
    ///
    /// The error of a choice, once. The choice has ended then.
    pub async fn next(&mut self) -> Option<(usize, Result<Step>)> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The cost of a choice up to its last step.
    pub fn cost(&self, index: usize) -> &Metrics {
        self.choices[index].stream.metrics()
    }

    /// Ends a choice as if the model had ended it. Its last step still follows, perhaps after some others.
    pub fn end(&mut self, index: usize) {
        let choice = &mut self.choices[index];
        choice.is_cut = true;
        choice.stream.cancel();
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<Step>)>> {
        let count = self.choices.len();
        let mut running = false;
        for offset in 0..count {
            let index = (self.turn + offset) % count;
            let choice = &mut self.choices[index];
            if choice.ended {
                continue;
            }
            running = true;
            if let Poll::Ready(step) = choice.poll_next(context) {
                self.turn = index + 1;
                return Poll::Ready(Some((index, step)));
            }
        }
        if running { Poll::Pending } else { Poll::Ready(None) }
    }
}

impl Choice {
    fn start(
        app: &App,
        loaded: &Arc<LoadedText>,
        record: &Record,
        reserved: Option<Reserved>,
        prompt: Prompt,
    ) -> Result<Self> {
        let Prompt { ids, options, shown } = prompt;
        let kept = app.options.slot_save_path.is_some();
        let text = kept.then(|| SlotText { tokens: ids.clone(), scope: options.request.cache_scope });
        let warnings = options.mask.as_ref().map_or(&[][..], |mask| mask.warnings());
        if !warnings.is_empty() {
            record.set("warnings", warnings.to_vec());
        }
        let mut task = loaded.begin(ids.len(), options.max_tokens, text, reserved);
        let model = &loaded.model;
        let stream = if shown.control {
            model.generate_ids_shown(ids, &options)
        } else {
            model.generate_ids(ids, &options)
        };
        let stream = stream.inspect_err(|error| {
            task.leave_text();
            if let brasa::Error::Engine(error) = error {
                saw_error(app, &loaded.presence, error);
            }
        })?;
        Ok(Self {
            stream,
            task,
            loaded: Arc::clone(loaded),
            app: Arc::clone(app),
            record: record.clone(),
            stops: options.stop_strings,
            started: Instant::now(),
            decode_time: None,
            is_cut: false,
            shows_stop: shown.stop,
            shows_control: shown.control,
            ended: false,
            behind: Poll::Pending,
        })
    }

    /// Polls for the next step. Tokens that already wait are joined, so that a client gets them in one event.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Step>> {
        let mut fragments = Vec::new();
        loop {
            let come = match std::mem::replace(&mut self.behind, Poll::Pending) {
                Poll::Pending => self.stream.poll_next(context),
                come @ Poll::Ready(_) => come,
            };
            match come {
                Poll::Ready(Some(Ok(fragment))) if fragment != Fragment::default() => {
                    if let Some(token) = &fragment.token {
                        self.saw_token(token.id);
                    }
                    fragments.push(fragment);
                }
                come if fragments.is_empty() => return come.map(|come| self.step(come)),
                come => {
                    self.behind = come;
                    return Poll::Ready(Ok(Step::Fragments(fragments)));
                }
            }
        }
    }

    /// Handles an item of the stream that is not a fragment: the end, an error, or nothing yet.
    fn step(&mut self, come: Option<Result<Fragment, EngineError>>) -> Result<Step> {
        match come {
            Some(Ok(_)) => Ok(Step::Prefill),
            Some(Err(error)) => {
                self.ended = true;
                saw_error(&self.app, &self.loaded.presence, &error);
                self.saw_end("error");
                Err(error.into())
            }
            None => {
                let reason = match self.stream.finish_reason().unwrap_or(FinishReason::Cancelled) {
                    _ if self.is_cut => FinishReason::End,
                    reason => reason,
                };
                if std::mem::take(&mut self.shows_stop)
                    && let Some(text) = self.stop_text(reason)
                {
                    self.behind = Poll::Ready(None);
                    return Ok(Step::Fragments(vec![Fragment { text, ..Fragment::default() }]));
                }
                self.ended = true;
                self.saw_end(finish_name(reason));
                let stop = match reason {
                    FinishReason::Text(place) => self.stops.get(place).cloned(),
                    _ => None,
                };
                let (cost, slot) = (*self.stream.metrics(), self.task.slot());
                let token = self.stream.end_token().cloned();
                Ok(Step::End(End { reason, stop, token, cost, slot }))
            }
        }
    }

    /// The stop string or the text of the stop id that ended the answer; `None` for another end.
    fn stop_text(&self, reason: FinishReason) -> Option<String> {
        match reason {
            FinishReason::Text(place) => self.stops.get(place).cloned(),
            FinishReason::Id(id) => self.loaded.model.tokenizer().decode(&[id], !self.shows_control).ok(),
            _ => None,
        }
    }

    fn saw_token(&mut self, id: u32) {
        let now = self.stream.metrics().decode_time;
        if let Some(last) = self.decode_time.replace(now) {
            self.app.metrics.saw_gap(self.loaded.id(), now.saturating_sub(last));
        }
        self.task.saw_token(id);
    }

    fn saw_end(&self, reason: &'static str) {
        let cost = self.stream.metrics();
        self.app.metrics.saw_end(self.loaded.id(), reason, cost, self.started.elapsed());
        self.record.set("prompt_tokens", cost.prompt_tokens);
        self.record.set("cached_tokens", cost.cached_tokens);
        self.record.set("completion_tokens", cost.generated_tokens);
        self.record.set("first_token_ms", (cost.first_token_time.as_secs_f64() * 1e4).round() / 10.0);
        self.record.set("finish", reason);
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        if !self.ended {
            self.saw_end("cancelled");
        }
    }
}

/// Records an error of a model's engine. If the engine has failed for good, the model is loaded again, without waiting for a
/// request.
pub(crate) fn saw_error(app: &App, presence: &Presence, error: &EngineError) {
    presence.saw_error(error);
    if presence.is_closed() {
        app.registry.revive(&presence.id);
    }
}

/// The reason of an end as OpenAI names it.
pub(crate) fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length | FinishReason::ContextFull => "length",
        FinishReason::Cancelled => "cancelled",
        _ => "stop",
    }
}

/// All results of a batch, within the time limit of a request. `poll_next` polls for the next result. Dropping the future drops
/// the batch, which cancels its running requests.
///
/// # Errors
///
/// The first error of a result; [`EngineError::DeadlineExceeded`].
pub(crate) async fn in_time<T>(
    app: &App,
    presence: &Presence,
    mut poll_next: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<T, brasa::Error>>>,
) -> Result<Vec<T>> {
    let all = async {
        let mut results = Vec::new();
        while let Some(result) = poll_fn(&mut poll_next).await {
            results.push(result.inspect_err(|error| {
                if let brasa::Error::Engine(error) = error {
                    saw_error(app, presence, error);
                }
            })?);
        }
        Ok(results)
    };
    match tokio::time::timeout(app.options.request_timeout, all).await {
        Ok(results) => results,
        Err(_) => Err(EngineError::DeadlineExceeded { tokens: 0 }.into()),
    }
}

/// Runs blocking work, such as rendering a template, on a thread of its lane.
///
/// # Errors
///
/// The error of the work. A panic of the work is an internal error of this request alone.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    pool::blocking(Lane::Texts, work).await
}
