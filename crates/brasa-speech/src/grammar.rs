//! Texts that are held to a grammar.

use std::fmt;
use std::sync::Arc;

use brasa_graph::sampling::TokenMask;

use crate::{Result, SpeechError, SpeechTokens, Timestamps};

/// A grammar that the text of each window follows.
///
/// The grammar applies to text tokens and the end of the text. Timestamps follow their own rules and are left out of the text that
/// the grammar reads.
#[derive(Clone)]
pub struct TextGrammar(Arc<dyn Fn() -> Box<dyn TokenMask> + Send + Sync>);

impl TextGrammar {
    /// A grammar that makes a mask in front of each text.
    pub fn new(start: impl Fn() -> Box<dyn TokenMask> + Send + Sync + 'static) -> Self {
        Self(Arc::new(start))
    }

    /// The mask of a window's texts, which have timestamps or not.
    pub(crate) fn start(&self, tokens: &SpeechTokens, timestamps: Timestamps) -> TextMask {
        TextMask {
            timed: timestamps != Timestamps::None,
            mask: (self.0)(),
            eot: tokens.eot,
            timestamp_begin: tokens.timestamp_begin,
            words: Vec::new(),
        }
    }
}

impl fmt::Debug for TextGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TextGrammar")
    }
}

impl PartialEq for TextGrammar {
    /// True for clones of one grammar.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The mask for a window's texts. It stays at the beginning of the text and reads whole texts, so that all texts of a search share
/// it.
pub(crate) struct TextMask {
    mask: Box<dyn TokenMask>,
    eot: u32,
    timestamp_begin: u32,
    /// True if timestamps may come.
    timed: bool,
    words: Vec<u32>,
}

impl TextMask {
    /// Forbids the tokens that the grammar does not allow after `drawn`, the tokens of the window so far. The rules have been
    /// applied to `logits`.
    ///
    /// Where text was allowed by the rules and the grammar goes on, timestamps are forbidden unless they are likelier together
    /// than any text that the rules allowed: a timestamp must not end a text that the grammar continues. If no token is left, the
    /// text ends.
    pub fn apply(&mut self, logits: &mut [f32], drawn: &[u32]) -> Result<()> {
        let eot = self.eot as usize;
        let begin = (self.timestamp_begin as usize).min(logits.len());
        let may_write = logits[..=eot].iter().any(|&logit| logit > f32::NEG_INFINITY);
        if !may_write {
            return Ok(());
        }
        let text: Vec<u32> = drawn.iter().copied().filter(|&token| token < self.eot).collect();
        self.words.resize(logits.len().div_ceil(32), 0);
        self.mask
            .fill(&text, &mut self.words)
            .map_err(|error| SpeechError::Grammar { what: error.to_string() })?;
        let (end, likeliest) =
            (logits[eot], logits[..=eot].iter().copied().fold(f32::NEG_INFINITY, f32::max));
        for (token, logit) in logits[..=eot].iter_mut().enumerate() {
            if self.words[token / 32] >> (token % 32) & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
        // Nothing else is a way out either.
        logits[eot + 1..begin].fill(f32::NEG_INFINITY);
        let is_open = |logit: &f32| *logit > f32::NEG_INFINITY;
        if !self.timed || logits[..eot].iter().any(is_open) {
            logits[begin..].fill(f32::NEG_INFINITY);
        }
        if !logits.iter().any(is_open) {
            logits[eot] = if is_open(&end) { end } else { likeliest };
        }
        Ok(())
    }
}
