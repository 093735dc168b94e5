//! One generation on its way from prompt to last token.

use std::time::Instant;

use brasa_graph::chain::Flow;
use brasa_graph::sampling::{Draw, DrawRules, SamplingError, TokenMask};
use brasa_graph::step::PAGE_POSITIONS;

use crate::command::Job;
use crate::delivery::{Delivery, Event};
use crate::executor::{Executor, SequenceChain};
use crate::sequence::Sequence;
use crate::stop::StopMatcher;
use crate::{
    ContextPolicy, EngineError, FinishReason, Fragment, GenerateOptions, Metrics, SessionId, TextDecoder,
    Token,
};

/// A request being served.
pub(crate) struct Generation {
    sequence: Sequence,
    session: Option<SessionId>,
    /// Prompt and generated tokens; the tokens that `sequence` does not hold are still to be computed.
    tokens: Vec<u32>,
    rules: DrawRules,
    mask: Option<Box<dyn TokenMask>>,
    answer: Answer,
    /// True once the prompt's pages have been offered to later texts.
    kept: bool,
}

/// The way of drawn tokens to the reader.
pub(crate) struct Answer {
    options: GenerateOptions,
    decoder: Box<dyn TextDecoder>,
    stops: StopMatcher,
    delivery: Delivery,
    submitted: Instant,
    started: Instant,
    first_token: Option<Instant>,
    metrics: Metrics,
    /// Positions of the context, and tokens that may be generated before it is full.
    context: usize,
    room: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// The text has filled the context and must be shortened.
    Full,
    Finished,
}

impl Generation {
    /// Takes `sequence` back to the beginning that it shares with the prompt, and begins from there.
    ///
    /// If that is impossible, the reader gets the error, and the sequence comes back.
    pub(crate) fn start(
        job: Job,
        mut sequence: Sequence,
        executor: &mut Executor,
    ) -> Result<Self, (Sequence, Option<SessionId>)> {
        let Job { request, delivery, submitted } = job;
        let rules = match DrawRules::new(request.options.sampling.clone()) {
            Ok(rules) => rules.with_ends(request.options.stop_ids.clone(), request.prompt.len() as u32),
            Err(error) => {
                delivery.end(Event::Failed(error.into(), Metrics::default()));
                return Err((sequence, request.session));
            }
        };
        // The last token is always computed: its logits decide the next one.
        let reusable = &request.prompt[..request.prompt.len() - 1];
        let cached_tokens = executor.resume(&mut sequence, request.options.cache_scope, reusable);
        let started = Instant::now();
        let metrics = Metrics {
            prompt_tokens: request.prompt.len(),
            cached_tokens,
            queue_time: started - submitted,
            ..Metrics::default()
        };
        let stop_strings =
            if request.options.ignore_eos { Vec::new() } else { request.options.stop_strings.clone() };
        let mut answer = Answer {
            context: executor.context(),
            room: executor.context() + 1 - request.prompt.len(),
            decoder: request.decoder,
            stops: StopMatcher::new(stop_strings),
            options: request.options,
            delivery,
            submitted,
            started,
            first_token: None,
            metrics,
            state: State::Running,
        };
        if answer.options.max_tokens == Some(0) {
            answer.end(FinishReason::Length);
        }
        Ok(Self {
            sequence,
            session: request.session,
            tokens: request.prompt,
            rules,
            mask: request.mask,
            answer,
            kept: false,
        })
    }

    /// Tokens that are still to be computed.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.sequence.tokens().len()..]
    }

    /// True if a grammar decides which tokens may come.
    pub(crate) fn is_masked(&self) -> bool {
        self.mask.is_some()
    }

    /// Makes the next `rows` positions writable.
    ///
    /// # Errors
    ///
    /// The errors of [`Executor::prepare`].
    pub(crate) fn prepare(&mut self, rows: usize, executor: &mut Executor) -> Result<(), EngineError> {
        executor.prepare(&mut self.sequence, rows)
    }

    /// The part of a chain that begins with the next `rows` tokens and draws up to `limit`, and the receiver of its tokens.
    pub(crate) fn chain(&mut self, rows: usize, limit: usize) -> (SequenceChain<'_>, &mut Answer) {
        let Self { sequence, tokens, rules, mask, answer, .. } = self;
        // Counted from the first prompt token even if the context has slid since: noise must not repeat.
        let position = (answer.metrics.prompt_tokens + answer.metrics.generated_tokens) as u32;
        let mask = mask.as_mut().map(|mask| &mut **mask as &mut dyn TokenMask);
        let stops = if answer.options.ignore_eos { &[] } else { rules.end_ids() };
        let limit = limit.min(answer.left());
        (SequenceChain { sequence, tokens, rows, rules, position, limit, stops, mask }, answer)
    }

    /// True if nothing more is to be done.
    pub(crate) fn is_finished(&self) -> bool {
        self.answer.state == State::Finished
    }

    /// True if the reader must read before the generation goes on.
    pub(crate) fn is_behind(&self) -> bool {
        self.answer.delivery.is_behind()
    }

    /// Gives back all pages; their keys and values are computed again when the generation goes on.
    pub(crate) fn give_pages_back(&mut self, executor: &mut Executor) {
        executor.truncate(&mut self.sequence, 0);
    }

    /// True if the generation holds pages.
    pub(crate) fn holds_pages(&self) -> bool {
        !self.sequence.tokens().is_empty()
    }

    /// True if the text must be shortened before it can go on.
    pub(crate) fn is_full(&self) -> bool {
        self.answer.state == State::Full
    }

    /// Offers the pages of the prompt to later texts, once it has been computed.
    pub(crate) fn keep_prompt(&mut self, executor: &mut Executor) {
        if !self.kept && self.answer.first_token.is_some() {
            executor.keep(&self.sequence);
            self.kept = true;
        }
    }

    /// Ends if cancelled or late.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.answer.expire(now);
    }

    /// Ends with an error.
    pub(crate) fn fail(&mut self, error: EngineError) {
        self.answer.fail(error);
    }

    /// Drops the older half of the droppable tokens: whole pages if the device can move the others; exactly half if it
    /// cannot, and the others are computed afresh.
    pub(crate) fn slide(&mut self, executor: &mut Executor) {
        let context = self.answer.context;
        let ContextPolicy::Slide { keep } = self.answer.options.context_policy else { return };
        let droppable = self.tokens.len().saturating_sub(keep);
        if droppable < 2 {
            return self.answer.fail(EngineError::ContextFull { context });
        }
        let first = keep.div_ceil(PAGE_POSITIONS);
        let pages = (self.sequence.tokens().len() / PAGE_POSITIONS).saturating_sub(first).div_ceil(2);
        if pages > 0 && executor.shift(&mut self.sequence, first..first + pages) {
            self.tokens.drain(first * PAGE_POSITIONS..(first + pages) * PAGE_POSITIONS);
        } else {
            executor.truncate(&mut self.sequence, keep);
            self.tokens.drain(keep..keep + droppable.div_ceil(2));
        }
        self.answer.room = context + 1 - self.tokens.len();
        self.answer.state = State::Running;
    }

    /// The sequence, for its session or for release.
    pub(crate) fn into_sequence(self) -> (Sequence, Option<SessionId>) {
        (self.sequence, self.session)
    }
}

impl Answer {
    /// Ends if cancelled or late.
    fn expire(&mut self, now: Instant) {
        if self.state == State::Finished {
        } else if self.delivery.is_cancelled() {
            self.end(FinishReason::Cancelled);
        } else if self.options.deadline.is_some_and(|deadline| deadline <= now) {
            self.fail(EngineError::DeadlineExceeded { tokens: self.metrics.generated_tokens });
        }
    }

    /// Tokens that may still be generated, at least 1 while the generation runs.
    fn left(&self) -> usize {
        let wanted = self.options.max_tokens.unwrap_or(usize::MAX);
        wanted.saturating_sub(self.metrics.generated_tokens).min(self.room)
    }

    /// Hands out the token that was drawn; says whether to go on.
    pub(crate) fn take(&mut self, drawn: Result<Draw, SamplingError>) -> Flow {
        let now = Instant::now();
        match drawn {
            Ok(draw) => self.hand_out(draw, now),
            Err(error) => self.fail(error.into()),
        }
        self.expire(now);
        if self.state == State::Running && !self.delivery.is_behind() {
            Flow::Continue
        } else {
            Flow::StopRow
        }
    }

    fn hand_out(&mut self, draw: Draw, now: Instant) {
        match self.first_token {
            None => {
                self.first_token = Some(now);
                self.metrics.prefill_time = now - self.started;
                self.metrics.first_token_time = now - self.submitted;
            }
            Some(first) => self.metrics.decode_time = now - first,
        }
        if !self.options.ignore_eos && self.options.stop_ids.contains(&draw.token) {
            return self.end(FinishReason::Stop);
        }
        let (mut text, stopped) = self.stops.push(&self.decoder.push(draw.token));
        self.metrics.generated_tokens += 1;
        self.room -= 1;
        let end = self.end_after_token(stopped);
        if end.is_some() && !stopped {
            // The last token takes the text along that was held back.
            text.push_str(&self.held_back());
        }
        let token = Token { id: draw.token, logprob: draw.logprob, top: draw.top };
        self.delivery.send(Fragment { text, token: Some(token) });
        match end {
            Some(end) => self.close(end),
            None if self.room == 0 => self.state = State::Full,
            None => {}
        }
    }

    /// How the generation ends with the token that has just been counted; `None` if it goes on.
    fn end_after_token(&self, stopped: bool) -> Option<Result<FinishReason, EngineError>> {
        if stopped {
            return Some(Ok(FinishReason::Stop));
        }
        if Some(self.metrics.generated_tokens) == self.options.max_tokens {
            return Some(Ok(FinishReason::Length));
        }
        match self.options.context_policy {
            _ if self.room > 0 => None,
            ContextPolicy::Error => Some(Err(EngineError::ContextFull { context: self.context })),
            ContextPolicy::Stop => Some(Ok(FinishReason::ContextFull)),
            ContextPolicy::Slide { .. } => None,
        }
    }

    /// Ends with an error, after the text so far.
    fn fail(&mut self, error: EngineError) {
        self.end_without_token(Err(error));
    }

    /// Ends without a further token; text that was held back comes out.
    fn end(&mut self, reason: FinishReason) {
        self.end_without_token(Ok(reason));
    }

    fn end_without_token(&mut self, end: Result<FinishReason, EngineError>) {
        let text = self.held_back();
        if !text.is_empty() {
            self.delivery.send(Fragment { text, token: None });
        }
        self.close(end);
    }

    /// Text of an incomplete character or a possible stop string, now that no more comes.
    fn held_back(&mut self) -> String {
        let rest = self.decoder.finish();
        let (mut text, stopped) = self.stops.push(&rest);
        if !stopped {
            text.push_str(&self.stops.finish());
        }
        text
    }

    fn close(&mut self, end: Result<FinishReason, EngineError>) {
        self.delivery.end(match end {
            Ok(reason) => Event::Done(reason, self.metrics),
            Err(error) => Event::Failed(error, self.metrics),
        });
        self.state = State::Finished;
    }
}
