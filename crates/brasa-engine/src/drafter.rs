//! A draft model: a small model that guesses the large model's next tokens.
//!
//! The draft model has a program, pages and sequences of its own. A sequence is compared with its text before each use: what they
//! have in common is kept, and the rest is computed. So texts that shrink, slide, move or come back need no care here, nor do drafts that
//! were not drawn.
//!
//! A guess is drawn from the draft model's logits as the text's own token is drawn from the large model's: by the same rules and
//! the same noise of its position. So two models with equal logits draw equal tokens at any temperature. A grammar's mask is not
//! applied to guesses: a guess that the mask forbids is not drawn, and lowers trust.
//!
//! The guesses of several texts are computed together, one token of each in a step. [`schedule`](crate::schedule) decides whether
//! the guesses are worth those steps.

use std::time::Instant;

use brasa_graph::device::{KvPool, Program};
use brasa_graph::sampling::{DrawRules, Row, Sampler};
use brasa_graph::step::{Outs, SequenceId};

use crate::answer::MOST_UNCHECKED;
use crate::draft::{Draft, Modeled};
use crate::executor::{Executor, SequenceRows};
use crate::kv::KvStore;
use crate::schedule::StepCosts;
use crate::sequence::Sequence;
use crate::{CacheScope, EngineError};

/// Most tokens of a text that are computed in the step of its first guess. If more tokens of a text are missing, they are
/// computed first.
const MOST_BEHIND: usize = 8;

/// A program that guesses tokens for another program, and its sizes. Both models have the same tokens.
pub struct DraftModel {
    /// The draft model's program, which returns logits. Texts beyond its most segments, rows or outs have no guesses.
    pub program: Box<dyn Program>,
    /// An empty pool of the program's.
    pub pool: Box<dyn KvPool>,
    /// Most positions of a text. Longer texts have no guesses.
    pub context: usize,
    /// Width of the logits. Ids at or above it are not guessed, and texts with such ids have no guesses.
    pub vocab_size: usize,
    /// Most bytes of the pool's pages.
    pub cache_bytes: u64,
}

/// A text, and the number of guesses that are wanted for its next tokens.
pub(crate) struct Wish<'a> {
    /// The text's sequence in the engine.
    pub(crate) id: SequenceId,
    pub(crate) scope: CacheScope,
    /// True if no other text may begin with what is computed for this one.
    pub(crate) private: bool,
    /// Tokens of the text. Guesses are appended during the call and removed afterwards.
    pub(crate) tokens: &'a mut Vec<u32>,
    pub(crate) rules: &'a DrawRules,
    /// Position of the next token; selects the noise of its draw.
    pub(crate) position: u32,
    /// Tokens after which nothing is guessed.
    pub(crate) ends: &'a [u32],
    /// Guesses wanted.
    pub(crate) count: usize,
    /// Least probability of being drawn at which a further guess is worth a step of the draft model.
    pub(crate) least_hope: f32,
    pub(crate) modeled: &'a mut Modeled,
    pub(crate) draft: &'a mut Draft,
}

/// Runs the draft model: its texts, pages and steps.
pub(crate) struct Drafter {
    executor: Executor,
    sampler: Sampler,
    /// Texts, in order of their last use, the latest last.
    texts: Vec<Text>,
    most_texts: usize,
    costs: StepCosts,
    /// Trust in the draft model, learned from the text that ended last.
    experience: Modeled,
}

/// The part of a text that the draft model has computed.
struct Text {
    owner: SequenceId,
    sequence: Sequence,
}

impl Drafter {
    /// A draft model for up to `most_texts` texts at once.
    pub(crate) fn new(model: DraftModel, most_texts: usize) -> Self {
        let DraftModel { program, pool, context, vocab_size, cache_bytes } = model;
        let rows = program.limits().max_rows.max(MOST_UNCHECKED);
        let store = KvStore::new(pool, cache_bytes, 0, context, rows)
            .with_spare_state_pages(program.spare_state_pages());
        Self {
            executor: Executor::new(program, None, None, store, context, vocab_size),
            sampler: Sampler::default(),
            texts: Vec::new(),
            most_texts: most_texts.max(1),
            costs: StepCosts::default(),
            experience: Modeled::default(),
        }
    }

    /// The trust with which a new text begins, so that a model whose guesses did not pay is not tried anew for each text.
    pub(crate) fn experience(&self) -> Modeled {
        self.experience.for_another_text()
    }

    /// Learns from a text that has ended.
    pub(crate) fn learn(&mut self, of_text: &Modeled) {
        self.experience = of_text.for_another_text();
    }

    /// Times of the draft model's steps.
    pub(crate) fn costs(&self) -> &StepCosts {
        &self.costs
    }

    /// Bytes of the draft model's pages and of its program's arena.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.executor.memory_bytes()
    }

    /// Makes the guesses of `wishes`. A text that is far behind gets no guesses in this call; up to `catch_up_rows` rows of such
    /// texts are computed.
    ///
    /// # Errors
    ///
    /// [`EngineError::Device`]: the draft model is lost. The texts of `wishes` are unchanged.
    pub(crate) fn guess(&mut self, wishes: &mut [Wish<'_>], catch_up_rows: usize) -> Result<(), EngineError> {
        let most = self.executor.max_segments().min(self.executor.max_outs()).min(self.executor.max_rows());
        let count = wishes.len().min(most);
        let wishes = &mut wishes[..count];
        let mut texts: Vec<Text> = wishes.iter().map(|wish| self.take_text(wish)).collect();
        let lengths: Vec<usize> = wishes.iter().map(|wish| wish.tokens.len()).collect();
        let guessed = self.guess_behind(wishes, &mut texts, catch_up_rows);
        for (wish, length) in wishes.iter_mut().zip(lengths) {
            wish.tokens.truncate(length);
            let guesses = wish.draft.tokens.iter().zip(&wish.draft.probabilities);
            wish.modeled.expect(guesses.map(|(&token, &probability)| (token, probability)));
        }
        self.texts.append(&mut texts);
        while self.texts.len() > self.most_texts {
            let text = self.texts.remove(0);
            self.executor.release(text.sequence);
        }
        guessed
    }

    fn guess_behind(
        &mut self,
        wishes: &mut [Wish<'_>],
        texts: &mut [Text],
        catch_up_rows: usize,
    ) -> Result<(), EngineError> {
        let ready = self.catch_up(wishes, texts, catch_up_rows)?;
        let mut going: Vec<usize> = ready.into_iter().filter(|&place| wishes[place].count > 0).collect();
        while !going.is_empty() {
            let began = Instant::now();
            let rows = going.iter().map(|&place| behind(&wishes[place], &texts[place])).sum();
            if !self.run(wishes, texts, &going)? {
                return Ok(());
            }
            self.costs.observe(rows, began.elapsed());
            going.retain(|&place| wishes[place].goes_on());
        }
        Ok(())
    }

    /// Computes the rows that `texts` lack, up to `most_rows`. Returns the places of the texts that lack few enough to be guessed
    /// for.
    fn catch_up(
        &mut self,
        wishes: &mut [Wish<'_>],
        texts: &mut [Text],
        most_rows: usize,
    ) -> Result<Vec<usize>, EngineError> {
        let mut guess_rows_left = self.executor.max_rows();
        let mut rows_left = most_rows.min(guess_rows_left);
        let mut ready = Vec::new();
        for place in 0..wishes.len() {
            let (wish, text) = (&mut wishes[place], &mut texts[place]);
            let vocab_size = self.executor.vocab_size();
            let fits = wish.tokens.len() + wish.count <= self.executor.context()
                && wish.tokens[text.sequence.tokens().len()..].iter().all(|&id| (id as usize) < vocab_size);
            if !fits {
                wish.modeled.has_no_room();
                continue;
            }
            let lacking = behind(wish, text);
            if lacking > MOST_BEHIND {
                let rows = (lacking - 1).min(rows_left);
                rows_left -= rows;
                let start = text.sequence.tokens().len();
                text.sequence.may_return_to = Some(start + rows);
                if rows > 0 {
                    let tokens = &wish.tokens[start..start + rows];
                    let part = SequenceRows { sequence: &mut text.sequence, tokens, outs: Outs::None };
                    match self.executor.run(&mut [part]) {
                        Ok(_) => {}
                        Err(EngineError::CacheFull { .. }) => {
                            self.make_room(wish, text);
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            let lacking = behind(wish, text);
            if lacking <= MOST_BEHIND.min(guess_rows_left) {
                guess_rows_left -= lacking;
                ready.push(place);
            }
        }
        Ok(ready)
    }

    /// Computes the rows that the texts at the places `going` lack, and draws a guess for each. Returns false if there are no pages
    /// for them.
    fn run(
        &mut self,
        wishes: &mut [Wish<'_>],
        texts: &mut [Text],
        going: &[usize],
    ) -> Result<bool, EngineError> {
        let vocab_size = self.executor.vocab_size();
        let mut parts = Vec::with_capacity(going.len());
        for (place, (wish, text)) in wishes.iter().zip(&mut *texts).enumerate() {
            if going.contains(&place) {
                let start = text.sequence.tokens().len();
                // Windows keep what the text needs if its guesses are not drawn.
                text.sequence.may_return_to = Some(wish.tokens.len() - wish.draft.tokens.len());
                let tokens = &wish.tokens[start..];
                parts.push(SequenceRows { sequence: &mut text.sequence, tokens, outs: Outs::Last });
            }
        }
        let logits = match self.executor.run(&mut parts) {
            Ok(logits) => logits,
            Err(EngineError::CacheFull { .. }) => {
                drop(parts);
                going
                    .last()
                    .into_iter()
                    .for_each(|&place| self.make_room(&mut wishes[place], &mut texts[place]));
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        drop(parts);
        for (out, &place) in going.iter().enumerate() {
            let logits = logits.row(out);
            wishes[place].draw(&logits[..logits.len().min(vocab_size)], &mut self.sampler);
        }
        Ok(true)
    }

    /// The draft model's text for a wish, cut to the beginning that it shares with the wish's tokens: the wish's own text, a copy
    /// of the text with the longest common beginning, or a new one.
    fn take_text(&mut self, wish: &Wish<'_>) -> Text {
        // The last token is always computed: its logits are the guess.
        let known = &wish.tokens[..wish.tokens.len() - 1];
        let shared = |text: &Text| text.sequence.shared(wish.scope, known);
        let own = self.texts.iter().position(|text| text.owner == wish.id);
        let mut sequence = if let Some(place) = own {
            self.texts.remove(place).sequence
        } else {
            let open = self.texts.iter().filter(|text| !text.sequence.private && !wish.private);
            match open.max_by_key(|text| shared(text)).filter(|text| shared(text) > MOST_BEHIND) {
                Some(like) => self.executor.fork(&like.sequence),
                None => self.executor.sequence(),
            }
        };
        let kept = sequence.shared(wish.scope, known);
        self.executor.truncate(&mut sequence, kept);
        (sequence.scope, sequence.private) = (wish.scope, wish.private);
        Text { owner: wish.id, sequence }
    }

    /// Releases the pages of texts that are not in use; if there are none, the pages of `text`.
    fn make_room(&mut self, wish: &mut Wish<'_>, text: &mut Text) {
        if self.texts.is_empty() {
            wish.modeled.has_no_room();
            self.executor.truncate(&mut text.sequence, 0);
        }
        for text in self.texts.drain(..) {
            self.executor.release(text.sequence);
        }
    }
}

impl Wish<'_> {
    /// Draws a guess from `logits` and appends it.
    fn draw(&mut self, logits: &[f32], sampler: &mut Sampler) {
        let position = self.position + self.draft.tokens.len() as u32;
        let drawn = sampler.draw(self.rules, &Row::new(logits, position, self.tokens));
        let Some(token) = drawn.ok().map(|draw| draw.token).filter(|token| !self.ends.contains(token)) else {
            self.count = 0;
            return;
        };
        let probability = probability(logits, token);
        let before = self.draft.hopes.last().copied().unwrap_or(1.0);
        self.draft.push(token, before * self.modeled.hope_of(probability), probability);
        self.tokens.push(token);
    }

    /// True if a further guess is wanted after the last one.
    fn goes_on(&self) -> bool {
        self.draft.tokens.len() < self.count
            && self.draft.hopes.last().is_some_and(|&hope| hope > self.least_hope)
    }
}

/// Tokens of the text that the draft model has not computed.
fn behind(wish: &Wish<'_>, text: &Text) -> usize {
    wish.tokens.len() - text.sequence.tokens().len()
}

/// The probability of `token` in the softmax of `logits`.
fn probability(logits: &[f32], token: u32) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // What is further below adds nothing that matters.
    let near = logits.iter().filter(|&&logit| logit > largest - 16.0);
    let sum: f32 = near.map(|logit| (logit - largest).exp()).sum();
    (logits[token as usize] - largest).exp() / sum.max(1.0)
}
