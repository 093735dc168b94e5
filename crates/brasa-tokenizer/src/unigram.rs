//! SentencePiece's unigram model (Kudo 2018, arXiv:1804.10959): the tokens of a text are those whose scores have the largest sum.
//!
//! The search goes through a text from left to right and keeps the best segmentation up to each offset. Tokens are in a table
//! sorted by their bytes, so the tokens that begin at an offset are found by narrowing a range of that table byte by byte. A text
//! of n bytes and tokens of at most m bytes cost O(n · m) steps.

use std::ops::Range;

use ahash::AHashMap;
use tokenizers::Token;

/// Most bytes of a token. SentencePiece makes tokens of at most 16 characters by default.
pub const LONGEST_TOKEN: usize = 256;

/// The score of an unknown character is this much below the lowest score of a token.
const UNKNOWN_PENALTY: f64 = 10.0;

/// The model: tokens with their scores, sorted by their bytes.
#[derive(Clone, Debug)]
pub struct Unigram {
    texts: Vec<Box<str>>,
    ids: Vec<u32>,
    scores: Vec<f64>,
    /// For each byte, the range of the table with tokens that begin with it.
    first: Vec<Range<usize>>,
    unknown: u32,
    unknown_score: f64,
}

/// The best segmentation up to an offset of the text.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// The offset at which its last token begins.
    start: usize,
    id: u32,
}

impl Unigram {
    /// Makes a model from tokens, each with its id and its finite score. `lowest` is the lowest score of a token that text may
    /// become, and `unknown` the id for characters without a token.
    pub fn new(tokens: AHashMap<&str, (u32, f64)>, lowest: f64, unknown: u32) -> Self {
        let mut tokens: Vec<_> = tokens.into_iter().collect();
        tokens.sort_unstable_by_key(|(text, _)| *text);
        let begins_below =
            |byte: usize| tokens.partition_point(|(text, _)| usize::from(text.as_bytes()[0]) < byte);
        let first = (0..256).map(|byte| begins_below(byte)..begins_below(byte + 1)).collect();
        Self {
            first,
            ids: tokens.iter().map(|(_, (id, _))| *id).collect(),
            scores: tokens.iter().map(|(_, (_, score))| *score).collect(),
            texts: tokens.into_iter().map(|(text, _)| text.into()).collect(),
            unknown,
            unknown_score: lowest - UNKNOWN_PENALTY,
        }
    }

    /// The tokens of a text. Adjacent unknown characters form one token.
    pub fn tokenize(&self, text: &str) -> Vec<Token> {
        let nothing = Best { score: f64::NEG_INFINITY, start: 0, id: self.unknown };
        let mut best = vec![nothing; text.len() + 1];
        best[0].score = 0.0;
        for (start, char) in text.char_indices() {
            let own_end = start + char.len_utf8();
            let before = best[start].score;
            let mut is_known = false;
            self.each_prefix(&text.as_bytes()[start..], |place, length_bytes| {
                is_known |= start + length_bytes == own_end;
                offer(&mut best[start + length_bytes], before + self.scores[place], start, self.ids[place]);
            });
            if !is_known {
                offer(&mut best[own_end], before + self.unknown_score, start, self.unknown);
            }
        }
        let mut tokens: Vec<Token> = Vec::new();
        let mut end = text.len();
        while end > 0 {
            let Best { start, id, .. } = best[end];
            match tokens.last_mut() {
                Some(behind) if id == self.unknown && behind.id == id => behind.offsets.0 = start,
                _ => tokens.push(Token::new(id, String::new(), (start, end))),
            }
            end = start;
        }
        tokens.reverse();
        tokens
    }

    /// The id of a token.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        let place = self.texts.binary_search_by(|known| (**known).cmp(token)).ok()?;
        Some(self.ids[place])
    }

    /// Calls `found` with the index and the length of every token that `text` begins with, shortest first.
    fn each_prefix(&self, text: &[u8], mut found: impl FnMut(usize, usize)) {
        let Some(&first) = text.first() else { return };
        let mut range = self.first[usize::from(first)].clone();
        let mut length = 1;
        while range.start < range.end {
            // Of tokens with the same beginning, the one that has nothing more comes first.
            if self.texts[range.start].len() == length {
                found(range.start, length);
                range.start += 1;
            }
            let Some(&next) = text.get(length) else { return };
            let at = length;
            let byte = |token: &str| token.as_bytes()[at];
            let within = &self.texts[range.clone()];
            let (Some(low), Some(high)) = (within.first(), within.last()) else { return };
            length += 1;
            // Most ranges deep down have one byte in common.
            if byte(low) == next && byte(high) == next {
                continue;
            }
            let from = range.start + within.partition_point(|token| byte(token) < next);
            let to = range.start + within.partition_point(|token| byte(token) <= next);
            range = from..to;
        }
    }
}

fn offer(best: &mut Best, score: f64, start: usize, id: u32) {
    if score > best.score {
        *best = Best { score, start, id };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(tokens: &[(&'static str, f64)], text: &str) -> Vec<u32> {
        let table = tokens.iter().enumerate().map(|(id, (text, score))| (*text, (id as u32, *score)));
        let model = Unigram::new(table.collect(), -9.0, 99);
        model.tokenize(text).iter().map(|token| token.id).collect()
    }

    #[test]
    fn the_largest_sum_wins() {
        let tokens = [("a", -2.0), ("b", -2.0), ("ab", -3.0), ("abc", -9.0), ("c", -2.0), ("bc", -2.5)];
        assert_eq!(ids(&tokens, "abc"), [0, 5], "-4.5 beats -5, -6 and -9");
        assert_eq!(ids(&tokens, "ab"), [2]);
        assert_eq!(ids(&tokens, ""), [0_u32; 0]);
    }

    #[test]
    fn unknown_characters_are_one_token() {
        let tokens = [("a", -2.0), ("é", -2.0)];
        assert_eq!(ids(&tokens, "aéxyè漢a"), [0, 1, 99, 0]);
        assert_eq!(ids(&[("ab", -1.0)], "abba"), [0, 99]);
        // A token of two characters is better than two unknown ones, and one whole character is always possible.
        assert_eq!(ids(&[("xy", -30.0)], "xyx"), [0, 99]);
        assert_eq!(ids(&[("xy", -50.0)], "xyx"), [99]);
    }
}
