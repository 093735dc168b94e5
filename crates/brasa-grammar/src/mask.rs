//! The mask of one generation.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use brasa_engine::MaskSource;
use brasa_graph::sampling::{SamplingError, TokenMask};
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use crate::compile::cleaned;
use crate::pool::Task;

/// A grammar made ready for a model's tokens. Makes one mask for each generation.
pub struct CompiledGrammar {
    /// The parser in front of the text. Each mask gets a copy of it and of all that it has learned, so that no text waits for
    /// another or fails with it.
    matcher: Mutex<Matcher>,
    /// The tokens that a text may begin with.
    first: Arc<[u32]>,
    vocab_size: usize,
}

/// The mask of one text.
struct GrammarMask {
    next: Next,
    vocab_size: usize,
}

/// The mask behind the accepted text.
enum Next {
    Coming(Arc<Task<Computed>>),
    Here(Box<Computed>),
    /// The mask cannot be computed any more.
    Failed(String),
}

/// A parser behind the accepted text, and the tokens that may follow.
struct Computed {
    matcher: Matcher,
    allowed: Result<Arc<[u32]>, String>,
}

impl CompiledGrammar {
    pub(crate) fn new(matcher: Matcher, first: &[u32], vocab_size: usize) -> Self {
        Self { matcher: Mutex::new(matcher), first: first.into(), vocab_size }
    }
}

impl MaskSource for CompiledGrammar {
    fn start(&self) -> Box<dyn TokenMask> {
        let matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        let here = Computed { matcher, allowed: Ok(Arc::clone(&self.first)) };
        Box::new(GrammarMask { next: Next::Here(here.into()), vocab_size: self.vocab_size })
    }
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledGrammar").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl GrammarMask {
    /// Waits for the mask behind the accepted text.
    fn here(&mut self) -> Result<&mut Computed, SamplingError> {
        if let Next::Coming(task) = &self.next {
            self.next = match task.take() {
                Some(Computed { allowed: Err(reason), .. }) => Next::Failed(reason),
                Some(computed) => Next::Here(computed.into()),
                None => Next::Failed("the parser failed".into()),
            };
        }
        match &mut self.next {
            Next::Here(computed) => Ok(computed),
            Next::Failed(reason) => Err(SamplingError::Mask { reason: reason.clone() }),
            Next::Coming(_) => Err(SamplingError::Mask { reason: "the parser failed".into() }),
        }
    }
}

impl TokenMask for GrammarMask {
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> Result<(), SamplingError> {
        let vocab_size = self.vocab_size;
        let computed = self.here()?;
        if drafts.is_empty() {
            if let Ok(allowed) = &computed.allowed {
                copy(allowed, vocab_size, words);
            }
            return Ok(());
        }
        words.fill(0);
        match behind(&mut computed.matcher, drafts) {
            Ok(None) => Ok(()),
            Ok(Some(allowed)) => {
                copy(allowed.as_slice(), vocab_size, words);
                Ok(())
            }
            Err(reason) => {
                self.next = Next::Failed(reason.clone());
                Err(SamplingError::Mask { reason })
            }
        }
    }

    fn accept(&mut self, id: u32) {
        if self.here().is_err() {
            return;
        }
        let next = std::mem::replace(&mut self.next, Next::Failed("the parser failed".into()));
        let Next::Here(computed) = next else { return };
        let mut matcher = computed.matcher;
        self.next = Next::Coming(Task::begin(move || {
            let allowed = after(&mut matcher, id).map(|allowed| allowed.as_slice().into());
            Computed { matcher, allowed }
        }));
    }
}

/// The tokens that may follow an accepted token.
fn after(matcher: &mut Matcher, id: u32) -> Result<SimpleVob, String> {
    let mut run = || {
        // Behind a text that cannot go on, the end changes nothing.
        let is_end = matcher.is_stopped() && matcher.tok_env()?.tok_trie().eos_tokens().contains(&id);
        if !is_end {
            matcher.consume_token(id)?;
        }
        matcher.compute_mask_or_eos()
    };
    run().map_err(|error| cleaned(&error.to_string()))
}

/// The tokens that may follow `drafts`; `None` if the drafts themselves may not come. The parser is then as before.
fn behind(matcher: &mut Matcher, drafts: &[u32]) -> Result<Option<SimpleVob>, String> {
    let taken = matcher.try_consume_tokens(drafts).map_err(|error| cleaned(&error.to_string()))?;
    let allowed = if taken == drafts.len() {
        Some(matcher.compute_mask_or_eos().map_err(|error| cleaned(&error.to_string()))?)
    } else {
        None
    };
    matcher.rollback(taken).map_err(|error| cleaned(&error.to_string()))?;
    Ok(allowed)
}

/// Copies a mask, and clears what is beyond the vocabulary.
fn copy(allowed: &[u32], vocab_size: usize, words: &mut [u32]) {
    words.fill(0);
    for (word, (to, from)) in words.iter_mut().zip(allowed).enumerate() {
        let ids = vocab_size.saturating_sub(word * 32).min(32);
        *to = from & if ids == 32 { u32::MAX } else { (1 << ids) - 1 };
    }
}
