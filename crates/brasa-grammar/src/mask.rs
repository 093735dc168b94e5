//! The mask of one generation.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use brasa_engine::MaskSource;
use brasa_graph::sampling::{SamplingError, TokenMask};
use llguidance::toktrie::SimpleVob;

use crate::parser::Parser;
use crate::pool::Task;

/// Most forced tokens that a parser takes beyond the accepted text.
const MOST_AHEAD: usize = 8;

/// A grammar compiled for a model's tokens. Makes one mask for each generation.
pub struct CompiledGrammar {
    /// The parser at the beginning of a text. Each mask copies it with its caches, so that generations do not wait for each other
    /// or fail together.
    first: Mutex<Computed>,
    /// The kind of grammar, for errors.
    kind: &'static str,
    vocab_size: usize,
    warnings: Vec<String>,
}

/// The mask of one text.
struct GrammarMask {
    next: Next,
    kind: &'static str,
    vocab_size: usize,
}

/// The mask after the accepted text, or its computation.
enum Next {
    /// A thread computes the mask.
    Coming {
        task: Arc<Task<Computed>>,
        /// Tokens that the grammar forces, found before the mask was computed.
        forced: Vec<u32>,
    },
    Here(Box<Computed>),
    /// The mask can no longer be computed, for this reason.
    Failed(String),
}

/// The masks after the accepted text and after each of the tokens forced there.
struct Computed {
    /// The parser after the accepted text and `forced`.
    parser: Parser,
    /// Forced tokens after the accepted text: each is the only one that its mask allows.
    forced: VecDeque<u32>,
    /// The mask after the accepted text, and one after each forced token.
    allowed: VecDeque<Result<Arc<[u32]>, String>>,
}

impl CompiledGrammar {
    /// A grammar with `parser` at the beginning of a text. `warnings` name the rules that the parser does not enforce.
    ///
    /// # Errors
    ///
    /// The parser's message if no text can begin.
    pub(crate) fn new(
        parser: Parser,
        kind: &'static str,
        vocab_size: usize,
        warnings: Vec<String>,
    ) -> Result<Self, String> {
        let first = Computed::ahead_of(parser);
        match first.allowed.front() {
            Some(Err(reason)) => Err(reason.clone()),
            _ => Ok(Self { first: Mutex::new(first), kind, vocab_size, warnings }),
        }
    }
}

impl MaskSource for CompiledGrammar {
    fn start(&self) -> Box<dyn TokenMask> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let here = Computed {
            parser: first.parser.deep_clone(),
            forced: first.forced.clone(),
            allowed: first.allowed.clone(),
        };
        Box::new(GrammarMask { next: Next::Here(here.into()), kind: self.kind, vocab_size: self.vocab_size })
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledGrammar").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl Computed {
    /// Computes the masks after the parser's text. While a mask allows a single token, the parser takes it and continues.
    fn ahead_of(mut parser: Parser) -> Self {
        let (mut forced, mut allowed) = (VecDeque::new(), VecDeque::new());
        loop {
            let mask = match parser.mask() {
                Ok(mask) => mask,
                Err(reason) => {
                    allowed.push_back(Err(reason));
                    break;
                }
            };
            let only = only_token(&mask).filter(|_| forced.len() < MOST_AHEAD);
            allowed.push_back(Ok(mask.as_slice().into()));
            // Nothing follows an end.
            let Some(id) = only.filter(|&id| !parser.is_end(id)) else { break };
            forced.push_back(id);
            if let Err(reason) = parser.consume(id) {
                allowed.push_back(Err(reason));
                break;
            }
        }
        Self { parser, forced, allowed }
    }
}

impl GrammarMask {
    /// Waits for the mask after the accepted text.
    fn here(&mut self) -> Result<&mut Computed, SamplingError> {
        if let Next::Coming { task, .. } = &self.next {
            self.next = task.take().map_or_else(failed, |computed| Next::Here(computed.into()));
        }
        if let Next::Here(computed) = &self.next
            && let Some(Err(reason)) = computed.allowed.front()
        {
            self.next = Next::Failed(reason.clone());
        }
        match &mut self.next {
            Next::Here(computed) => Ok(computed),
            Next::Failed(reason) => Err(failure(self.kind, reason)),
            Next::Coming { .. } => Err(failure(self.kind, "the parser failed")),
        }
    }
}

impl TokenMask for GrammarMask {
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> Result<(), SamplingError> {
        let (kind, vocab_size) = (self.kind, self.vocab_size);
        let computed = self.here()?;
        words.fill(0);
        let common = computed.forced.iter().zip(drafts).take_while(|(forced, draft)| forced == draft).count();
        let behind = if common == drafts.len() {
            computed.allowed[common].clone().map(Some)
        } else if common < computed.forced.len() {
            // Another token than the only one may not come.
            Ok(None)
        } else {
            let behind = computed.parser.mask_behind(&drafts[common..]);
            behind.map(|mask| mask.map(|mask| mask.as_slice().into()))
        };
        match behind {
            Ok(None) => Ok(()),
            Ok(Some(allowed)) => {
                copy(&allowed, vocab_size, words);
                Ok(())
            }
            Err(reason) => {
                let error = failure(kind, &reason);
                self.next = Next::Failed(reason);
                Err(error)
            }
        }
    }

    fn accept(&mut self, id: u32) {
        let Ok(computed) = self.here() else { return };
        if let Some(forced) = computed.forced.pop_front() {
            computed.allowed.pop_front();
            if forced != id {
                self.next = Next::Failed(format!("token {id} may not come"));
            }
            return;
        }
        let Next::Here(computed) = std::mem::replace(&mut self.next, failed()) else { return };
        let mut parser = computed.parser;
        self.next = match parser.consume(id) {
            Ok(()) => {
                // Forced text is found without a look at the vocabulary, so that it is known before the next step.
                let mut forced = parser.forced_tokens();
                forced.truncate(MOST_AHEAD);
                Next::Coming { forced, task: Task::begin(|| Computed::ahead_of(parser)) }
            }
            Err(reason) => Next::Failed(reason),
        };
    }

    fn forced(&mut self, tokens: &mut Vec<u32>) {
        match &self.next {
            Next::Coming { forced, .. } => tokens.extend(forced),
            Next::Here(computed) => tokens.extend(&computed.forced),
            Next::Failed(_) => {}
        }
    }
}

/// The error for a text whose grammar can no longer compute a mask.
fn failure(kind: &str, reason: &str) -> SamplingError {
    SamplingError::Mask { reason: format!("{kind}: {reason}") }
}

/// The state after a thread failed without a reason.
fn failed() -> Next {
    Next::Failed("the parser failed".into())
}

/// The token that a mask allows if it allows exactly one.
fn only_token(mask: &SimpleVob) -> Option<u32> {
    let mut words = mask.as_slice().iter().enumerate().filter(|&(_, &word)| word != 0);
    let (place, word) = words.next()?;
    (word.is_power_of_two() && words.next().is_none()).then(|| place as u32 * 32 + word.trailing_zeros())
}

/// Copies a mask, without ids beyond the vocabulary.
fn copy(allowed: &[u32], vocab_size: usize, words: &mut [u32]) {
    for (word, (to, from)) in words.iter_mut().zip(allowed).enumerate() {
        let ids = vocab_size.saturating_sub(word * 32).min(32);
        *to = from & if ids == 32 { u32::MAX } else { (1 << ids) - 1 };
    }
}
