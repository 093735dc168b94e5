//! One generation on its way from prompt to last token.

use std::time::Instant;

use brasa_graph::chain::Flow;
use brasa_graph::sampling::{Draw, DrawRules, SamplingError, TokenMask};
use brasa_graph::step::PAGE_POSITIONS;

use crate::command::Job;
use crate::delivery::{Delivery, Event};
use crate::executor::{Executor, SequenceChain};
use crate::outlook::Outlook;
use crate::queue::QueuePlace;
use crate::schedule::{Active, Candidate, Standing};
use crate::sequence::{Sequence, common_tokens};
use crate::stop::StopMatcher;
use crate::{
    CacheScope, ContextPolicy, EngineError, FinishReason, Fragment, GenerateOptions, Metrics, SessionId,
    TextDecoder, Token,
};

/// A request on its way.
pub(crate) struct Generation {
    sequence: Sequence,
    session: Option<SessionId>,
    /// Place in the queue; `None` once the generation has been admitted.
    place: Option<QueuePlace>,
    standing: Standing,
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
    /// When the generation was first admitted.
    started: Option<Instant>,
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
    /// Makes a generation that waits; `sequence` is its session's or empty.
    ///
    /// If that is impossible, the reader gets the error, and the sequence comes back.
    pub(crate) fn arrive(
        job: Job,
        sequence: Sequence,
        arrival: u64,
        context: usize,
    ) -> Result<Self, (Sequence, Option<SessionId>)> {
        let Job { request, delivery, place, submitted } = job;
        let rules = match DrawRules::new(request.options.sampling.clone()) {
            Ok(rules) => rules.with_ends(request.options.stop_ids.clone(), request.prompt.len() as u32),
            Err(error) => {
                delivery.end(Event::Failed(error.into(), Metrics::default()));
                return Err((sequence, request.session));
            }
        };
        let stop_strings =
            if request.options.ignore_eos { Vec::new() } else { request.options.stop_strings.clone() };
        let mut answer = Answer {
            context,
            room: context + 1 - request.prompt.len(),
            decoder: request.decoder,
            stops: StopMatcher::new(stop_strings),
            options: request.options,
            delivery,
            submitted,
            started: None,
            first_token: None,
            metrics: Metrics { prompt_tokens: request.prompt.len(), ..Metrics::default() },
            state: State::Running,
        };
        if answer.options.max_tokens == Some(0) {
            answer.end(FinishReason::Length);
        }
        Ok(Self {
            sequence,
            session: request.session,
            place: Some(place),
            standing: Standing::new(arrival, answer.options.priority),
            tokens: request.prompt,
            rules,
            mask: request.mask,
            answer,
            kept: false,
        })
    }

    /// Begins, or goes on after a pause or a preemption. What the cache holds of the text is not computed again.
    pub(crate) fn admit(&mut self, executor: &mut Executor) {
        if !self.standing.returning || self.sequence.tokens().is_empty() {
            executor.resume(&mut self.sequence, self.answer.options.cache_scope, resumable(&self.tokens));
        }
        if !self.standing.returning {
            self.answer.begin(self.sequence.tokens().len());
        }
        self.standing.returning = true;
        self.place = None;
    }

    /// The order of this generation among others.
    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    /// Records that this generation waits while another one is admitted.
    pub(crate) fn see_admitted(&mut self, other: Standing) {
        self.standing.see_admitted(other);
    }

    /// Counts the pages of this generation among those of active ones.
    pub(crate) fn add_to(&self, outlook: &mut Outlook<'_>) {
        outlook.add_active(&self.sequence);
    }

    /// This generation as the scheduler sees it among active ones.
    pub(crate) fn as_active(&self, outlook: Option<&Outlook<'_>>, chunk: usize) -> Active {
        let need = outlook.map(|outlook| outlook.need(&self.sequence, self.next_positions(), chunk));
        Active { pending: self.pending().len(), need: need.unwrap_or_default() }
    }

    /// This generation as the scheduler sees it among those that wait for a place beside `active` ones.
    pub(crate) fn as_candidate(
        &self,
        outlook: &Outlook<'_>,
        executor: &Executor,
        active: &[Self],
        chunk: usize,
    ) -> Candidate {
        let scope = self.answer.options.cache_scope;
        let text = resumable(&self.tokens);
        let (prefix, need) = outlook.need_behind_prefix(scope, text, self.next_positions(), chunk);
        let own = if self.standing.returning && self.holds_pages() {
            self.sequence.tokens().len()
        } else {
            executor.resumable(&self.sequence, self.sequence.shared(scope, text))
        };
        let cached = own.max(prefix);
        let coming = active.iter().filter(|active| active.computes_prompt_in(scope)).map(|active| {
            let common = common_tokens(&active.tokens, text);
            if common > cached { outlook.after_prompt(active.tokens.len(), common) } else { 0 }
        });
        let coming = coming.max().unwrap_or(0);
        Candidate { standing: self.standing, cached, coming, need }
    }

    /// True if the generation computes a prompt whose pages will be offered to texts of `scope`.
    fn computes_prompt_in(&self, scope: CacheScope) -> bool {
        !self.kept && self.answer.options.cache_scope == scope
    }

    /// Positions that the generation may have when it has computed what is pending and a page more.
    fn next_positions(&self) -> usize {
        self.tokens.len() + self.answer.left().saturating_sub(1).min(PAGE_POSITIONS)
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

    /// Gives back all pages; their keys and values are computed again when the generation goes on, unless the prefixes
    /// still hold them.
    pub(crate) fn give_pages_back(&mut self, executor: &mut Executor) {
        executor.keep(&self.sequence);
        executor.truncate(&mut self.sequence, 0);
        self.answer.metrics.preemptions += usize::from(self.standing.returning);
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

/// The beginning of a text that may come from the cache: the last token is always computed, since its logits decide the
/// next one.
fn resumable(tokens: &[u32]) -> &[u32] {
    &tokens[..tokens.len() - 1]
}

impl Answer {
    /// Records that the generation is served from now on, and that `cached_tokens` of its prompt need not be computed.
    fn begin(&mut self, cached_tokens: usize) {
        let now = Instant::now();
        self.started = Some(now);
        self.metrics.cached_tokens = cached_tokens;
        self.metrics.queue_time = now - self.submitted;
    }

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
                self.metrics.prefill_time = now - self.started.unwrap_or(self.submitted);
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
        if self.started.is_none() {
            self.metrics.queue_time = self.submitted.elapsed();
        }
        self.delivery.end(match end {
            Ok(reason) => Event::Done(reason, self.metrics),
            Err(error) => Event::Failed(error, self.metrics),
        });
        self.state = State::Finished;
    }
}
