//! Runs steps over sequences: manages the pages that a program works on, and checks the steps.

use std::ops::Range;
use std::sync::Arc;

use brasa_graph::GroupId;
use brasa_graph::chain::{Chain, ChainSink, RowDraw};
use brasa_graph::device::{OpTime, Program};
use brasa_graph::output::Output;
use brasa_graph::page::PageLayout;
use brasa_graph::sampling::{Draw, DrawRules, Sampler, SamplingError, TokenMask};
use brasa_graph::step::{GivenValues, Outs, PAGE_POSITIONS, PageId, Segment, Step};

use crate::kv::{KvStore, StepEnds};
use crate::outlook::Outlook;
use crate::sequence::Sequence;
use crate::{AdapterRows, CacheScope, EngineError, EngineStats, MakeProgram, ReadValue};

mod drafted;
mod failure;

pub use failure::StepError;
use failure::check;

/// Runs steps over sequences. The engine's thread has one; [`Engine::with`](crate::Engine::with) lends it out.
pub struct Executor {
    program: Box<dyn Program>,
    hidden: Hidden,
    adapter_rows: Option<Arc<AdapterRows>>,
    store: KvStore,
    context: usize,
    vocab_size: usize,
    step: Step,
    sampler: Sampler,
    /// Sequences that are being read or written outside the engine, whose pages cannot give way.
    lent: usize,
}

/// The program that returns hidden states.
enum Hidden {
    None,
    Unmade(MakeProgram),
    Made(Box<dyn Program>),
}

/// The next rows of one sequence in a step. On the device they are a [`Segment`].
pub struct SequenceRows<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// The tokens that follow the cached ones.
    pub tokens: &'a [u32],
    /// Rows with outputs.
    pub outs: Outs,
}

/// A sequence that takes part in a chain. On the device it is a [`Segment`] and a [`RowDraw`].
pub struct SequenceChain<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// The cached tokens and the tokens that follow them. The chain begins with a step of the next `rows` tokens. If no tokens
    /// are left then, tokens are drawn and appended here.
    pub tokens: &'a mut Vec<u32>,
    /// Rows of the first step.
    pub rows: usize,
    /// Values to report of the first step's rows, in place of drawing; `None` for a text that is generated.
    pub reads: Option<Reads>,
    /// How tokens are drawn.
    pub rules: &'a DrawRules,
    /// Position of the next token; selects the noise of its draw.
    pub position: u32,
    /// Most tokens to draw, at least 1. The executor lowers it if there are not enough positions or pages.
    pub limit: usize,
    /// Ids that end the chain of this sequence.
    pub stops: &'a [u32],
    /// The ids that a grammar allows; `None` for all.
    pub mask: Option<&'a mut dyn TokenMask>,
    /// Guesses of the tokens that follow `tokens`, read by [`Executor::run_drafts`] alone.
    pub drafts: &'a [u32],
}

/// Values to report of the rows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// The first row that is read; all later ones are read too.
    pub from: usize,
    /// The kind of value for each row.
    pub value: ReadValue,
}

/// Result of one row of a step.
#[derive(Debug)]
pub enum StepOut<'a> {
    /// The token drawn from the row's logits, or the reason why there is none.
    Drawn(Result<Draw, SamplingError>),
    /// The values of the token at `index` of its sequence.
    Read {
        /// Index of the token.
        index: usize,
        /// The logits, `[vocab_size]`, or the hidden state, `[hidden_size]`.
        values: &'a [f32],
    },
}

impl SequenceChain<'_> {
    fn row_draw(&mut self) -> RowDraw<'_> {
        RowDraw {
            rules: self.rules,
            position: self.position,
            history: &mut *self.tokens,
            limit: self.limit,
            stops: self.stops,
            mask: self.mask.as_mut().map(|mask| &mut **mask as &mut dyn TokenMask),
        }
    }

    /// The kind of value that the chain's first step reports; `None` if it reports none.
    pub(crate) fn read_value(&self) -> Option<ReadValue> {
        self.reads.filter(|reads| reads.from < self.rows).map(|reads| reads.value)
    }

    fn first_rows(&mut self) -> SequenceRows<'_> {
        let start = self.sequence.tokens.len();
        let tokens = &self.tokens[start..start + self.rows];
        let outs = match self.reads.map(|reads| reads.from) {
            Some(0) => Outs::All,
            Some(first) if first >= self.rows => Outs::None,
            Some(first) if first + 1 == self.rows => Outs::Last,
            Some(first) => Outs::Rows((first as u32..self.rows as u32).collect()),
            None if start + self.rows == self.tokens.len() => Outs::Last,
            None => Outs::None,
        };
        SequenceRows { sequence: self.sequence, tokens, outs }
    }
}

impl Executor {
    pub(crate) fn new(
        program: Box<dyn Program>,
        hidden: Option<MakeProgram>,
        adapter_rows: Option<Arc<AdapterRows>>,
        store: KvStore,
        context: usize,
        vocab_size: usize,
    ) -> Self {
        let (step, sampler) = (Step::default(), Sampler::default());
        let hidden = hidden.map_or(Hidden::None, Hidden::Unmade);
        Self { program, hidden, adapter_rows, store, context, vocab_size, step, sampler, lent: 0 }
    }

    /// Exchanges the programs and the order of adapters in rows; returns the old programs.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] for a program with other limits: nothing changed.
    pub(crate) fn replace(
        &mut self,
        program: Box<dyn Program>,
        hidden: Option<MakeProgram>,
        bank: Vec<u64>,
    ) -> Result<impl Send + 'static + use<>, EngineError> {
        let (found, expected) = (program.limits(), self.program.limits());
        if found != expected {
            return Err(EngineError::Options(format!("a program for {found:?}, expected {expected:?}")));
        }
        if let Some(rows) = &self.adapter_rows {
            rows.lay_out(bank);
        }
        let hidden = std::mem::replace(&mut self.hidden, hidden.map_or(Hidden::None, Hidden::Unmade));
        Ok((std::mem::replace(&mut self.program, program), hidden))
    }

    /// Positions that a sequence may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Token ids of the model.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Most rows of a step.
    pub fn max_rows(&self) -> usize {
        self.program.limits().max_rows
    }

    /// Most rows of a step that can have outputs.
    pub fn max_outs(&self) -> usize {
        self.program.limits().max_outs
    }

    /// Most sequences in a step.
    pub fn max_segments(&self) -> usize {
        self.program.limits().max_segments
    }

    /// An empty sequence in the default scope.
    pub fn sequence(&mut self) -> Sequence {
        self.store.empty(CacheScope::default())
    }

    /// Gives back the pages of `sequence`.
    pub fn release(&mut self, sequence: Sequence) {
        self.store.release(sequence);
    }

    /// Drops everything from index `length` on; returns the length kept. The length is 0 if a sliding window no longer holds the
    /// rows that the next row would see.
    pub fn truncate(&mut self, sequence: &mut Sequence, length: usize) -> usize {
        self.store.truncate(sequence, length)
    }

    /// Drops the tokens of `pages` (of 256 tokens each) and moves the tokens behind them to their place, without computing them
    /// again. Returns false if that is impossible; nothing has changed then.
    ///
    /// The moved tokens still depend on the dropped ones: their values, and their keys in all layers but the first, were computed
    /// while the dropped tokens were visible.
    pub(crate) fn shift(&mut self, sequence: &mut Sequence, pages: Range<usize>) -> bool {
        let by = -((pages.len() * PAGE_POSITIONS) as i32);
        let program = &mut self.program;
        program.check_shift(self.store.pool()).is_ok()
            && self
                .store
                .shift(sequence, pages, |pool, pages| program.shift(pool, pages, by))
                .unwrap_or(false)
    }

    /// Shortens `sequence` to the beginning that it shares with `tokens`, or gives it a longer one that an earlier text of `scope`
    /// left behind or one of the `others` holds. Returns the length.
    pub(crate) fn resume<'a>(
        &mut self,
        sequence: &mut Sequence,
        scope: CacheScope,
        tokens: &[u32],
        others: impl Iterator<Item = &'a Sequence>,
    ) -> usize {
        self.store.resume(sequence, scope, tokens, others)
    }

    /// Fetches some memory of pages before their first use. Returns false if enough is ready.
    pub(crate) fn prefault(&mut self) -> bool {
        self.store.prefault()
    }

    /// Fetches memory of pages behind a step of `rows` rows, if the `texts` active texts could soon wait for it.
    pub(crate) fn keep_up(&mut self, rows: usize, texts: usize) {
        self.store.keep_up(rows, texts);
    }

    /// Number of pages that were ever handed out before their memory was fetched.
    pub(crate) fn cold_pages(&self) -> usize {
        self.store.cold_pages()
    }

    /// Writes the counts of pages and prefixes into `stats`.
    pub(crate) fn describe(&self, stats: &mut EngineStats) {
        self.store.describe(stats);
    }

    /// The length that [`truncate`](Self::truncate) would keep.
    pub(crate) fn resumable(&self, sequence: &Sequence, length: usize) -> usize {
        self.store.resumable(sequence, length)
    }

    /// The pages and their holders, as numbers for the scheduler.
    pub(crate) fn outlook(&self) -> Outlook<'_> {
        self.store.outlook()
    }

    /// Keeps the whole pages of `sequence` for later texts that begin alike, within the budget for prefixes. If the sequence
    /// `ends` and is never written again, its last partial page is kept too.
    pub(crate) fn keep(&mut self, sequence: &mut Sequence, ends: bool) {
        self.store.keep(sequence, ends);
    }

    /// Makes a sequence with the same content. Pages are shared until one of the two sequences writes.
    pub fn fork(&mut self, sequence: &Sequence) -> Sequence {
        self.store.fork(sequence)
    }

    /// A second sequence over the pages of `sequence`, to be read or written outside the engine.
    pub(crate) fn lend(&mut self, sequence: &Sequence) -> Sequence {
        self.lent += 1;
        self.store.fork(sequence)
    }

    /// Ends the loan of a sequence and releases its pages.
    pub(crate) fn take_back(&mut self, sequence: Sequence) {
        self.own_again();
        self.store.release(sequence);
    }

    /// Ends the loan of a sequence that stays with the engine.
    pub(crate) fn own_again(&mut self) {
        self.lent -= 1;
    }

    /// True if a sequence is lent.
    pub(crate) fn lends(&self) -> bool {
        self.lent > 0
    }

    /// The layouts of the pages of all cache groups.
    pub(crate) fn layouts(&mut self) -> Vec<PageLayout> {
        let spec = self.store.pool().spec();
        spec.groups.iter().map(|group| PageLayout::new(group, spec.dtype)).collect()
    }

    /// Bytes of one state page; `None` for a model without recurrent states.
    pub(crate) fn state_bytes(&self) -> Option<usize> {
        self.store.state_bytes()
    }

    /// Copies state page `page` to `bytes`, as little-endian f32.
    ///
    /// # Errors
    ///
    /// [`EngineError::Device`].
    pub(crate) fn read_state(&mut self, page: PageId, bytes: &mut [u8]) -> Result<(), EngineError> {
        Ok(self.store.pool().read_state(page, bytes)?)
    }

    /// The first page of each cache group that is visible to the row at index `length`.
    pub(crate) fn oldest_pages(&self, length: usize) -> Vec<usize> {
        self.store.oldest_pages(length)
    }

    /// Copies a page to `bytes`, in the canonical layout.
    ///
    /// # Errors
    ///
    /// [`EngineError::Device`].
    pub(crate) fn read_page(
        &mut self,
        group: GroupId,
        page: PageId,
        bytes: &mut [u8],
    ) -> Result<(), EngineError> {
        Ok(self.store.pool().read_page(group, page, bytes)?)
    }

    /// Appends a page of the given contents to a block table of `sequence`.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`]: the sequence holds the pages that it held.
    pub(crate) fn append_page(
        &mut self,
        sequence: &mut Sequence,
        group: usize,
        state_at: Option<usize>,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        self.store.append_page(sequence, group, state_at, bytes)
    }

    /// Forgets the kept prefix of `tokens`, except the beginning that other kept texts share.
    pub(crate) fn forget(&mut self, scope: CacheScope, tokens: &[u32]) {
        self.store.forget(scope, tokens);
    }

    /// Bytes of KV pages and of the program's arena.
    pub fn memory_bytes(&self) -> u64 {
        let hidden = if let Hidden::Made(program) = &self.hidden { program.arena_bytes() } else { 0 };
        self.store.size_bytes() + self.program.arena_bytes() + hidden
    }

    /// Makes the next `rows` positions of `sequence` writable, as a step does for each of its sequences.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`] if a page could not be allocated or copied. The sequence's text is
    /// unchanged.
    pub(crate) fn prepare(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), EngineError> {
        self.store.prepare(sequence, rows)
    }

    /// Like [`prepare`](Self::prepare), for a step of guesses: each of its rows may become the end of the sequence, and
    /// so needs a state page. Returns false if there are not enough pages.
    pub(crate) fn prepare_drafts(&mut self, sequence: &mut Sequence, rows: usize) -> bool {
        self.store.prepare(sequence, rows).is_ok() && self.store.prepare_each_state(sequence, rows)
    }

    /// Runs one step; returns the logits of the rows that have outputs, in order. All rows are then part of their sequences.
    ///
    /// # Errors
    ///
    /// [`EngineError::UnknownToken`], [`EngineError::ContextFull`], [`EngineError::CacheFull`]: nothing was computed, and
    /// no sequence changed. [`EngineError::Device`].
    pub fn run(&mut self, parts: &mut [SequenceRows<'_>]) -> Result<Output<'_>, EngineError> {
        self.compose(parts, StepEnds::Last)?;
        let output = self.program.run(&self.step, self.store.pool())?.only();
        for part in parts {
            self.store.commit(part.sequence, part.tokens);
        }
        Ok(output)
    }

    /// Most tokens of a sequence in one chain; `masked` if a sequence of the chain has a mask.
    pub fn max_chain(&self, masked: bool) -> usize {
        self.program.max_chain(masked)
    }

    /// Runs one step, then draws and computes further tokens of the sequences whose last token was in the step, each up to its
    /// limit. `sink` receives every token. Computed tokens become part of their sequences. A sequence with too few pages or
    /// positions gets a lower limit; the others keep theirs.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run), with the numbers of the parts at fault. No sequence changes then, but tokens that `sink`
    /// has received stay in `tokens` of `parts`.
    pub fn run_chain(
        &mut self,
        parts: &mut [SequenceChain<'_>],
        sink: &mut ChainSink<'_>,
    ) -> Result<(), StepError> {
        check(parts)?;
        let mut first: Vec<SequenceRows<'_>> = parts.iter_mut().map(SequenceChain::first_rows).collect();
        self.compose(&mut first, StepEnds::Last)?;
        let spares = self.program.spare_states();
        for (number, (part, segment)) in parts.iter_mut().zip(&mut self.step.segments).enumerate() {
            if segment.outs != Outs::Last || part.limit <= 1 {
                continue;
            }
            let room = self.context.saturating_sub(part.sequence.tokens.len() + part.rows).saturating_add(1);
            part.limit = part.limit.min(room);
            let positions = part.rows.saturating_add(part.limit - 1);
            if self.store.prepare_more(part.sequence, positions).is_err() {
                part.limit = 1;
                let prepared = self.store.prepare_more(part.sequence, part.rows);
                prepared.map_err(|error| StepError::of(number, error))?;
            } else {
                match self.store.spare_states(part.sequence, spares) {
                    Ok(states) => segment.states = states,
                    Err(_) => part.limit = 1,
                }
            }
            copy_tables(part.sequence, segment);
        }
        let mut rows: Vec<RowDraw<'_>> = parts.iter_mut().map(SequenceChain::row_draw).collect();
        let chain = Chain { rows: &mut rows, sampler: &mut self.sampler, sink };
        let finish = self.program.run_chain(&mut self.step, self.store.pool(), chain);
        let finish = finish.map_err(|error| StepError::among((0..parts.len()).collect(), error))?;
        for (part, length) in parts.iter_mut().zip(finish.lengths) {
            let computed = part.sequence.tokens.len()..length;
            self.store.commit(part.sequence, &part.tokens[computed]);
        }
        Ok(())
    }

    /// Runs one step, draws a token for each sequence whose last token was in the step, and reports the values that rows are read
    /// for. Rows read for hidden states run in a second step, by a program that is made when first needed. `sink` sees the rows
    /// of each sequence in order. The rows are then part of their sequences. If a program has several outputs, the values of a
    /// row are those of all outputs, one behind the other.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run), with the numbers of the parts at fault, all of one of the two steps. If the first step
    /// fails, no sequence changes and `sink` receives nothing. [`EngineError::Options`] if there is no program for hidden states.
    pub fn run_reading(
        &mut self,
        parts: &mut [SequenceChain<'_>],
        sink: &mut dyn FnMut(usize, StepOut<'_>),
    ) -> Result<(), StepError> {
        check(parts)?;
        for hidden in [false, true] {
            let chosen = |part: &SequenceChain<'_>| (part.read_value() == Some(ReadValue::Hidden)) == hidden;
            let numbered = parts.iter().enumerate().filter(|(_, part)| chosen(part));
            let numbers: Vec<usize> = numbered.map(|(number, _)| number).collect();
            if numbers.is_empty() {
                continue;
            }
            let mut first: Vec<SequenceRows<'_>> =
                parts.iter_mut().filter(|part| chosen(part)).map(SequenceChain::first_rows).collect();
            self.compose(&mut first, StepEnds::Last).map_err(|failed| failed.renumbered(&numbers))?;
            drop(first);
            let program = if hidden {
                let made = made(&mut self.hidden);
                made.map_err(|error| StepError { error, parts: numbers.clone(), is_certain: true })?
            } else {
                &mut *self.program
            };
            let outputs = program.run(&self.step, self.store.pool());
            let outputs = outputs.map_err(|error| StepError::among(numbers, error))?;
            let numbered = parts.iter_mut().enumerate().filter(|(_, part)| chosen(part));
            let mut out = 0;
            for ((number, part), segment) in numbered.zip(&self.step.segments) {
                let computed = part.sequence.tokens.len()..part.sequence.tokens.len() + part.rows;
                self.store.commit(part.sequence, &part.tokens[computed]);
                for row in segment.out_rows() {
                    let values = outputs.get(0).row(out);
                    if part.reads.is_none() {
                        sink(number, StepOut::Drawn(part.row_draw().draw(values, &mut self.sampler)));
                    } else if outputs.len() == 1 {
                        sink(number, StepOut::Read { index: segment.first_index + row, values });
                    } else {
                        let all: Vec<f32> =
                            outputs.iter().flat_map(|output| output.row(out)).copied().collect();
                        sink(number, StepOut::Read { index: segment.first_index + row, values: &all });
                    }
                    out += 1;
                }
            }
        }
        Ok(())
    }

    /// Appends `tokens` to `sequence` in as many steps as it takes, and computes the logits of the last.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run); `sequence` then holds the tokens of the steps that ran.
    pub fn prefill(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), EngineError> {
        let chunk = self.max_rows();
        let mut rest = tokens;
        while !rest.is_empty() {
            let (tokens, after) = rest.split_at(chunk.min(rest.len()));
            let outs = if after.is_empty() { Outs::Last } else { Outs::None };
            self.run(&mut [SequenceRows { sequence: &mut *sequence, tokens, outs }])?;
            rest = after;
        }
        Ok(())
    }

    /// Runs one step like [`run`](Self::run), but returns the time of each operation.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run).
    pub fn profile(&mut self, parts: &mut [SequenceRows<'_>]) -> Result<Vec<OpTime>, EngineError> {
        self.compose(parts, StepEnds::Last)?;
        let times = self.program.profile(&self.step, self.store.pool())?;
        for part in parts {
            self.store.commit(part.sequence, part.tokens);
        }
        Ok(times)
    }

    /// Makes the step of `parts`, and allocates pages for their tokens. `ends` names the rows that may become the ends
    /// of sequences, and so keep their recurrent states.
    fn compose(&mut self, parts: &mut [SequenceRows<'_>], ends: StepEnds) -> Result<(), StepError> {
        if parts.is_empty() {
            return Err(StepError::senseless(Vec::new(), "a step without parts".into()));
        }
        for (number, part) in parts.iter().enumerate() {
            if part.tokens.is_empty() {
                return Err(StepError::senseless(
                    vec![number],
                    format!("part {number} of a step has no tokens"),
                ));
            }
            if let Some(&id) = part.tokens.iter().find(|&&id| id as usize >= self.vocab_size) {
                let vocab_size = self.vocab_size;
                return Err(StepError::of(number, EngineError::UnknownToken { id, vocab_size }));
            }
            if part.sequence.tokens.len().saturating_add(part.tokens.len()) > self.context {
                return Err(StepError::of(number, EngineError::ContextFull { context: self.context }));
            }
        }
        self.step.segments.truncate(parts.len());
        for (index, part) in parts.iter_mut().enumerate() {
            let prepared = self.store.prepare(part.sequence, part.tokens.len());
            let states =
                prepared.and_then(|()| self.store.step_states(part.sequence, part.tokens.len(), ends));
            let states = states.map_err(|error| StepError::of(index, error))?;
            if self.step.segments.len() == index {
                let id = part.sequence.id;
                self.step.segments.push(Segment::text(id, 0, Vec::new(), Outs::None, Vec::new()));
            }
            // Buffers of the last step are reused: between two tokens nothing is allocated.
            let segment = &mut self.step.segments[index];
            segment.sequence = part.sequence.id;
            segment.first_index = part.sequence.tokens.len();
            segment.set_tokens(part.tokens);
            segment.outs = part.outs.clone();
            segment.states = states;
            segment.given.clear();
            if let Some(rows) = &self.adapter_rows {
                let row =
                    rows.of(part.sequence.scope.adapter).map_err(|error| StepError::of(index, error))?;
                // A program without adapters declares no input.
                if !row.is_empty() {
                    let all = if part.tokens.len() == 1 { row } else { row.repeat(part.tokens.len()).into() };
                    segment.given.push(GivenValues::F32(all));
                }
            }
            copy_tables(part.sequence, segment);
        }
        Ok(())
    }
}

/// The program that returns hidden states; compiled when first needed.
///
/// # Errors
///
/// [`EngineError::Device`] if the program cannot be compiled, [`EngineError::Options`] if the engine was started without one.
fn made(hidden: &mut Hidden) -> Result<&mut dyn Program, EngineError> {
    if let Hidden::Unmade(make) = hidden {
        *hidden = Hidden::Made(make()?);
    }
    match hidden {
        Hidden::Made(program) => Ok(&mut **program),
        _ => Err(EngineError::Options("this engine has no program for hidden states".into())),
    }
}

/// Copies the block tables of `sequence` into `segment`.
fn copy_tables(sequence: &Sequence, segment: &mut Segment) {
    segment.pages.resize(sequence.tables.len(), Vec::new());
    for (pages, table) in segment.pages.iter_mut().zip(&sequence.tables) {
        pages.clone_from(table);
    }
}
