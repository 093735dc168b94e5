//! Added tokens, which are found in a text before anything else: `<|im_end|>`, or a million names of genes.
//!
//! Added tokens are sorted by their bytes. A search at each place goes byte by byte and narrows the range of tokens that begin
//! with these bytes. The result is that of the `tokenizers` crate: from left to right, the longest at each place.

use std::sync::LazyLock;

use regex::Regex;
use tokenizers::tokenizer::normalizer::Range;
use tokenizers::{AddedToken, NormalizedString, Token};

use crate::pattern::check_time;

/// Bytes that are compared between two checks of the time limit.
const BETWEEN_LOOKS: usize = 1 << 16;

static WORD: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\w").ok());

/// Which control tokens in a text are read as plain text.
#[derive(Clone, Copy, Debug)]
pub enum Controls<'a> {
    /// All control tokens are parsed.
    Parse,
    /// All control tokens are plain text.
    Text,
    /// A control token is plain text if one of its characters is at one of these offsets, in ascending bytes of the original
    /// text.
    Beside(&'a [usize]),
}

impl Controls<'_> {
    /// True if a control token at `at`, a range of bytes of the original text, is plain text.
    fn are_text(self, at: impl FnOnce() -> std::ops::Range<usize>) -> bool {
        match self {
            Self::Parse => false,
            Self::Text => true,
            Self::Beside(places) => {
                let at = at();
                places[places.partition_point(|place| *place < at.start)..]
                    .first()
                    .is_some_and(|place| *place < at.end)
            }
        }
    }
}

/// Added tokens, sorted by their texts, each text once.
pub struct AddedTokens {
    tokens: Vec<(u32, AddedToken)>,
    /// For each byte, the number of tokens that begin with a smaller byte.
    first: Box<[usize; 257]>,
}

impl AddedTokens {
    /// The table of `tokens`, all of them non-empty. Of several tokens with the same id or text, the last one is kept.
    pub fn new(mut tokens: Vec<(u32, AddedToken)>) -> Self {
        // Stable sorts of the reversed list put the last one first.
        tokens.reverse();
        tokens.sort_by_key(|(id, _)| *id);
        tokens.dedup_by_key(|(id, _)| *id);
        tokens.sort_unstable_by(|(_, a), (_, b)| a.content.cmp(&b.content));
        tokens.dedup_by(|(_, a), (_, b)| a.content == b.content);
        let mut first = Box::new([0; 257]);
        for (byte, count) in first.iter_mut().enumerate() {
            *count = tokens.partition_point(|(_, token)| usize::from(token.content.as_bytes()[0]) < byte);
        }
        Self { tokens, first }
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The id of the token `text`.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        let found = self.tokens.binary_search_by(|(_, token)| token.content.as_str().cmp(text)).ok()?;
        Some(self.tokens[found].0)
    }

    /// Splits `text` at added tokens. Parts that are added tokens have their ids.
    ///
    /// # Errors
    ///
    /// An error if the time limit of the text is exceeded.
    pub fn cut(
        &self,
        text: &NormalizedString,
        controls: Controls<'_>,
    ) -> tokenizers::Result<Vec<(NormalizedString, Option<Vec<Token>>)>> {
        let whole = text.get();
        let slice = |start: usize, end: usize| {
            text.slice(Range::Normalized(start..end)).ok_or("an added token ends within a character")
        };
        let mut search = Search { tokens: self, text: whole.as_bytes(), at: 0, compared: 0 };
        let (mut pieces, mut done) = (Vec::new(), 0);
        while let Some((mut start, mut end, found)) = search.next()? {
            let (id, token) = &self.tokens[found];
            let in_original = || {
                let (from, to) = text.offsets_original();
                // A place that cannot be found counts as the whole text.
                let inside = text.convert_offsets(Range::Normalized(start..end)).unwrap_or(0..to - from);
                from + inside.start..from + inside.end
            };
            if token.special && controls.are_text(in_original) {
                continue;
            }
            let (before, behind) = (&whole[..start], &whole[end..]);
            if token.single_word && (ends_with_word(before) || begins_with_word(behind)) {
                continue;
            }
            if token.lstrip {
                start = before.trim_end().len().max(done);
            }
            if token.rstrip {
                end += behind.len() - behind.trim_start().len();
            }
            if done < start {
                pieces.push((slice(done, start)?, None));
            }
            let piece = slice(start, end)?;
            let (value, len) = (piece.get().to_owned(), piece.get().len());
            pieces.push((piece, Some(vec![Token::new(*id, value, (0, len))])));
            done = end;
        }
        if done < whole.len() {
            pieces.push((slice(done, whole.len())?, None));
        }
        Ok(pieces)
    }
}

fn begins_with_word(text: &str) -> bool {
    WORD.as_ref().is_some_and(|word| word.is_match(text))
}

fn ends_with_word(text: &str) -> bool {
    text.char_indices().next_back().is_some_and(|(at, _)| begins_with_word(&text[at..]))
}

/// A search from left to right.
struct Search<'a> {
    tokens: &'a AddedTokens,
    text: &'a [u8],
    at: usize,
    compared: usize,
}

impl Search<'_> {
    /// Start, end and number of the next token, the longest of those that begin at the start; `None` at the end of the text.
    fn next(&mut self) -> tokenizers::Result<Option<(usize, usize, usize)>> {
        let first = &self.tokens.first;
        let begins = |byte: u8| first[usize::from(byte)] < first[usize::from(byte) + 1];
        while let Some(ahead) = self.text[self.at..].iter().position(|byte| begins(*byte)) {
            let start = self.at + ahead;
            let longest = self.longest(&self.text[start..]);
            if self.compared > BETWEEN_LOOKS {
                self.compared = 0;
                check_time()?;
            }
            if let Some(found) = longest {
                let end = start + self.tokens.tokens[found].1.content.len();
                self.at = end;
                return Ok(Some((start, end, found)));
            }
            self.at = start + 1;
        }
        self.at = self.text.len();
        Ok(None)
    }

    /// The number of the longest token with which `text` begins.
    fn longest(&mut self, text: &[u8]) -> Option<usize> {
        let first = usize::from(text[0]);
        let (mut low, mut high) = (self.tokens.first[first], self.tokens.first[first + 1]);
        let byte_of = |(_, token): &(u32, AddedToken), at: usize| token.content.as_bytes()[at];
        let mut longest = None;
        for matched in 1.. {
            self.compared += 1;
            let tokens = &self.tokens.tokens;
            // The shortest comes first, and only it can end here.
            if tokens[low].1.content.len() == matched {
                longest = Some(low);
                low += 1;
            }
            let Some(&byte) = text.get(matched) else { break };
            low += tokens[low..high].partition_point(|token| byte_of(token, matched) < byte);
            high = low + tokens[low..high].partition_point(|token| byte_of(token, matched) == byte);
            if low == high {
                break;
            }
        }
        longest
    }
}
