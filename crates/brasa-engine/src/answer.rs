//! Drawn tokens on their way to the reader, and the ends that show in token ids alone.

use std::time::Instant;

use brasa_graph::chain::Flow;
use brasa_graph::sampling::{Draw, SamplingError};

use crate::delivery::Reader;
use crate::executor::Reads;
use crate::text::{End, TextWriter, TokenOrEnd};
use crate::{ContextPolicy, EngineError, FinishReason, GenerateOptions, Metrics, Token};

/// Most tokens that are drawn ahead of the text's thread, if a stop string may be among them.
pub(crate) const MOST_UNCHECKED: usize = 64;

/// Hands the drawn tokens of one generation to its text and its reader, counts them, and decides when it ends or pauses.
pub(crate) struct AnswerWriter {
    pub(crate) options: GenerateOptions,
    text: TextWriter,
    reader: Reader,
    /// Tokens of the model that end the answer.
    pub(crate) end_ids: Vec<u32>,
    /// True if a stop string may end the answer.
    may_stop: bool,
    submitted: Instant,
    /// When the generation was first admitted.
    started: Option<Instant>,
    first_token: Option<Instant>,
    pub(crate) metrics: Metrics,
    /// Positions of the context, and tokens that may be generated before it is full.
    pub(crate) context: usize,
    pub(crate) room: usize,
    /// Tokens drawn: generated tokens, plus the stop id if one was drawn.
    drawn: usize,
    /// The next token to report to the reader; `None` for a request that generates.
    pub(crate) next_read: Option<Reads>,
    /// Fragments that the reader must have taken, and tokens that must have become text, before the generation goes on.
    until_taken: usize,
    until_checked: usize,
    pub(crate) state: State,
    /// True if the text ended with an error after which its keys and values are undefined.
    pub(crate) is_tainted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// The text has filled the context and must be shortened.
    Full,
    Finished,
}

impl AnswerWriter {
    /// The writer of the answer to a prompt of `prompt_tokens` tokens, in a context of `context` positions.
    pub(crate) fn new(
        options: GenerateOptions,
        (text, reader): (TextWriter, Reader),
        submitted: Instant,
        prompt_tokens: usize,
        context: usize,
    ) -> Self {
        let mut answer = Self {
            may_stop: !options.stop_strings.is_empty(),
            options,
            end_ids: Vec::new(),
            text,
            reader,
            submitted,
            started: None,
            first_token: None,
            metrics: Metrics { prompt_tokens, ..Metrics::default() },
            context,
            room: context + 1 - prompt_tokens,
            drawn: 0,
            next_read: None,
            until_taken: 0,
            until_checked: 0,
            state: State::Running,
            is_tainted: false,
        };
        if answer.options.max_tokens == Some(0) {
            answer.end_without_token(Ok(FinishReason::Length));
        }
        answer
    }

    /// Records that the generation is served from now on, and that `cached_tokens` of its prompt need not be computed.
    pub(crate) fn begin(&mut self, cached_tokens: usize) {
        let now = Instant::now();
        self.started = Some(now);
        self.metrics.cached_tokens = cached_tokens;
        self.metrics.queue_time = now - self.submitted;
        self.metrics.prefilled_tokens = cached_tokens;
        self.report_prefill(now);
    }

    /// Records that the first `tokens` tokens of the prompt have keys and values.
    pub(crate) fn see_prefilled(&mut self, tokens: usize) {
        let is_news = tokens != self.metrics.prefilled_tokens;
        if is_news && !self.has_begun() && self.state == State::Running {
            self.metrics.prefilled_tokens = tokens;
            self.report_prefill(Instant::now());
        }
    }

    /// Reports the progress of the prompt to the reader, if the request asks for reports.
    fn report_prefill(&mut self, now: Instant) {
        if self.options.report_prefill {
            self.metrics.prefill_time = now - self.started.unwrap_or(self.submitted);
            self.text.report(self.metrics);
        }
    }

    /// True once a token has been drawn.
    pub(crate) fn has_begun(&self) -> bool {
        self.first_token.is_some()
    }

    /// Ends the answer if a stop string was found, the request was cancelled or its deadline has passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.state == State::Finished {
        } else if self.text.progress().tokens().is_open() {
            // The text is complete: a stop string was found, and the reader knows. Or the text's thread is gone.
            self.state = State::Finished;
        } else if self.reader.is_cancelled() {
            self.end_without_token(Ok(FinishReason::Cancelled));
        } else if self.options.request.deadline.is_some_and(|deadline| deadline <= now) {
            self.fail(EngineError::DeadlineExceeded { tokens: self.metrics.generated_tokens });
        }
    }

    /// True if the generation must pause until the reader has read more or the text's thread has caught up.
    pub(crate) fn is_behind(&self) -> bool {
        self.reader.taken().count() < self.until_taken
            || self.text.progress().tokens().count() < self.until_checked
    }

    /// Number of drawn tokens that the text's thread has not checked yet: a stop string may still drop them.
    pub(crate) fn unchecked(&self) -> usize {
        if self.may_stop { self.drawn.saturating_sub(self.text.progress().tokens().count()) } else { 0 }
    }

    /// How many of the first `tokens` tokens no stop string can drop; `None` if the request has no stop strings.
    pub(crate) fn settled(&self, tokens: usize) -> Option<usize> {
        self.may_stop.then(|| tokens - self.unchecked())
    }

    /// True if no stop string can be found in the tokens drawn so far. If one can, the engine's thread is woken when the text
    /// is made.
    pub(crate) fn is_settled(&mut self) -> bool {
        let tokens = self.text.progress().tokens();
        if !self.may_stop || tokens.is_open() {
            true
        } else if self.state == State::Finished {
            tokens.want_open();
            tokens.is_open()
        } else {
            self.wait_for_text(self.drawn);
            self.unchecked() == 0
        }
    }

    /// Tokens that were drawn after the token that completed a stop string, and are thrown away.
    pub(crate) fn drawn_in_vain(&self) -> usize {
        self.text.progress().stop().map_or(0, |tokens| self.drawn - tokens)
    }

    /// Tokens that may still be generated, at least 1 while the generation runs.
    pub(crate) fn left(&self) -> usize {
        let wanted = self.options.max_tokens.unwrap_or(usize::MAX);
        wanted.saturating_sub(self.metrics.generated_tokens).min(self.room)
    }

    /// Hands out the drawn token; returns whether to go on.
    pub(crate) fn take(&mut self, drawn: Result<Draw, SamplingError>) -> Flow {
        let now = Instant::now();
        match drawn {
            Ok(draw) => self.hand_out(draw, now),
            Err(error) => self.fail(error.into()),
        }
        self.expire(now);
        if self.state == State::Running && !self.is_behind() { Flow::Continue } else { Flow::StopRow }
    }

    /// Hands out the values read for the token at `index`. `last` is true for the last one.
    pub(crate) fn take_row(&mut self, index: usize, values: &[f32], last: bool) {
        let now = Instant::now();
        let next = self.next_read.as_mut().filter(|next| next.from == index);
        if let Some(next) = next
            && self.state == State::Running
        {
            next.from += 1;
            self.drawn += 1;
            self.metrics.prefill_time = now - self.started.unwrap_or(self.submitted);
            if self.metrics.first_token_time.is_zero() {
                self.metrics.first_token_time = now - self.submitted;
            }
            self.text.pass_on(values.to_vec());
            self.pause_if_ahead(self.drawn);
            if last {
                self.end_without_token(Ok(FinishReason::Length));
            }
        }
        self.expire(now);
    }

    fn hand_out(&mut self, draw: Draw, now: Instant) {
        match self.first_token {
            None => {
                self.first_token = Some(now);
                self.metrics.prefill_time = now - self.started.unwrap_or(self.submitted);
                self.metrics.first_token_time = now - self.submitted;
                self.metrics.prefilled_tokens = self.metrics.prompt_tokens;
                self.report_prefill(now);
            }
            Some(first) => self.metrics.decode_time = now - first,
        }
        self.drawn += 1;
        if self.end_ids.contains(&draw.token) {
            return self.end_at(FinishReason::End, draw);
        }
        if self.options.stop_ids.contains(&draw.token) {
            return self.end_at(FinishReason::Id(draw.token), draw);
        }
        self.metrics.generated_tokens += 1;
        self.room -= 1;
        let end = self.end_after_token();
        let token = Some(Token::from(draw));
        if end.is_some() {
            self.state = State::Finished;
        } else if self.room == 0 {
            self.state = State::Full;
        }
        self.text.write(TokenOrEnd { token, end, end_token: None, metrics: self.metrics });
        self.pause_if_ahead(self.metrics.generated_tokens);
    }

    /// Pauses if the reader is too far behind: until the reader has taken half of the waiting fragments, or the text's thread has
    /// come half as far.
    fn pause_if_ahead(&mut self, sent: usize) {
        let run_ahead = self.options.request.run_ahead;
        if sent.saturating_sub(self.reader.taken().count()) >= run_ahead {
            self.until_taken = sent - run_ahead / 2;
            self.reader.taken().want(self.until_taken);
            self.text.hurry();
        }
        if self.unchecked() >= MOST_UNCHECKED {
            self.wait_for_text(self.drawn - MOST_UNCHECKED / 2);
        }
    }

    /// Pauses until `tokens` tokens have become text.
    fn wait_for_text(&mut self, tokens: usize) {
        self.until_checked = tokens;
        self.text.progress().tokens().want(tokens);
    }

    /// The end of the generation after the token that was just counted, judged by ids and counts; `None` if it goes on.
    fn end_after_token(&self) -> Option<End> {
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
    pub(crate) fn fail(&mut self, error: EngineError) {
        self.is_tainted |=
            matches!(error, EngineError::Sampling(SamplingError::NoToken { .. }) | EngineError::Device(_));
        self.end_without_token(Err(error));
    }

    /// Ends at a token that is no part of the answer.
    fn end_at(&mut self, reason: FinishReason, draw: Draw) {
        self.end_with(Ok(reason), Some(draw.into()));
    }

    /// Ends without a further token.
    fn end_without_token(&mut self, end: End) {
        self.end_with(end, None);
    }

    fn end_with(&mut self, end: End, end_token: Option<Token>) {
        if self.started.is_none() {
            self.metrics.queue_time = self.submitted.elapsed();
        }
        self.state = State::Finished;
        self.text.write(TokenOrEnd { token: None, end: Some(end), end_token, metrics: self.metrics });
    }
}
