//! The pre-tokenizer: cuts a text into the pieces that the model encodes one by one.
//!
//! It works like that of the `tokenizers` crate with two differences: a failing pattern is an error (the crate silently stops
//! splitting), and patterns of quadratic cost are replaced by loops.

use regex::Regex;
use tokenizers::pattern::Pattern;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Offsets, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

use crate::pattern::{self, Fallible};
use crate::{Result, TokenizerError};

/// A chain of cuts: each splitter cuts the pieces of the previous splitter.
#[derive(Clone, Default)]
pub struct Splitters(pub Vec<Splitter>);

/// One step of a pre-tokenizer.
#[derive(Clone)]
pub enum Splitter {
    /// Any pre-tokenizer of the `tokenizers` crate.
    Hf(Box<PreTokenizerWrapper>),
    /// Cuts around matches.
    Cut(Cut),
    /// Adds a leading space to a text that has none.
    SpacePrefix,
    /// Spells bytes in GPT-2's alphabet; cuts nothing.
    Bytes,
}

/// A cut around every match.
#[derive(Clone)]
pub struct Cut {
    matches: Matches,
    behavior: SplitDelimiterBehavior,
    /// True to cut around everything between the matches.
    invert: bool,
}

#[derive(Clone)]
enum Matches {
    Regex(Box<fancy_regex::Regex>),
    /// Words, and the white space between them, as GPT-2 divides them.
    Words(Words),
    /// Runs of digits in threes from the right.
    Digits(DigitGroups),
}

impl Cut {
    /// A cut that makes every match of `matches` a piece of its own.
    fn isolating(matches: Matches) -> Self {
        Self { matches, behavior: SplitDelimiterBehavior::Isolated, invert: false }
    }

    /// True if every match stays a piece of its own.
    pub fn only_cuts(&self) -> bool {
        matches!(self.behavior, SplitDelimiterBehavior::Isolated | SplitDelimiterBehavior::Removed)
    }

    /// The pieces of `text` in order, for a cut that [only cuts](Self::only_cuts).
    ///
    /// # Errors
    ///
    /// The error of a pattern that fails or takes too long.
    pub fn pieces<'t>(&self, text: &'t str) -> tokenizers::Result<impl Iterator<Item = &'t str> + use<'t>> {
        let removes = self.behavior == SplitDelimiterBehavior::Removed;
        let kept = self.find_matches(text)?.into_iter().filter(move |(_, matched)| !(removes && *matched));
        Ok(kept.map(|((start, end), _)| &text[start..end]))
    }
}

/// A pattern that ends in `|\s+(?!\S)|\s+`: white space before a word leaves its last character to the word.
///
/// Nearly all published patterns end in this way. Without the look-ahead the rest needs no backtracking, so the time is linear
/// and a megabyte of spaces is no harder than a megabyte of prose.
#[derive(Clone)]
pub struct Words {
    /// The alternatives before the white space, then white space.
    pattern: Box<regex_automata::meta::Regex>,
}

const SPACE_BEFORE_WORD: &str = r"|\s+(?!\S)|\s+";

impl Words {
    /// The pattern in this form; `None` if it does not end so, or if its rest needs backtracking.
    fn new(pattern: &str) -> Option<Self> {
        let words = pattern.strip_suffix(SPACE_BEFORE_WORD)?;
        let compiled = regex_automata::meta::Regex::new_many(&[words, r"\s+"]).ok()?;
        // An empty match would be a cut between two characters, which is not told from no match here.
        (!compiled.is_match("")).then(|| Self { pattern: Box::new(compiled) })
    }
}

impl Pattern for Words {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        let mut pieces = Vec::with_capacity(inside.len() / 4);
        let mut done = 0;
        while done < inside.len() {
            let input = regex_automata::Input::new(inside).range(done..);
            let Some(found) = self.pattern.find(input).filter(|found| !found.is_empty()) else { break };
            let mut end = found.end();
            if found.pattern().as_usize() == 1 && end < inside.len() {
                let last = inside[found.range()].chars().next_back().map_or(0, char::len_utf8);
                if end - last > found.start() {
                    end -= last;
                }
            }
            if done < found.start() {
                pieces.push(((done, found.start()), false));
            }
            pieces.push(((found.start(), end), true));
            done = end;
        }
        if done < inside.len() || inside.is_empty() {
            pieces.push(((done, inside.len()), false));
        }
        Ok(pieces)
    }
}

/// Groups of three digits counted from the right: 1234567 is cut into 1, 234 and 567.
///
/// A pattern would need a look-ahead to the end of the run from each group, which is quadratic.
#[derive(Clone)]
pub struct DigitGroups {
    run: Regex,
    needs_word_end: bool,
}

impl DigitGroups {
    /// Runs of `class`, such as `\p{N}`; if `needs_word_end`, only runs that a word boundary follows.
    pub fn new(class: &str, needs_word_end: bool) -> Result<Self> {
        let tail = if needs_word_end { r"(\b)?" } else { "" };
        let run = Regex::new(&format!("{class}+{tail}"))
            .map_err(|error| TokenizerError::malformed("digit class", error))?;
        Ok(Self { run, needs_word_end })
    }
}

impl Pattern for DigitGroups {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        let mut pieces = Vec::new();
        let mut done = 0;
        for run in self.run.captures_iter(inside) {
            let Some(whole) = run.get(0) else { continue };
            if self.needs_word_end && run.get(1).is_none() {
                continue;
            }
            if done < whole.start() {
                pieces.push(((done, whole.start()), false));
            }
            let ends: Vec<usize> = whole
                .as_str()
                .char_indices()
                .map(|(at, char)| whole.start() + at + char.len_utf8())
                .collect();
            let mut start = whole.start();
            let first = match ends.len() % 3 {
                0 => 2,
                remainder => remainder - 1,
            };
            for end in ends.iter().skip(first).step_by(3) {
                pieces.push(((start, *end), true));
                start = *end;
            }
            done = whole.end();
        }
        if done < inside.len() || inside.is_empty() {
            pieces.push(((done, inside.len()), false));
        }
        Ok(pieces)
    }
}

impl Pattern for &Cut {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        let mut pieces = match &self.matches {
            Matches::Regex(pattern) => Fallible(pattern).find_matches(inside),
            Matches::Words(words) => words.find_matches(inside),
            Matches::Digits(groups) => groups.find_matches(inside),
        }?;
        for (_, matched) in &mut pieces {
            *matched ^= self.invert;
        }
        Ok(pieces)
    }
}

impl Splitter {
    /// A cut around every match that keeps the matches.
    pub fn isolated(pattern: &str) -> Result<Self> {
        Self::regex(pattern, SplitDelimiterBehavior::Isolated, false)
    }

    /// A cut of runs of digits into groups of three from the right.
    pub fn digits(groups: DigitGroups) -> Self {
        Self::Cut(Cut::isolating(Matches::Digits(groups)))
    }

    /// A cut around every match; with `invert`, around everything else.
    ///
    /// Patterns known to be quadratic become loops.
    pub fn regex(pattern: &str, behavior: SplitDelimiterBehavior, invert: bool) -> Result<Self> {
        if behavior == SplitDelimiterBehavior::Isolated && !invert {
            match pattern {
                r"\d{1,3}(?=(?:\d{3})*\b)" => return Ok(Self::digits(DigitGroups::new(r"\d", true)?)),
                r"(?=(\d{3})+(?!\d))" => return Ok(Self::digits(DigitGroups::new(r"\d", false)?)),
                _ => {}
            }
            if let Some(words) = Words::new(pattern) {
                return Ok(Self::Cut(Cut::isolating(Matches::Words(words))));
            }
        }
        let matches = Matches::Regex(Box::new(pattern::compile(pattern)?));
        Ok(Self::Cut(Cut { matches, behavior, invert }))
    }
}

impl PreTokenizer for Splitters {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        for splitter in &self.0 {
            match splitter {
                Splitter::Hf(inner) => inner.pre_tokenize(text)?,
                Splitter::Cut(cut) => text.split(|_, piece| piece.split(cut, cut.behavior))?,
                Splitter::SpacePrefix => text.split(|_, mut piece| {
                    if !piece.get().starts_with(' ') {
                        piece.prepend(" ");
                    }
                    Ok(vec![piece])
                })?,
                Splitter::Bytes => ByteLevel::new(false, false, false).pre_tokenize(text)?,
            }
        }
        Ok(())
    }
}
