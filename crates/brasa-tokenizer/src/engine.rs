//! The tokenizing pipeline: added tokens, normaliser, pre-tokenizer, model.
//!
//! The pipeline itself is that of the `tokenizers` crate, so that a `tokenizer.json` means here what it means to
//! transformers. Two of its stages are replaced: the model, to merge by score as SentencePiece does, and the
//! pre-tokenizer, so that a pattern that fails is an error (the crate would silently stop splitting) and patterns
//! of quadratic cost are plain loops.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ahash::AHashMap;
use regex::Regex;
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::pattern::Pattern;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{
    DecoderWrapper, Model, Offsets, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior, Token,
    TokenizerImpl,
};

use crate::normalize::Normalizers;
use crate::spm::Spm;
use crate::{Result, TokenizerError, pattern};

/// The pipeline of every tokenizer in this crate.
pub type Engine = TokenizerImpl<AnyModel, Normalizers, Splitters, PostProcessorWrapper, DecoderWrapper>;

/// A model, and the ids of the added tokens.
#[derive(Clone)]
pub struct AnyModel {
    kind: Kind,
    /// Ids that the files give to tokens outside the model; the crate would number those anew.
    added: AHashMap<String, u32>,
}

#[derive(Clone)]
enum Kind {
    Hf(Box<ModelWrapper>),
    Spm(Box<Spm>),
}

impl AnyModel {
    /// A model of the `tokenizers` crate.
    pub fn hf(model: ModelWrapper, added: AHashMap<String, u32>) -> Self {
        Self { kind: Kind::Hf(Box::new(model)), added }
    }

    /// Merges by score.
    pub fn spm(model: Spm, added: AHashMap<String, u32>) -> Self {
        Self { kind: Kind::Spm(Box::new(model)), added }
    }
}

impl Model for AnyModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        match &self.kind {
            Kind::Hf(model) => model.tokenize(sequence),
            Kind::Spm(model) => Ok(model.tokenize(sequence)),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        let own = match &self.kind {
            Kind::Hf(model) => model.token_to_id(token),
            Kind::Spm(model) => model.token_to_id(token),
        };
        own.or_else(|| self.added.get(token).copied())
    }

    fn id_to_token(&self, _: u32) -> Option<String> {
        // Decoding is done from our own table.
        None
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match &self.kind {
            Kind::Hf(model) => model.get_vocab(),
            Kind::Spm(_) => HashMap::new(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match &self.kind {
            Kind::Hf(model) => model.get_vocab_size(),
            Kind::Spm(_) => 0,
        }
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("a tokenizer is not written here".into())
    }

    fn get_trainer(&self) -> TrainerWrapper {
        tokenizers::models::bpe::BpeTrainer::default().into()
    }
}

/// The pre-tokenizer: each splitter cuts what the one before it left whole.
#[derive(Clone, Default)]
pub struct Splitters(pub Vec<Splitter>);

/// One cut.
#[derive(Clone)]
pub enum Splitter {
    /// Any pre-tokenizer of the `tokenizers` crate.
    Hf(Box<PreTokenizerWrapper>),
    /// Cut around every match.
    Regex { pattern: Box<fancy_regex::Regex>, behavior: SplitDelimiterBehavior, invert: bool },
    /// Cut into words, with the white space between them as GPT-2 divides it.
    Words(Words),
    /// Cut runs of digits into threes from the right.
    Digits(DigitGroups),
    /// Put a space in front of a text that has none.
    SpacePrefix,
}

/// A pattern that ends in `|\s+(?!\S)|\s+`: white space before a word leaves its last character to the word.
///
/// Nearly all published patterns do. Without the look-ahead the rest needs no backtracking, so the time is linear and
/// a megabyte of spaces is no harder than a megabyte of prose.
#[derive(Clone)]
pub struct Words {
    /// The alternatives before the white space, then white space.
    pattern: Box<regex_automata::meta::Regex>,
}

const SPACE_BEFORE_WORD: &str = r"|\s+(?!\S)|\s+";

impl Words {
    /// `None` if the pattern does not end so, or its rest needs backtracking.
    fn new(pattern: &str) -> Option<Self> {
        let words = pattern.strip_suffix(SPACE_BEFORE_WORD)?;
        let compiled = regex_automata::meta::Regex::new_many(&[words, r"\s+"]).ok()?;
        // An empty match would be a cut between two characters, which is not told from no match here.
        (!compiled.is_match("")).then(|| Self { pattern: Box::new(compiled) })
    }
}

impl Pattern for &Words {
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

impl Pattern for &DigitGroups {
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

thread_local! {
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The longest that the patterns of a file may take for a text: ten seconds, and 20 µs for each byte.
///
/// One search ends after a million steps back, but a text may begin that many searches.
pub fn begin_text(bytes: usize) {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    let most = Duration::from_secs(10) + Duration::from_micros(bytes.saturating_mul(20).min(1 << 40));
    UNTIL.set(Instant::now().checked_add(most));
}

/// A pattern of a file, whose failure is an error, and which ends in time.
pub struct Fallible<'a>(pub &'a fancy_regex::Regex);

impl Pattern for Fallible<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        let mut pieces = Vec::new();
        let mut done = 0;
        for (index, found) in self.0.find_iter(inside).enumerate() {
            let found = found?;
            if index % 64 == 0 && UNTIL.get().is_some_and(|until| Instant::now() > until) {
                return Err("its patterns take too long".into());
            }
            if done < found.start() {
                pieces.push(((done, found.start()), false));
            }
            pieces.push(((found.start(), found.end()), true));
            done = found.end();
        }
        if done < inside.len() || inside.is_empty() {
            pieces.push(((done, inside.len()), false));
        }
        Ok(pieces)
    }
}

struct Inverted<P>(P);

impl<P: Pattern> Pattern for Inverted<P> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        let pieces = self.0.find_matches(inside)?;
        Ok(pieces.into_iter().map(|(offsets, matched)| (offsets, !matched)).collect())
    }
}

impl Splitter {
    /// Cut around every match and keep the matches.
    pub fn isolated(pattern: &str) -> Result<Self> {
        Self::regex(pattern, SplitDelimiterBehavior::Isolated, false)
    }

    /// Cut around every match (`invert`: around everything else).
    ///
    /// Patterns known to be quadratic become loops.
    pub fn regex(pattern: &str, behavior: SplitDelimiterBehavior, invert: bool) -> Result<Self> {
        if behavior == SplitDelimiterBehavior::Isolated && !invert {
            match pattern {
                r"\d{1,3}(?=(?:\d{3})*\b)" => return Ok(Self::Digits(DigitGroups::new(r"\d", true)?)),
                r"(?=(\d{3})+(?!\d))" => return Ok(Self::Digits(DigitGroups::new(r"\d", false)?)),
                _ => {}
            }
            if let Some(words) = Words::new(pattern) {
                return Ok(Self::Words(words));
            }
        }
        Ok(Self::Regex { pattern: Box::new(pattern::compile(pattern)?), behavior, invert })
    }
}

impl PreTokenizer for Splitters {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        for splitter in &self.0 {
            match splitter {
                Splitter::Hf(inner) => inner.pre_tokenize(text)?,
                Splitter::Regex { pattern, behavior, invert: false } => {
                    text.split(|_, piece| piece.split(Fallible(pattern), *behavior))?;
                }
                Splitter::Regex { pattern, behavior, invert: true } => {
                    text.split(|_, piece| piece.split(Inverted(Fallible(pattern)), *behavior))?;
                }
                Splitter::Words(words) => {
                    text.split(|_, piece| piece.split(words, SplitDelimiterBehavior::Isolated))?;
                }
                Splitter::SpacePrefix => text.split(|_, mut piece| {
                    if !piece.get().starts_with(' ') {
                        piece.prepend(" ");
                    }
                    Ok(vec![piece])
                })?,
                Splitter::Digits(groups) => {
                    text.split(|_, piece| piece.split(groups, SplitDelimiterBehavior::Isolated))?;
                }
            }
        }
        Ok(())
    }
}
