//! A program, the pages it works on, and the checks between them.

use std::ops::Range;

use brasa_graph::chain::{Chain, ChainSink, RowDraw};
use brasa_graph::device::{OpTime, Program};
use brasa_graph::output::Output;
use brasa_graph::sampling::{DrawRules, Sampler, TokenMask};
use brasa_graph::step::{Outs, PAGE_POSITIONS, Segment, Step};

use crate::kv::KvStore;
use crate::outlook::Outlook;
use crate::sequence::Sequence;
use crate::{CacheScope, EngineError};

/// Runs steps over sequences. The engine's thread has one; [`Engine::with`](crate::Engine::with) lends it out.
pub struct Executor {
    program: Box<dyn Program>,
    store: KvStore,
    context: usize,
    vocab_size: usize,
    step: Step,
    sampler: Sampler,
}

/// The next rows of one sequence in a step. On the device they are a [`Segment`].
pub struct SequenceRows<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// The tokens that follow the cached ones.
    pub tokens: &'a [u32],
    /// The rows whose logits are computed.
    pub outs: Outs,
}

/// A sequence that takes part in a chain. On the device it is a [`Segment`] and a [`RowDraw`].
pub struct SequenceChain<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// The cached tokens and the tokens that follow them. The chain begins with a step of the next `rows` tokens; if they
    /// are the last ones, tokens are drawn, and appended here.
    pub tokens: &'a mut Vec<u32>,
    /// Rows of the first step.
    pub rows: usize,
    /// How tokens are drawn.
    pub rules: &'a DrawRules,
    /// Position of the next token, which names its noise.
    pub position: u32,
    /// Most tokens to draw, at least 1. The executor lowers it if positions or pages for so many are wanting.
    pub limit: usize,
    /// Ids that end the chain of this sequence.
    pub stops: &'a [u32],
    /// The ids that a grammar allows; `None` for all.
    pub mask: Option<&'a mut dyn TokenMask>,
}

impl SequenceChain<'_> {
    fn first_rows(&mut self) -> SequenceRows<'_> {
        let start = self.sequence.tokens.len();
        let tokens = &self.tokens[start..start + self.rows];
        let last = start + self.rows == self.tokens.len();
        SequenceRows { sequence: self.sequence, tokens, outs: if last { Outs::Last } else { Outs::None } }
    }
}

impl Executor {
    pub(crate) fn new(program: Box<dyn Program>, store: KvStore, context: usize, vocab_size: usize) -> Self {
        Self { program, store, context, vocab_size, step: Step::default(), sampler: Sampler::default() }
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

    /// Most rows of a step whose logits can be computed.
    pub fn max_outs(&self) -> usize {
        self.program.limits().max_outs
    }

    /// Most sequences in a step.
    pub fn max_segments(&self) -> usize {
        self.program.limits().max_segments
    }

    /// A sequence of nothing, in the default scope.
    pub fn sequence(&mut self) -> Sequence {
        self.store.empty(CacheScope::default())
    }

    /// Gives back the pages of `sequence`.
    pub fn release(&mut self, sequence: Sequence) {
        self.store.release(sequence);
    }

    /// Forgets everything from index `length` on; returns the length kept. It is 0 if a sliding window no longer holds the
    /// rows that the next row would see.
    pub fn truncate(&mut self, sequence: &mut Sequence, length: usize) -> usize {
        self.store.truncate(sequence, length)
    }

    /// Drops the tokens of `pages` (of 256 tokens each) and moves the tokens behind them to their place, without computing
    /// anything anew. False if that is impossible; nothing changed then.
    ///
    /// The moved tokens still remember the dropped ones: their values, and their keys of all layers but the first, were
    /// computed with them in sight.
    pub(crate) fn shift(&mut self, sequence: &mut Sequence, pages: Range<usize>) -> bool {
        let by = -((pages.len() * PAGE_POSITIONS) as i32);
        let program = &mut self.program;
        program.check_shift(self.store.pool()).is_ok()
            && self
                .store
                .shift(sequence, pages, |pool, pages| program.shift(pool, pages, by))
                .unwrap_or(false)
    }

    /// Takes `sequence` back to the beginning that it shares with `tokens`, or makes it a longer beginning of them that an
    /// earlier text of `scope` left behind; returns its length.
    pub(crate) fn resume(&mut self, sequence: &mut Sequence, scope: CacheScope, tokens: &[u32]) -> usize {
        self.store.resume(sequence, scope, tokens)
    }

    /// The length that [`truncate`](Self::truncate) would keep.
    pub(crate) fn resumable(&self, sequence: &Sequence, length: usize) -> usize {
        self.store.resumable(sequence, length)
    }

    /// The pages and their holders, for a look ahead.
    pub(crate) fn outlook(&self) -> Outlook<'_> {
        self.store.outlook()
    }

    /// Keeps the whole pages of `sequence` for later texts that begin alike, within the budget for prefixes.
    pub(crate) fn keep(&mut self, sequence: &Sequence) {
        self.store.keep(sequence);
    }

    /// Another sequence with the same content; pages are shared until one of the two writes.
    pub fn fork(&mut self, sequence: &Sequence) -> Sequence {
        self.store.fork(sequence)
    }

    /// Bytes of KV pages and of the program's arena.
    pub fn memory_bytes(&self) -> u64 {
        self.store.size_bytes() + self.program.arena_bytes()
    }

    /// Makes the next `rows` positions of `sequence` writable, as a step does for each of its sequences.
    ///
    /// # Errors
    ///
    /// [`EngineError::CacheFull`], [`EngineError::Device`] if a page could not be had or copied: the sequence is the same text.
    pub(crate) fn prepare(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), EngineError> {
        self.store.prepare(sequence, rows)
    }

    /// Runs one step; returns the logits of the rows that asked, in order. All rows are then part of their sequences.
    ///
    /// # Errors
    ///
    /// [`EngineError::UnknownToken`], [`EngineError::ContextFull`], [`EngineError::CacheFull`]: nothing was computed, and
    /// no sequence changed. [`EngineError::Device`].
    pub fn run(&mut self, parts: &mut [SequenceRows<'_>]) -> Result<Output<'_>, EngineError> {
        self.compose(parts)?;
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

    /// Runs one step, then draws and computes further tokens of the sequences whose last token was in it, each up to its
    /// limit. `sink` sees every token. Computed tokens are then part of their sequences. A sequence for which pages or
    /// positions are wanting has a lower limit; the others keep theirs.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run). No sequence changed then, but tokens that `sink` has seen are among the tokens of
    /// `parts`.
    pub fn run_chain(
        &mut self,
        parts: &mut [SequenceChain<'_>],
        sink: &mut ChainSink<'_>,
    ) -> Result<(), EngineError> {
        let mut first: Vec<SequenceRows<'_>> = parts.iter_mut().map(SequenceChain::first_rows).collect();
        self.compose(&mut first)?;
        for (part, segment) in parts.iter_mut().zip(&mut self.step.segments) {
            if segment.outs != Outs::Last || part.limit <= 1 {
                continue;
            }
            let room = self.context.saturating_sub(part.sequence.tokens.len() + part.rows) + 1;
            part.limit = part.limit.min(room);
            if self.store.prepare(part.sequence, part.rows + part.limit - 1).is_err() {
                part.limit = 1;
                self.store.prepare(part.sequence, part.rows)?;
            }
            copy_tables(part.sequence, segment);
        }
        let mut rows: Vec<RowDraw<'_>> = parts
            .iter_mut()
            .map(|part| RowDraw {
                rules: part.rules,
                position: part.position,
                history: &mut *part.tokens,
                limit: part.limit,
                stops: part.stops,
                mask: part.mask.as_mut().map(|mask| &mut **mask as &mut dyn TokenMask),
            })
            .collect();
        let chain = Chain { rows: &mut rows, sampler: &mut self.sampler, sink };
        let finish = self.program.run_chain(&mut self.step, self.store.pool(), chain)?;
        for (part, length) in parts.iter_mut().zip(finish.lengths) {
            let computed = part.sequence.tokens.len()..length;
            self.store.commit(part.sequence, &part.tokens[computed]);
        }
        Ok(())
    }

    /// Appends `tokens` to `sequence` in as many steps as it takes, and computes the logits of the last.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run); `sequence` then holds the chunks that ran.
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
        self.compose(parts)?;
        let times = self.program.profile(&self.step, self.store.pool())?;
        for part in parts {
            self.store.commit(part.sequence, part.tokens);
        }
        Ok(times)
    }

    /// Appends `tokens` to `sequence` in as many steps as it takes; `sink` receives the logits of every row, and may stop.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run).
    pub fn score(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]) -> std::ops::ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let chunk = self.max_rows().min(self.max_outs());
        for (index, tokens) in tokens.chunks(chunk).enumerate() {
            let output =
                self.run(&mut [SequenceRows { sequence: &mut *sequence, tokens, outs: Outs::All }])?;
            for row in 0..output.rows() {
                if sink(index * chunk + row, output.row(row)).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Makes the step of `parts`, with pages for their tokens.
    fn compose(&mut self, parts: &mut [SequenceRows<'_>]) -> Result<(), EngineError> {
        for part in &*parts {
            if let Some(&id) = part.tokens.iter().find(|&&id| id as usize >= self.vocab_size) {
                return Err(EngineError::UnknownToken { id, vocab_size: self.vocab_size });
            }
            if part.sequence.tokens.len() + part.tokens.len() > self.context {
                return Err(EngineError::ContextFull { context: self.context });
            }
        }
        self.step.segments.truncate(parts.len());
        for (index, part) in parts.iter_mut().enumerate() {
            self.store.prepare(part.sequence, part.tokens.len())?;
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
            copy_tables(part.sequence, segment);
        }
        Ok(())
    }
}

/// Gives `segment` the block tables of `sequence`.
fn copy_tables(sequence: &Sequence, segment: &mut Segment) {
    segment.pages.resize(sequence.tables.len(), Vec::new());
    for (pages, table) in segment.pages.iter_mut().zip(&sequence.tables) {
        pages.clone_from(table);
    }
}
