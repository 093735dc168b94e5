//! Parsers that ignore the lengths of texts while these cannot affect the mask.
//!
//! If a schema has a pattern and a length, the lexer's automaton has new states at each character, which every mask must derive.
//! Far from its maximum, a text of `^arn:[^:]+:.+$` with at most 2,048 characters may continue as without the length. Such
//! schemas have two parsers: a loose one without these lengths, whose states repeat, and an exact one, which is used when a text
//! comes near its maximum. Both allow the same tokens wherever the loose one is used.

use std::cell::Cell;

use llguidance::Matcher;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{SimpleVob, TokTrie};

use crate::compile::cleaned;
use crate::shapes::Shapes;

/// Tokens that the exact parser takes for each new token, while a text is longer than three quarters of the loose parser's limit.
const TOKENS_FOLLOWED: usize = 4;

/// A grammar's parser after some text.
pub struct Parser {
    exact: Matcher,
    loose: Option<Loose>,
}

/// A parser without length limits, and its use.
struct Loose {
    matcher: Matcher,
    /// Most characters of an open string for which the loose parser allows the same tokens as the exact parser.
    most_chars: usize,
    text: OpenText,
    /// Accepted tokens that the exact parser has not taken yet.
    owed: Vec<u32>,
}

/// The state at the end of an incomplete JSON text.
#[derive(Clone, Copy)]
struct OpenText {
    place: Place,
    /// Upper bound of the characters of the open string: escapes count as several.
    chars: usize,
}

#[derive(Clone, Copy)]
enum Place {
    Outside,
    Inside,
    Escaped,
}

impl Parser {
    /// A parser at the beginning of a text.
    pub fn new(exact: Matcher) -> Self {
        Self { exact, loose: None }
    }

    /// A parser of JSON that uses `loose` while an open string has at most `most_chars` characters.
    pub fn with_loose(exact: Matcher, loose: Matcher, most_chars: usize) -> Self {
        let text = OpenText { place: Place::Outside, chars: 0 };
        Self { exact, loose: Some(Loose { matcher: loose, most_chars, text, owed: Vec::new() }) }
    }

    /// A copy with the parser's caches.
    pub fn deep_clone(&self) -> Self {
        let loose = self.loose.as_ref().map(|loose| Loose {
            matcher: loose.matcher.deep_clone(),
            owed: loose.owed.clone(),
            ..*loose
        });
        Self { exact: self.exact.deep_clone(), loose }
    }

    /// The tokens that may come next; the end tokens if nothing may follow.
    pub fn mask(&mut self) -> Result<SimpleVob, String> {
        if let Some(loose) = &mut self.loose
            && loose.text.chars > loose.most_chars / 4 * 3
        {
            if loose.text.chars > loose.most_chars {
                refuel(&mut loose.matcher)?;
            }
            // Not all at once where the exact parser will be needed.
            self.follow(TOKENS_FOLLOWED)?;
        }
        plain(self.nearest()?.compute_mask_or_eos())
    }

    /// The tokens that may follow `drafts`; `None` if the drafts are not allowed. The parser is unchanged afterwards.
    pub fn mask_behind(&mut self, drafts: &[u32]) -> Result<Option<SimpleVob>, String> {
        let matcher = if self.stays_far(drafts) { self.nearest()? } else { self.exact()? };
        let taken = plain(matcher.try_consume_tokens(drafts))?;
        let allowed = if taken == drafts.len() { Some(plain(matcher.compute_mask_or_eos())?) } else { None };
        plain(matcher.rollback(taken))?;
        Ok(allowed)
    }

    /// Takes an accepted token.
    pub fn consume(&mut self, id: u32) -> Result<(), String> {
        // Behind a text that cannot go on, the end changes nothing.
        if self.is_end(id) && self.loose.as_ref().map_or(&self.exact, |loose| &loose.matcher).is_stopped() {
            return Ok(());
        }
        let Some(loose) = &mut self.loose else { return plain(self.exact.consume_token(id)) };
        plain(loose.matcher.consume_token(id))?;
        loose.text.push(&self.exact, id);
        loose.owed.push(id);
        Ok(())
    }

    /// Forced next tokens, as far as they are known without further work.
    pub fn forced_tokens(&mut self) -> Vec<u32> {
        match &mut self.loose {
            None => self.exact.compute_ff_tokens(),
            Some(loose) if loose.text.chars <= loose.most_chars => loose.matcher.compute_ff_tokens(),
            Some(_) => Vec::new(),
        }
    }

    /// True if a token ends the text.
    pub fn is_end(&self, id: u32) -> bool {
        self.exact.tok_env().is_ok_and(|env| env.tok_trie().eos_tokens().contains(&id))
    }

    /// The parser that gives the right mask with the least work.
    fn nearest(&mut self) -> Result<&mut Matcher, String> {
        if self.stays_far(&[]) {
            Ok(self.loose.as_mut().map_or(&mut self.exact, |loose| &mut loose.matcher))
        } else {
            self.exact()
        }
    }

    /// The exact parser, after it has taken all accepted tokens.
    fn exact(&mut self) -> Result<&mut Matcher, String> {
        self.follow(usize::MAX)?;
        Ok(&mut self.exact)
    }

    /// Lets the exact parser take up to `most` of the tokens that it has not taken yet.
    fn follow(&mut self, most: usize) -> Result<(), String> {
        let Some(loose) = &mut self.loose else { return Ok(()) };
        for id in loose.owed.drain(..most.min(loose.owed.len())) {
            plain(self.exact.consume_token(id))?;
            refuel(&mut self.exact)?;
        }
        Ok(())
    }

    /// True if no string comes near its maximum length, neither now nor after any of `drafts`.
    fn stays_far(&self, drafts: &[u32]) -> bool {
        let Some(loose) = &self.loose else { return true };
        let mut text = loose.text;
        text.chars <= loose.most_chars
            && drafts.iter().all(|&id| {
                text.push(&self.exact, id);
                text.chars <= loose.most_chars
            })
    }
}

impl OpenText {
    /// Updates the state by the bytes of a token.
    fn push(&mut self, matcher: &Matcher, id: u32) {
        let Ok(environment) = matcher.tok_env() else { return };
        for &byte in environment.tok_trie().token(id) {
            let is_first_byte = byte & 0xc0 != 0x80;
            (self.place, self.chars) = match (self.place, byte) {
                (Place::Outside, b'"') => (Place::Inside, 0),
                (Place::Outside, _) | (Place::Inside, b'"') => (Place::Outside, 0),
                (Place::Inside, b'\\') => (Place::Escaped, self.chars + 1),
                (Place::Inside | Place::Escaped, _) => {
                    (Place::Inside, self.chars + usize::from(is_first_byte))
                }
            };
        }
    }
}

thread_local! {
    /// True while this thread computes a mask that will not be used.
    static IS_UNREAD: Cell<bool> = const { Cell::new(false) };
}

/// Resets the lexer's work limit, which otherwise only a new mask resets.
fn refuel(matcher: &mut Matcher) -> Result<(), String> {
    IS_UNREAD.set(true);
    let mask = matcher.compute_mask_or_eos();
    IS_UNREAD.set(false);
    matcher.invalidate_bias_cache();
    plain(mask.map(drop))
}

/// Computes masks, except those that will not be used.
pub struct ReadMasks(pub Shapes);

impl BiasComputer for ReadMasks {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        if IS_UNREAD.get() {
            let mut all = self.trie().alloc_token_set();
            all.set_all(true);
            return all;
        }
        self.0.compute_bias(parser, start)
    }

    fn trie(&self) -> &TokTrie {
        self.0.trie()
    }
}

/// A result of the library with its error as a text.
fn plain<T, E: ToString>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| cleaned(&error.to_string()))
}
