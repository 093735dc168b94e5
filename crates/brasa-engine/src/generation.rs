//! One generation on its way from prompt to last token.

use std::time::Instant;

use brasa_graph::chain::Flow;
use brasa_graph::sampling::{Draw, DrawRules, SamplingError, TokenMask};
use brasa_graph::step::PAGE_POSITIONS;

use crate::adapter_rows::AdapterLease;
use crate::answer::{AnswerWriter, State};
use crate::command::Submission;
use crate::draft::{Draft, Forced, LEAST_HOPE, Lookup, Modeled};
use crate::drafter::Wish;
use crate::executor::{Executor, Reads, SequenceChain};
use crate::outlook::Outlook;
use crate::queue::QueuePlace;
use crate::schedule::{Active, Candidate, Standing};
use crate::sequence::{Sequence, common_tokens};
use crate::stop::StopMatcher;
use crate::text::Texts;
use crate::{CacheScope, ContextPolicy, EngineError, EngineStats, SessionId, Speculation};

/// Receives a generation's tokens during a step or a chain.
pub(crate) struct Listener<'a> {
    answer: &'a mut AnswerWriter,
    forced: Option<&'a mut Forced>,
    modeled: Option<&'a mut Modeled>,
    lookup: Option<&'a mut Lookup>,
    /// Tokens of the text.
    length: usize,
    adaptive: bool,
}

impl Listener<'_> {
    /// Hands out the drawn token; returns whether to go on.
    pub(crate) fn take(&mut self, drawn: Result<Draw, SamplingError>) -> Flow {
        if let Ok(draw) = &drawn {
            if let Some(forced) = &mut self.forced {
                forced.see(draw.token);
            }
            if let Some(modeled) = &mut self.modeled {
                modeled.see(draw.token);
            }
            if let Some(lookup) = &mut self.lookup {
                lookup.see(self.length, draw.token);
            }
            self.length += 1;
        }
        self.answer.take(drawn)
    }

    /// Like [`take`](Self::take), and counts whether the token was an `accepted` draft.
    pub(crate) fn take_drafted(&mut self, accepted: bool, drawn: Result<Draw, SamplingError>) -> Flow {
        self.answer.metrics.accepted_tokens += usize::from(accepted);
        self.take(drawn)
    }

    /// Hands out the values read for the token at `index`. `last` is true for the last one.
    pub(crate) fn take_row(&mut self, index: usize, values: &[f32], last: bool) {
        self.answer.take_row(index, values, last);
    }

    /// True if the next token can be guessed with a probability of being drawn of at least `least`.
    pub(crate) fn hopes(&self, least: f32) -> bool {
        let least = if self.adaptive { least } else { LEAST_HOPE };
        self.lookup.as_ref().is_some_and(|lookup| lookup.hope() > least)
    }
}

/// A request from its arrival to its last token.
pub(crate) struct Generation {
    sequence: Sequence,
    session: Option<SessionId>,
    /// Place in the queue; `None` once the generation has been admitted.
    place: Option<QueuePlace>,
    /// Keeps the adapters of the text in the bank until the generation ends.
    _lease: Option<AdapterLease>,
    standing: Standing,
    /// Prompt and generated tokens. Tokens that `sequence` does not hold are still to be computed.
    tokens: Vec<u32>,
    rules: DrawRules,
    mask: Option<Box<dyn TokenMask>>,
    answer: AnswerWriter,
    speculation: Speculation,
    forced: Option<Forced>,
    modeled: Option<Modeled>,
    lookup: Option<Lookup>,
    /// Guesses of the next tokens, for the next step.
    draft: Draft,
    /// True once the prompt's pages have been kept for later texts.
    kept: bool,
}

impl Generation {
    /// A waiting generation. `sequence` is its session's sequence, or empty.
    pub(crate) fn new(
        submission: Submission,
        rules: DrawRules,
        sequence: Sequence,
        arrival: u64,
        context: usize,
        texts: &mut Texts,
    ) -> Self {
        let Submission { request, reads, delivery, place, lease, submitted } = submission;
        let options = request.options;
        let reader = delivery.reader();
        let stops = StopMatcher::new(options.stop_strings.clone(), options.stop_marks.clone());
        let text = texts.begin(request.decoder, stops, delivery);
        let prompt_tokens = request.prompt.len();
        let priority = options.request.priority;
        let end_ids = if options.ignore_eos { Vec::new() } else { request.end_ids };
        let ends = [&options.stop_ids[..], &end_ids[..]].concat();
        let mask = options.mask.as_ref().map(|source| source.start());
        let speculation = options.speculation.unwrap_or_default();
        let drafts = speculation.most > 0 && reads.is_none();
        let mut answer = AnswerWriter::new(options, (text, reader), submitted, prompt_tokens, context);
        (answer.next_read, answer.end_ids) = (reads, end_ids);
        Self {
            sequence,
            session: request.session,
            place: Some(place),
            _lease: lease,
            standing: Standing::new(arrival, priority),
            rules: rules.with_ends(ends, prompt_tokens as u32),
            forced: (drafts && speculation.forced && mask.is_some()).then(Forced::default),
            modeled: (drafts && speculation.model).then(Modeled::default),
            mask,
            answer,
            tokens: request.prompt,
            speculation,
            lookup: (drafts && speculation.lookup).then(Lookup::default),
            draft: Draft::default(),
            kept: false,
        }
    }

    /// Begins, or goes on after a pause or a preemption. Tokens that the cache holds are not computed again.
    ///
    /// `others` are sequences with which the text may share a beginning.
    pub(crate) fn admit<'a>(
        &mut self,
        executor: &mut Executor,
        others: impl Iterator<Item = &'a Sequence>,
        stats: &mut EngineStats,
    ) {
        if !self.standing.returning || self.sequence.tokens().is_empty() {
            let (text, scope) = (self.cacheable(), self.answer.options.request.cache_scope);
            executor.resume(&mut self.sequence, scope, &self.tokens[..text], others);
            self.sequence.private = !self.answer.options.request.caches();
        }
        if !self.standing.returning {
            let cached = self.sequence.tokens().len();
            self.answer.begin(cached);
            stats.prompt_tokens += self.tokens.len() as u64;
            stats.cached_tokens += cached as u64;
            stats.prefix_queries += 1;
            stats.prefix_hits += u64::from(cached > 0);
        }
        self.standing.returning = true;
        self.place = None;
    }

    /// The rank of the generation among others.
    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    /// Records that this generation waits while another one is admitted.
    pub(crate) fn see_admitted(&mut self, other: Standing) {
        self.standing.see_admitted(other);
    }

    /// Adds the generation's pages to those of active ones in `outlook`.
    pub(crate) fn add_to(&self, outlook: &mut Outlook<'_>) {
        outlook.add_active(&self.sequence);
    }

    /// The generation in the scheduler's terms, as an active one.
    pub(crate) fn as_active(&self, outlook: Option<&Outlook<'_>>, chunk: usize) -> Active {
        let need = outlook.map(|outlook| outlook.need(&self.sequence, self.next_positions(), chunk));
        let reads = self.answer.next_read.map_or(0, |next| self.tokens.len() - next.from);
        let pending = self.pending().len();
        Active { pending, reads: reads.min(pending), need: need.unwrap_or_default() }
    }

    /// The generation in the scheduler's terms, as one that waits for a place beside the `active` ones.
    pub(crate) fn as_candidate(
        &self,
        outlook: &Outlook<'_>,
        executor: &Executor,
        active: &[Self],
        chunk: usize,
    ) -> Candidate {
        let scope = self.answer.options.request.cache_scope;
        let text = &self.tokens[..self.cacheable()];
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

    /// True if the generation computes a prompt that will be kept for texts of `scope`.
    fn computes_prompt_in(&self, scope: CacheScope) -> bool {
        !self.kept && self.answer.options.request.caches() && self.answer.options.request.cache_scope == scope
    }

    /// Positions of the text after its pending tokens and one more page.
    fn next_positions(&self) -> usize {
        self.tokens.len() + self.answer.left().saturating_sub(1).min(PAGE_POSITIONS)
    }

    /// Tokens that are still to be computed.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.sequence.tokens().len()..]
    }

    /// True if each computed row gives a token.
    pub(crate) fn decodes(&self) -> bool {
        self.pending().len() == 1 && self.answer.next_read.is_none()
    }

    /// True if a grammar's mask restricts the tokens.
    pub(crate) fn is_masked(&self) -> bool {
        self.mask.is_some()
    }

    /// Tokens to be drawn before the generation may have new guesses: 1 if a mask can force tokens at any place, `usize::MAX` if
    /// neither a mask nor a draft model guesses.
    pub(crate) fn tokens_alone(&self) -> usize {
        match (&self.forced, &self.modeled) {
            (Some(_), _) => 1,
            (None, Some(modeled)) => modeled.rest(self.speculation.adaptive).max(1),
            (None, None) => usize::MAX,
        }
    }

    /// Makes the next `rows` positions writable.
    ///
    /// # Errors
    ///
    /// The errors of [`Executor::prepare`].
    pub(crate) fn prepare(&mut self, rows: usize, executor: &mut Executor) -> Result<(), EngineError> {
        executor.prepare(&mut self.sequence, rows)
    }

    /// Guesses up to `most` of the next tokens, from the mask and the text.
    pub(crate) fn guess(&mut self, most: usize) {
        self.draft.clear();
        let most = most.min(self.most_drafts());
        let ends = self.rules.end_ids();
        if let (Some(forced), Some(mask)) = (&mut self.forced, &mut self.mask) {
            forced.ask(&mut **mask);
            forced.draft(most, ends, &mut self.draft);
        }
        if let Some(lookup) = &mut self.lookup
            && lookup.read(&self.tokens)
            && self.draft.tokens.is_empty()
        {
            lookup.draft(most, &mut self.draft);
        }
    }

    /// For each of up to `most` guesses of a draft model, the probability that it is drawn. Empty if the draft model is not to be
    /// used, because other guesses are likelier.
    pub(crate) fn model_hopes(&self, most: usize) -> Vec<f32> {
        let adaptive = self.speculation.adaptive;
        let Some(modeled) = self.modeled.as_ref().filter(|modeled| modeled.rest(adaptive) == 0) else {
            return Vec::new();
        };
        let is_forced = self.forced.as_ref().is_some_and(Forced::knows);
        let other = self.draft.hopes.first().copied().unwrap_or(0.0);
        if is_forced || other >= modeled.hope() {
            return Vec::new();
        }
        let hopes = std::iter::successors(Some(modeled.hope()), |hope| Some(hope * modeled.hope()));
        hopes.take(most.min(self.most_drafts())).collect()
    }

    /// A wish for guesses of a draft model, of which `paying` would pay, in place of the present guesses. `None` if the text does
    /// not use a draft model.
    pub(crate) fn wish(&mut self, paying: usize, most: usize, least_hope: f32) -> Option<Wish<'_>> {
        let most = most.min(self.most_drafts());
        let adaptive = self.speculation.adaptive;
        let Self { sequence, tokens, rules, answer, modeled: Some(modeled), draft, .. } = self else {
            return None;
        };
        draft.clear();
        let count = if adaptive { modeled.ask_for(paying).min(most) } else { most };
        let least_hope = if adaptive { least_hope.max(LEAST_HOPE) } else { 0.0 };
        Some(Wish {
            id: sequence.id(),
            scope: answer.options.request.cache_scope,
            private: !answer.options.request.caches(),
            tokens,
            rules,
            position: (answer.metrics.prompt_tokens + answer.metrics.generated_tokens) as u32,
            ends: rules.end_ids(),
            count,
            least_hope,
            modeled,
            draft,
        })
    }

    /// Sets the initial trust in the draft model, if the text may use one; `None` if there is no draft model.
    pub(crate) fn meet_draft_model(&mut self, experience: Option<Modeled>) {
        self.modeled = self.modeled.take().and(experience);
        self.draft.clear();
    }

    /// Trust in the draft model for this text; `None` if the model is not used.
    pub(crate) fn modeled(&self) -> Option<&Modeled> {
        self.modeled.as_ref()
    }

    /// The guesses for the next step.
    pub(crate) fn draft(&self) -> &Draft {
        &self.draft
    }

    /// Keeps the first `count` guesses for the next step, all of them unless their number is adaptive.
    pub(crate) fn keep_drafts(&mut self, count: usize) {
        let count = if self.speculation.adaptive { count } else { self.draft.tokens.len() };
        self.draft.cut(if count < self.speculation.least { 0 } else { count });
    }

    /// Makes the positions of the guesses writable, or drops the guesses if there are no pages.
    pub(crate) fn prepare_drafts(&mut self, executor: &mut Executor) {
        let rows = 1 + self.draft.tokens.len();
        if rows > 1 && !executor.prepare_drafts(&mut self.sequence, rows) {
            self.draft.clear();
        }
        self.answer.metrics.drafted_tokens += self.draft.tokens.len();
    }

    /// Most drafts after which another token may still be drawn.
    pub(crate) fn most_drafts(&self) -> usize {
        let guesses = self.forced.is_some() || self.modeled.is_some() || self.lookup.is_some();
        if guesses { self.speculation.most.min(self.answer.left().saturating_sub(1)) } else { 0 }
    }

    /// Indexes the next part of the text for guesses.
    pub(crate) fn read_ahead(&mut self) {
        if let Some(lookup) = &mut self.lookup {
            lookup.read(&self.tokens);
        }
    }

    /// The generation's part of a chain that begins with the next `rows` tokens and draws up to `limit`, and the receiver of its
    /// tokens.
    pub(crate) fn chain(&mut self, rows: usize, limit: usize) -> (SequenceChain<'_>, Listener<'_>) {
        let Self { sequence, tokens, rules, mask, answer, draft, speculation, .. } = self;
        // Counted from the first prompt token even if the context has slid since: noise must not repeat.
        let position = (answer.metrics.prompt_tokens + answer.metrics.generated_tokens) as u32;
        let mask = mask.as_mut().map(|mask| &mut **mask as &mut dyn TokenMask);
        let stops = rules.end_ids();
        let limit = limit.min(answer.left());
        sequence.may_return_to = answer.settled(tokens.len());
        let begin = sequence.tokens().len();
        let reads =
            answer.next_read.map(|next| Reads { from: next.from.saturating_sub(begin).min(rows), ..next });
        let drafts = &draft.tokens[..];
        let adaptive = speculation.adaptive;
        let (forced, modeled, lookup) = (self.forced.as_mut(), self.modeled.as_mut(), self.lookup.as_mut());
        let listener = Listener { answer, forced, modeled, lookup, length: tokens.len(), adaptive };
        let chain =
            SequenceChain { sequence, tokens, rows, reads, rules, position, limit, stops, mask, drafts };
        (chain, listener)
    }

    /// True if the generation has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.answer.state == State::Finished
    }

    /// True if the generation must pause until the reader has read more or the text's thread has caught up.
    pub(crate) fn is_behind(&self) -> bool {
        self.answer.is_behind()
    }

    /// True if no stop string can be found in the tokens drawn so far. If one can, the engine's thread is woken when the text
    /// is made.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.answer.is_settled()
    }

    /// Gives back all pages. Keys and values are computed again when the generation goes on, unless the prefixes still hold them.
    pub(crate) fn give_pages_back(&mut self, executor: &mut Executor) {
        self.sequence.may_return_to = self.answer.settled(self.tokens.len());
        executor.keep(&mut self.sequence, true);
        executor.truncate(&mut self.sequence, 0);
        self.answer.metrics.preemptions += usize::from(self.standing.returning);
    }

    /// True if the generation holds pages.
    pub(crate) fn holds_pages(&self) -> bool {
        self.sequence.holds_pages()
    }

    /// True if the text must be shortened before it can go on.
    pub(crate) fn is_full(&self) -> bool {
        self.answer.state == State::Full
    }

    /// Reports to the reader how much of the prompt has been computed.
    pub(crate) fn report_prefill(&mut self) {
        self.answer.see_prefilled(self.sequence.tokens().len());
    }

    /// Keeps the pages of the prompt for later texts, once the prompt has been computed.
    pub(crate) fn keep_prompt(&mut self, executor: &mut Executor) {
        if !self.kept && self.answer.has_begun() {
            executor.keep(&mut self.sequence, false);
            self.kept = true;
        }
    }

    /// The keys and values so far.
    pub(crate) fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Tokens of the text that may come from the cache. The last token is always computed, since its logits decide the next one.
    fn cacheable(&self) -> usize {
        let last = self.tokens.len() - 1;
        let needed = self.answer.next_read.map_or(last, |next| next.from.min(last));
        if self.answer.options.request.caches() { needed } else { 0 }
    }

    /// The request's deadline; `None` if it has none or the generation has ended.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.answer.options.request.deadline.filter(|_| !self.is_finished())
    }

    /// Ends the generation if it was cancelled or its deadline has passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.answer.expire(now);
    }

    /// Ends with an error.
    pub(crate) fn fail(&mut self, error: EngineError) {
        self.answer.fail(error);
    }

    /// Shortens a text that has filled the context, if no stop string can still end it. Returns false if nothing was to be done.
    pub(crate) fn slide_if_full(&mut self, executor: &mut Executor) -> bool {
        let slides = self.is_full() && self.is_settled();
        if slides {
            self.slide(executor);
        }
        slides
    }

    /// Drops the older half of the droppable tokens: whole pages if the device can move the keys of the rest. Otherwise exactly
    /// half is dropped, and the rest is computed afresh.
    fn slide(&mut self, executor: &mut Executor) {
        let context = self.answer.context;
        let ContextPolicy::Slide { keep } = self.answer.options.context_policy else { return };
        let droppable = self.tokens.len().saturating_sub(keep);
        if droppable < 2 {
            return self.answer.fail(EngineError::ContextFull { context });
        }
        let first = keep.div_ceil(PAGE_POSITIONS);
        let pages = (self.sequence.tokens().len() / PAGE_POSITIONS).saturating_sub(first).div_ceil(2);
        let before = self.tokens.len();
        if pages > 0 && executor.shift(&mut self.sequence, first..first + pages) {
            self.tokens.drain(first * PAGE_POSITIONS..(first + pages) * PAGE_POSITIONS);
        } else {
            executor.truncate(&mut self.sequence, keep);
            self.tokens.drain(keep..keep + droppable.div_ceil(2));
        }
        if let Some(lookup) = &mut self.lookup {
            lookup.shorten(before - self.tokens.len());
        }
        self.sequence.may_return_to = None;
        self.answer.room = context + 1 - self.tokens.len();
        self.answer.state = State::Running;
    }

    /// The sequence of the settled generation, for its session or for release. Tokens after a stop string are removed. If the
    /// keys and values may be NaN or infinite, the sequence is emptied, since no other text may begin with them.
    pub(crate) fn into_sequence(mut self, executor: &mut Executor) -> (Sequence, Option<SessionId>) {
        let in_vain = self.answer.drawn_in_vain();
        if self.answer.is_tainted {
            executor.truncate(&mut self.sequence, 0);
        } else if in_vain > 0 {
            // The token that completed the stop string was drawn and not computed, as at any other end.
            let length = self.tokens.len() - in_vain - 1;
            executor.truncate(&mut self.sequence, length);
        }
        self.sequence.may_return_to = None;
        (self.sequence, self.session)
    }
}
