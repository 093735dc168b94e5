//! A program, the pages it works on, and the checks between them.

use std::ops::Range;

use brasa_graph::chain::{ChainRow, ChainSink};
use brasa_graph::device::{OpTime, Output, Program};
use brasa_graph::sampling::Sampler;
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
    pub(crate) sampler: &'a mut Sampler,
    /// Position of the next token, which names its noise.
    pub(crate) position: u32,
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
        Self { program, store, context, vocab_size, step: Step::default() }
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
        self.compose(parts, 1)?;
        let output = self.program.run(&self.step, self.store.pool())?;
        for part in parts {
            self.store.commit(&mut part.text.0, part.tokens);
        }
        Ok(output)
    }

    /// Runs one step; texts whose tokens are thereby all computed go on for up to `tokens` tokens, each of which `sink`
    /// sees. Computed tokens are then part of their texts. Where pages or positions for so many are wanting, the chain is
    /// shorter.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run); no text changed, but tokens that `sink` has seen are among the parts' tokens.
    pub(crate) fn run_chain(
        &mut self,
        parts: &mut [ChainPart<'_>],
        tokens: usize,
        sink: &mut ChainSink<'_>,
    ) -> Result<(), EngineError> {
        let room =
            |part: &ChainPart<'_>| self.context.saturating_sub(part.text.0.tokens.len() + part.rows) + 1;
        let mut tokens = parts.iter().map(room).fold(tokens, usize::min);
        let mut first: Vec<Part<'_>> = parts.iter_mut().map(ChainPart::part).collect();
        match self.compose(&mut first, tokens) {
            Err(EngineError::CacheFull { .. }) if tokens > 1 => {
                tokens = 1;
                self.compose(&mut first, tokens)?;
            }
            result => result?,
        }
        let mut rows: Vec<ChainRow<'_>> = parts
            .iter_mut()
            .map(|part| {
                let history = &mut *part.tokens;
                ChainRow { sampler: &mut *part.sampler, position: part.position, history }
            })
            .collect();
        let finish = self.program.run_chain(&mut self.step, self.store.pool(), tokens, &mut rows, sink)?;
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
        self.compose(parts, 1)?;
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

    /// The step of `parts`, with pages for `tokens` tokens that each of them yields.
    fn compose(&mut self, parts: &mut [Part<'_>], tokens: usize) -> Result<(), EngineError> {
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
            let ahead = if part.outs == Outs::Last { tokens - 1 } else { 0 };
            self.store.prepare(&mut part.text.0, part.tokens.len() + ahead)?;
            if self.step.segments.len() == index {
                let id = SequenceId(index as u64);
                self.step.segments.push(Segment::text(id, 0, Vec::new(), Outs::None, Vec::new()));
            }
            // Buffers of the last step are reused: between two tokens nothing is allocated.
            let segment = &mut self.step.segments[index];
            segment.first_index = part.text.0.tokens.len();
            segment.tokens.clear();
            segment.tokens.extend_from_slice(part.tokens);
            segment.outs = part.outs.clone();
            segment.pages.resize(part.text.0.tables.len(), Vec::new());
            for (pages, table) in segment.pages.iter_mut().zip(&part.text.0.tables) {
                pages.clone_from(table);
            }
        }
        Ok(())
    }
}
