//! A program, the pages it works on, and the checks between them.

use std::ops::Range;

use brasa_graph::chain::{Chain, ChainSink, RowDraw};
use brasa_graph::device::{OpTime, Program};
use brasa_graph::output::Output;
use brasa_graph::sampling::{DrawRules, Sampler, TokenMask};
use brasa_graph::step::{Outs, PAGE_POSITIONS, Segment, SequenceId, Step};

use crate::EngineError;
use crate::kv::{KvStore, Sequence};

/// Runs steps over sequences. The engine's thread has one; [`Engine::with`](crate::Engine::with) lends it out.
pub struct Executor {
    program: Box<dyn Program>,
    store: KvStore,
    context: usize,
    vocab_size: usize,
    step: Step,
    sampler: Sampler,
}

/// A text whose keys and values are cached. Give it back with [`Executor::release`].
#[derive(Debug, Default)]
pub struct Text(pub(crate) Sequence);

impl Text {
    /// The cached tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.0.tokens
    }
}

/// Rows of one text in a step.
pub struct Part<'a> {
    /// Whose rows.
    pub text: &'a mut Text,
    /// The tokens that follow what is cached.
    pub tokens: &'a [u32],
    /// Which of them have their logits computed.
    pub outs: Outs,
}

/// A text that is to be continued by a chain.
pub(crate) struct ChainPart<'a> {
    pub(crate) text: &'a mut Text,
    /// Tokens of the text and those that follow it, of which the next `rows` are computed first. Drawn tokens are
    /// appended.
    pub(crate) tokens: &'a mut Vec<u32>,
    pub(crate) rows: usize,
    pub(crate) rules: &'a DrawRules,
    /// Position of the next token, which names its noise.
    pub(crate) position: u32,
    /// Most tokens that are drawn, at least 1. Lowered where positions or pages for so many are wanting.
    pub(crate) limit: usize,
    /// Ids that end the chain of this text.
    pub(crate) stops: &'a [u32],
    pub(crate) mask: Option<&'a mut dyn TokenMask>,
}

impl ChainPart<'_> {
    fn part(&mut self) -> Part<'_> {
        let start = self.text.0.tokens.len();
        let tokens = &self.tokens[start..start + self.rows];
        let last = start + self.rows == self.tokens.len();
        Part { text: self.text, tokens, outs: if last { Outs::Last } else { Outs::None } }
    }
}

impl Executor {
    pub(crate) fn new(program: Box<dyn Program>, store: KvStore, context: usize, vocab_size: usize) -> Self {
        Self { program, store, context, vocab_size, step: Step::default(), sampler: Sampler::default() }
    }

    /// Positions that a text may have.
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

    /// Most texts in a step.
    pub fn max_segments(&self) -> usize {
        self.program.limits().max_segments
    }

    /// A text of nothing.
    pub fn text(&self) -> Text {
        Text(self.store.empty())
    }

    /// Gives back the pages of `text`.
    pub fn release(&mut self, text: Text) {
        self.store.release(text.0);
    }

    /// Forgets everything from index `length` on; returns the length kept, which is less (namely 0) where a
    /// sliding window no longer holds what the next row would see.
    pub fn truncate(&mut self, text: &mut Text, length: usize) -> usize {
        self.store.truncate(&mut text.0, length)
    }

    /// Drops the tokens of `pages` (of 256 tokens each) and moves what follows to their place, without computing anything
    /// anew; false where that is impossible, and nothing changed.
    ///
    /// What follows still remembers what was dropped: its values, and its keys of all layers but the first, were computed
    /// with it in sight.
    pub(crate) fn shift(&mut self, text: &mut Text, pages: Range<usize>) -> bool {
        let by = -((pages.len() * PAGE_POSITIONS) as i32);
        let program = &mut self.program;
        program.check_shift(self.store.pool()).is_ok()
            && self
                .store
                .shift(&mut text.0, pages, |pool, pages| program.shift(pool, pages, by))
                .unwrap_or(false)
    }

    /// Takes `text` back to what it has in common with `tokens`, or makes it a longer beginning of them that an earlier text
    /// left behind; returns its length.
    pub(crate) fn resume(&mut self, text: &mut Text, tokens: &[u32]) -> usize {
        self.store.resume(&mut text.0, tokens)
    }

    /// Keeps the whole pages of `text` for later texts that begin alike, as far as the budget for prefixes goes.
    pub(crate) fn keep(&mut self, text: &Text) {
        self.store.keep(&text.0);
    }

    /// Another text with the same content; pages are shared until one of the two writes.
    pub fn fork(&mut self, text: &Text) -> Text {
        Text(self.store.fork(&text.0))
    }

    /// Bytes of KV pages and of the program's arena.
    pub fn memory_bytes(&self) -> u64 {
        self.store.size_bytes() + self.program.arena_bytes()
    }

    /// Runs one step; returns the logits of the rows that asked, in order. All rows are then part of their texts.
    ///
    /// # Errors
    ///
    /// [`EngineError::UnknownToken`], [`EngineError::ContextFull`], [`EngineError::CacheFull`]: nothing was computed, and
    /// no text changed. [`EngineError::Device`].
    pub fn run(&mut self, parts: &mut [Part<'_>]) -> Result<Output<'_>, EngineError> {
        self.compose(parts)?;
        let output = self.program.run(&self.step, self.store.pool())?.only();
        for part in parts {
            self.store.commit(&mut part.text.0, part.tokens);
        }
        Ok(output)
    }

    /// Most tokens of a text in one chain; `masked` where a text of the chain has a mask.
    pub(crate) fn max_chain(&self, masked: bool) -> usize {
        self.program.max_chain(masked)
    }

    /// Runs one step; texts whose tokens are thereby all computed go on, each up to its limit, and `sink` sees every token.
    /// Computed tokens are then part of their texts. A text for which pages or positions are wanting has a lower limit; the
    /// others keep theirs.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run); no text changed, but tokens that `sink` has seen are among the parts' tokens.
    pub(crate) fn run_chain(
        &mut self,
        parts: &mut [ChainPart<'_>],
        sink: &mut ChainSink<'_>,
    ) -> Result<(), EngineError> {
        let mut first: Vec<Part<'_>> = parts.iter_mut().map(ChainPart::part).collect();
        self.compose(&mut first)?;
        for (part, segment) in parts.iter_mut().zip(&mut self.step.segments) {
            if segment.outs != Outs::Last || part.limit <= 1 {
                continue;
            }
            let room = self.context.saturating_sub(part.text.0.tokens.len() + part.rows) + 1;
            part.limit = part.limit.min(room);
            match self.store.prepare(&mut part.text.0, part.rows + part.limit - 1) {
                Ok(()) => {}
                Err(EngineError::CacheFull { .. }) => {
                    part.limit = 1;
                    self.store.prepare(&mut part.text.0, part.rows)?;
                }
                Err(error) => return Err(error),
            }
            copy_tables(part.text, segment);
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
            let computed = part.text.0.tokens.len()..length;
            self.store.commit(&mut part.text.0, &part.tokens[computed]);
        }
        Ok(())
    }

    /// Runs `tokens` through `text` in as many steps as it takes, computing the logits of the last.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run); `text` then holds the chunks that ran.
    pub fn prefill(&mut self, text: &mut Text, tokens: &[u32]) -> Result<(), EngineError> {
        let chunk = self.max_rows();
        let mut rest = tokens;
        while !rest.is_empty() {
            let (tokens, after) = rest.split_at(chunk.min(rest.len()));
            let outs = if after.is_empty() { Outs::Last } else { Outs::None };
            self.run(&mut [Part { text: &mut *text, tokens, outs }])?;
            rest = after;
        }
        Ok(())
    }

    /// Runs one step as [`run`](Self::run) does; returns the time of each operation.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub fn profile(&mut self, parts: &mut [Part<'_>]) -> Result<Vec<OpTime>, EngineError> {
        self.compose(parts)?;
        let times = self.program.profile(&self.step, self.store.pool())?;
        for part in parts {
            self.store.commit(&mut part.text.0, part.tokens);
        }
        Ok(times)
    }

    /// Runs `tokens` through `text` in as many steps as it takes; `sink` receives the logits of every row.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub fn score(
        &mut self,
        text: &mut Text,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]) -> std::ops::ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let chunk = self.max_rows().min(self.max_outs());
        for (index, tokens) in tokens.chunks(chunk).enumerate() {
            let output = self.run(&mut [Part { text: &mut *text, tokens, outs: Outs::All }])?;
            for row in 0..output.rows() {
                if sink(index * chunk + row, output.row(row)).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Makes the step of `parts`, with pages for their tokens.
    fn compose(&mut self, parts: &mut [Part<'_>]) -> Result<(), EngineError> {
        for part in &*parts {
            if let Some(&id) = part.tokens.iter().find(|&&id| id as usize >= self.vocab_size) {
                return Err(EngineError::UnknownToken { id, vocab_size: self.vocab_size });
            }
            if part.text.0.tokens.len() + part.tokens.len() > self.context {
                return Err(EngineError::ContextFull { context: self.context });
            }
        }
        self.step.segments.truncate(parts.len());
        for (index, part) in parts.iter_mut().enumerate() {
            self.store.prepare(&mut part.text.0, part.tokens.len())?;
            if self.step.segments.len() == index {
                let id = SequenceId(index as u64);
                self.step.segments.push(Segment::text(id, 0, Vec::new(), Outs::None, Vec::new()));
            }
            // Buffers of the last step are reused: between two tokens nothing is allocated.
            let segment = &mut self.step.segments[index];
            segment.first_index = part.text.0.tokens.len();
            segment.set_tokens(part.tokens);
            segment.outs = part.outs.clone();
            copy_tables(part.text, segment);
        }
        Ok(())
    }
}

/// Gives `segment` the block tables of `text`.
fn copy_tables(text: &Text, segment: &mut Segment) {
    segment.pages.resize(text.0.tables.len(), Vec::new());
    for (pages, table) in segment.pages.iter_mut().zip(&text.0.tables) {
        pages.clone_from(table);
    }
}
