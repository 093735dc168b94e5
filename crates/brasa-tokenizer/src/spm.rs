//! SentencePiece's byte-pair merges by score (Kudo & Richardson 2018, arXiv:1808.06226).
//!
//! A text starts as its characters. The adjacent pair whose concatenation is the token with the highest score is merged, the
//! leftmost of equals first, until no pair makes a token. Pairs wait in a heap and symbols in a linked list, so a text of n
//! characters costs O(n log n). If no token has a `▁` after another character, as in most vocabularies, no merge crosses the
//! beginning of a word, and each word is merged by itself. A character without a token becomes its bytes `<0xHH>`; if those
//! tokens are absent, the unknown token, so that nothing is dropped.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use ahash::AHashMap;
use tokenizers::Token;

/// The model: the tokens that merges may make, and the byte tokens.
#[derive(Clone, Debug)]
pub struct Spm {
    tokens: AHashMap<String, (u32, f32)>,
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    longest_bytes: usize,
    /// True if no token continues beyond the end of a word.
    words_apart: bool,
}

/// The character that represents a space.
const SPACE: char = '▁';

struct Symbol {
    start: usize,
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

struct Pair {
    score: f32,
    left: usize,
    right: usize,
    length_bytes: usize,
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl Spm {
    /// A model of `tokens`: the tokens that text may become, with id and score. `bytes[b]` is the id of `<0xHH>` for byte `b`.
    pub fn new(tokens: AHashMap<String, (u32, f32)>, bytes: Vec<Option<u32>>, unknown: Option<u32>) -> Self {
        let longest_bytes = tokens.keys().map(String::len).max().unwrap_or(0);
        let words_apart = !tokens.keys().any(|token| token.trim_start_matches(SPACE).contains(SPACE));
        Self { tokens, bytes, unknown, longest_bytes, words_apart }
    }

    /// The tokens of a text in which spaces are already `▁`.
    pub fn tokenize(&self, text: &str) -> Vec<Token> {
        let mut output = Vec::new();
        let mut done = 0;
        if self.words_apart {
            for (at, _) in text.match_indices(SPACE) {
                if at > done && !text[..at].ends_with(SPACE) {
                    self.merge(&text[done..at], done, &mut output);
                    done = at;
                }
            }
        }
        self.merge(&text[done..], done, &mut output);
        output
    }

    /// Appends the tokens of a part of the text that begins at `offset_bytes`.
    fn merge(&self, text: &str, offset_bytes: usize, output: &mut Vec<Token>) {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, char))| {
                let end = start + char.len_utf8();
                let next = (end < text.len()).then_some(index + 1);
                Symbol { start, end, previous: index.checked_sub(1), next }
            })
            .collect();
        let mut heap = BinaryHeap::with_capacity(symbols.len());
        for right in 1..symbols.len() {
            heap.extend(self.pair(text, &symbols, Some(right - 1), Some(right)));
        }
        while let Some(pair) = heap.pop() {
            let (left, right) = (pair.left, pair.right);
            // A merged symbol is left empty; a grown one no longer has the length that the pair was made for.
            let alive = |index: usize| symbols[index].end > symbols[index].start;
            let length_bytes = symbols[right].end.wrapping_sub(symbols[left].start);
            if !alive(left) || !alive(right) || length_bytes != pair.length_bytes {
                continue;
            }
            let next = symbols[right].next;
            symbols[left].end = symbols[right].end;
            symbols[left].next = next;
            symbols[right].end = symbols[right].start;
            if let Some(next) = next {
                symbols[next].previous = Some(left);
            }
            heap.extend(self.pair(text, &symbols, symbols[left].previous, Some(left)));
            heap.extend(self.pair(text, &symbols, Some(left), next));
        }
        let mut index = (!symbols.is_empty()).then_some(0);
        while let Some(at) = index {
            let symbol = &symbols[at];
            let offsets = (offset_bytes + symbol.start, offset_bytes + symbol.end);
            self.emit(&text[symbol.start..symbol.end], offsets, output);
            index = symbol.next;
        }
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokens.get(token).map(|token| token.0)
    }

    fn pair(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
    ) -> Option<Pair> {
        let (left, right) = (left?, right?);
        let (start, end) = (symbols[left].start, symbols[right].end);
        let length_bytes = end - start;
        if length_bytes > self.longest_bytes {
            return None;
        }
        let (_, score) = *self.tokens.get(&text[start..end])?;
        Some(Pair { score, left, right, length_bytes })
    }

    fn emit(&self, piece: &str, offsets: (usize, usize), output: &mut Vec<Token>) {
        if let Some((id, _)) = self.tokens.get(piece) {
            output.push(Token::new(*id, String::new(), offsets));
            return;
        }
        let ids: Option<Vec<u32>> = piece.bytes().map(|byte| self.bytes[usize::from(byte)]).collect();
        let ids = ids.or_else(|| self.unknown.map(|id| vec![id])).unwrap_or_default();
        output.extend(ids.into_iter().map(|id| Token::new(id, String::new(), offsets)));
    }
}
