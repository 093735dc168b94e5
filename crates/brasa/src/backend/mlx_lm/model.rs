//! A model that a Python process runs, and its streams.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brasa_engine::EngineError;
use serde_json::Value;

use super::options;
use super::process::{Guard, Process};
use super::protocol::{Ended, Event, NAME};
use crate::{
    BackendError, BatchAnswer, Class, ClassifyOptions, ContextPolicy, Error, FinishReason, Fragment,
    GenerateOptions, Message, Metrics, ModelInfo, TextModel, TextStream, Token,
};

/// A model that runs in a process of its own.
pub(super) struct MlxLmModel(Arc<Shared>);

/// State that a model and its stream share.
struct Shared {
    state: Mutex<State>,
    /// The process, to kill it while a stream uses it.
    child: Arc<Guard>,
    info: ModelInfo,
    context: usize,
    silence_limit: Duration,
    latest: Mutex<Metrics>,
}

/// The process and its present user. One stream at a time uses it.
enum State {
    Idle(Process),
    Busy,
    /// The process was lost.
    Dead(BackendError),
    Closed,
}

impl MlxLmModel {
    pub(super) fn new(process: Process, info: ModelInfo, context: usize, silence_limit: Duration) -> Self {
        Self(Arc::new(Shared {
            child: Arc::clone(process.child()),
            state: Mutex::new(State::Idle(process)),
            info,
            context,
            silence_limit,
            latest: Mutex::default(),
        }))
    }

    fn start(
        &self,
        command: &'static str,
        (key, text): (&str, Value),
        options: &GenerateOptions,
    ) -> Result<Box<dyn TextStream>, Error> {
        let mut fields = options::fields(options, self.0.context)?;
        fields.insert(key.into(), text);
        let mut process = self.0.take()?;
        let id = process.send(command, fields);
        Ok(Box::new(MlxLmStream {
            model: Arc::clone(&self.0),
            process: Some(process),
            command,
            id,
            deadline: options.request.deadline,
            context_policy: options.context_policy,
            begun: Instant::now(),
            prefill_begun: None,
            finish: None,
            metrics: Metrics::default(),
        }))
    }
}

impl TextModel for MlxLmModel {
    fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Box<dyn TextStream>, Error> {
        self.start("generate", ("prompt", prompt.into()), options)
    }

    fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<Box<dyn TextStream>, Error> {
        let messages = serde_json::to_value(messages)
            .map_err(|error| Error::Options(format!("the messages are no JSON: {error}")))?;
        self.start("chat", ("messages", messages), options)
    }

    fn classify(&self, _: &[&str], _: &ClassifyOptions) -> Result<Vec<Result<Class, Error>>, Error> {
        Err(native_only("classify"))
    }

    fn batch_generate(
        &self,
        _: &[&str],
        _: &GenerateOptions,
    ) -> Result<Vec<Result<BatchAnswer, Error>>, Error> {
        Err(native_only("batch_generate"))
    }

    fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    fn metrics(&self) -> Metrics {
        *self.0.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let before = std::mem::replace(&mut *self.0.state(), State::Closed);
        match before {
            State::Idle(process) => process.quit(),
            // Its stream then sees the end of the process.
            State::Busy => self.0.child.kill(),
            State::Dead(_) | State::Closed => {}
        }
    }
}

fn native_only(what: &str) -> Error {
    let hint = "load the model with a native backend: `cpu` or `cuda`";
    BackendError::Unsupported { backend: NAME, what: what.into(), hint }.into()
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the process for a stream.
    fn take(&self) -> Result<Process, Error> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Busy) {
            State::Idle(process) => Ok(process),
            other => {
                let error = match &other {
                    State::Dead(error) => error.clone().into(),
                    State::Closed => EngineError::Closed.into(),
                    State::Idle(_) | State::Busy => BackendError::Busy { backend: NAME }.into(),
                };
                *state = other;
                Err(error)
            }
        }
    }

    /// Sets the state to `after` when a stream ends, unless the model was closed meanwhile. Returns false if it was closed.
    fn leave(&self, after: State) -> bool {
        let mut state = self.state();
        if matches!(*state, State::Closed) {
            return false;
        }
        *state = after;
        true
    }
}

/// The text of one generation of the process.
struct MlxLmStream {
    model: Arc<Shared>,
    /// The process; `None` once the stream has ended.
    process: Option<Process>,
    command: &'static str,
    id: u64,
    deadline: Option<Instant>,
    context_policy: ContextPolicy,
    begun: Instant,
    /// When the prompt's tokens were known.
    prefill_begun: Option<Instant>,
    finish: Option<FinishReason>,
    metrics: Metrics,
}

impl MlxLmStream {
    /// Waits for the next piece of text; `None` at the end.
    fn advance(&mut self) -> Result<Option<Fragment>, Error> {
        while let Some(process) = &self.process {
            let limit = self.model.silence_limit;
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let received = match left {
                // Behind the deadline no more is read, even if it is there.
                Some(Duration::ZERO) => Ok(None),
                Some(left) => process.receive(self.id, left.min(limit)),
                None => process.receive(self.id, limit),
            };
            let event = match received {
                Ok(Some(event)) => event,
                Ok(None) if left.is_some_and(|left| left < limit) => {
                    let tokens = self.metrics.generated_tokens;
                    self.give_up();
                    return Err(EngineError::DeadlineExceeded { tokens }.into());
                }
                Ok(None) => return Err(self.lose(process.late(self.command, limit))),
                Err(error) => return Err(self.lose(error)),
            };
            match event {
                Event::Prefilled => {}
                Event::Prompt(tokens) => {
                    self.metrics.prompt_tokens = tokens;
                    self.prefill_begun = Some(Instant::now());
                    let context = self.model.context;
                    let refused = match tokens {
                        0 => Some(EngineError::EmptyPrompt),
                        _ if tokens > context => Some(EngineError::PromptTooLong { tokens, context }),
                        _ => None,
                    };
                    if let Some(error) = refused {
                        self.give_up();
                        return Err(error.into());
                    }
                }
                Event::Token { text, id } => {
                    if id.is_some() {
                        self.count_token();
                    }
                    let token = id.map(|id| Token { id, ..Token::default() });
                    return Ok(Some(Fragment { text, token }));
                }
                Event::End(ended) => {
                    self.put_back();
                    self.finish = Some(match ended {
                        Ended::Stop => FinishReason::End,
                        Ended::Length => FinishReason::Length,
                        Ended::Cancelled => FinishReason::Cancelled,
                        Ended::Context => options::context_full(self.context_policy, self.model.context)?,
                    });
                }
                Event::Failed(message) => {
                    self.put_back();
                    return Err(BackendError::Failed { backend: NAME, message }.into());
                }
                Event::Done(results) => return Err(self.lose(process.confused(&results))),
            }
        }
        Ok(None)
    }

    fn count_token(&mut self) {
        let now = Instant::now();
        let metrics = &mut self.metrics;
        if metrics.generated_tokens == 0 {
            metrics.first_token_time = now - self.begun;
            metrics.prefill_time = self.prefill_begun.map_or(Duration::ZERO, |begun| now - begun);
        }
        metrics.generated_tokens += 1;
        metrics.decode_time = (now - self.begun).saturating_sub(metrics.first_token_time);
    }

    /// Cancels the running generation and gives the process back to the model. The next stream skips the rest of this stream's
    /// text.
    fn give_up(&mut self) {
        if let Some(process) = &self.process {
            process.requests().cancel(self.id);
        }
        self.put_back();
    }

    fn put_back(&mut self) {
        if let Some(process) = self.process.take() {
            *self.model.latest.lock().unwrap_or_else(PoisonError::into_inner) = self.metrics;
            self.model.leave(State::Idle(process));
        }
    }

    /// Gives up a lost process. Returns `error`, or `Closed` if the process ended because the model was closed.
    fn lose(&mut self, error: BackendError) -> Error {
        self.process = None;
        if self.model.leave(State::Dead(error.clone())) { error.into() } else { EngineError::Closed.into() }
    }
}

impl Iterator for MlxLmStream {
    type Item = Result<Fragment, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

impl TextStream for MlxLmStream {
    fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn canceller(&self) -> Box<dyn Fn() + Send + Sync> {
        let running = self.process.as_ref().map(|process| (process.requests().clone(), self.id));
        Box::new(move || {
            if let Some((requests, id)) = &running {
                requests.cancel(*id);
            }
        })
    }
}

impl Drop for MlxLmStream {
    fn drop(&mut self) {
        self.give_up();
    }
}
