//! Restrictions of an answer's tokens: vLLM's `allowed_token_ids`, `bad_words` and `stop_token_ids`.

use std::sync::Arc;

use brasa::sampling::{SamplingError, TokenMask};
use brasa::tokenizer::{AddSpecial, ParseSpecial};
use brasa::{MaskSource, Model};
use serde_json::Value;

use crate::http::error::{ApiError, Result};
use crate::request::fields::Fields;

/// Most ids of a list.
const MOST_IDS: usize = 1 << 20;
/// Most forbidden words.
const MOST_WORDS: usize = 1024;
/// Longest forbidden word, in bytes.
const LONGEST_WORD: usize = 1024;

/// Reads `stop_token_ids`.
///
/// # Errors
///
/// 400 that names the field, also for an id that the vocabulary does not have.
pub(crate) fn stop_ids(fields: &mut Fields, model: &Model) -> Result<Vec<u32>> {
    Ok(ids(fields, "stop_token_ids", model)?.unwrap_or_default())
}

/// Reads `allowed_token_ids` and `bad_words` as a mask; `None` if neither is there.
///
/// # Errors
///
/// 400 that names the field.
pub(crate) fn read(fields: &mut Fields, model: &Model) -> Result<Option<Arc<dyn MaskSource>>> {
    let allowed = ids(fields, "allowed_token_ids", model)?;
    if allowed.as_ref().is_some_and(Vec::is_empty) {
        let name = fields.name("allowed_token_ids");
        return Err(ApiError::field(&name, format!("`{name}` is empty: no token would be possible")));
    }
    let banned = banned(fields, model)?;
    if allowed.is_none() && banned.is_empty() {
        return Ok(None);
    }
    let vocab_size = model.vocab_size();
    let mut words = vec![if allowed.is_some() { 0 } else { u32::MAX }; vocab_size.div_ceil(32)];
    for id in allowed.into_iter().flatten() {
        words[id as usize / 32] |= 1 << (id % 32);
    }
    Ok(Some(Arc::new(TokenLimits { allowed: words.into(), banned: banned.into() })))
}

/// A mask of the tokens that both masks allow; `None` if there is neither.
pub(crate) fn both(
    one: Option<Arc<dyn MaskSource>>,
    other: Option<Arc<dyn MaskSource>>,
) -> Option<Arc<dyn MaskSource>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Arc::new(Both::new(one, other))),
        (one, other) => one.or(other),
    }
}

/// Reads a list of ids; `None` if the field is absent.
fn ids(fields: &mut Fields, field: &str, model: &Model) -> Result<Option<Vec<u32>>> {
    let name = fields.name(field);
    let Some(value) = fields.value(field) else { return Ok(None) };
    let items = match value {
        Value::Array(items) if items.len() <= MOST_IDS => items,
        Value::Array(items) => {
            let message = format!("`{name}` has {} ids, at most {MOST_IDS} are possible", items.len());
            return Err(ApiError::field(&name, message));
        }
        other => {
            let message =
                format!("`{name}` is {}, expected a list of token ids", crate::request::fields::kind(&other));
            return Err(ApiError::field(&name, message));
        }
    };
    let vocab_size = model.vocab_size();
    let id = |item: &Value| {
        let id = item.as_u64().filter(|&id| id < vocab_size as u64);
        id.map(|id| id as u32).ok_or_else(|| {
            let message = format!("`{name}`: {item} is no token id; the vocabulary has {vocab_size} tokens");
            ApiError::field(&name, message)
        })
    };
    items.iter().map(id).collect::<Result<_>>().map(Some)
}

/// The token ids of each word of `bad_words`, as spelled at the beginning of a text and after a blank.
fn banned(fields: &mut Fields, model: &Model) -> Result<Vec<Vec<u32>>> {
    let name = fields.name("bad_words");
    let words: Vec<String> = fields.optional("bad_words")?.unwrap_or_default();
    let is_wrong = |word: &String| word.trim().is_empty() || word.len() > LONGEST_WORD;
    if words.len() > MOST_WORDS || words.iter().any(is_wrong) {
        let message =
            format!("`{name}`: at most {MOST_WORDS} words are possible, each of 1 to {LONGEST_WORD} bytes");
        return Err(ApiError::field(&name, message));
    }
    let mut banned: Vec<Vec<u32>> = Vec::new();
    for word in &words {
        let word = word.trim_start();
        for text in [word.to_owned(), format!(" {word}")] {
            let ids = model.tokenizer().encode(&text, AddSpecial::No, ParseSpecial::No)?;
            if !ids.is_empty() && !banned.contains(&ids) {
                banned.push(ids);
            }
        }
    }
    Ok(banned)
}

/// A mask source of allowed tokens and forbidden sequences of tokens.
#[derive(Debug)]
struct TokenLimits {
    /// The allowed tokens: bit `id % 32` of word `id / 32`.
    allowed: Arc<[u32]>,
    banned: Arc<[Vec<u32>]>,
}

impl MaskSource for TokenLimits {
    fn start(&self) -> Box<dyn TokenMask> {
        let longest = self.banned.iter().map(Vec::len).max().unwrap_or(0);
        Box::new(Limited {
            allowed: Arc::clone(&self.allowed),
            banned: Arc::clone(&self.banned),
            recent: Vec::new(),
            kept: longest.saturating_sub(1),
        })
    }
}

/// The mask of one text.
struct Limited {
    allowed: Arc<[u32]>,
    banned: Arc<[Vec<u32>]>,
    /// The last tokens of the text, as many as matter for forbidden sequences.
    recent: Vec<u32>,
    kept: usize,
}

impl TokenMask for Limited {
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> std::result::Result<(), SamplingError> {
        for (at, word) in words.iter_mut().enumerate() {
            *word = self.allowed.get(at).copied().unwrap_or(0);
        }
        for row in self.banned.iter() {
            let Some((&last, before)) = row.split_last() else { continue };
            let in_drafts = before.len().min(drafts.len());
            let (early, late) = before.split_at(before.len() - in_drafts);
            if drafts.ends_with(late)
                && self.recent.ends_with(early)
                && let Some(word) = words.get_mut(last as usize / 32)
            {
                *word &= !(1 << (last % 32));
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) {
        self.recent.push(id);
        let surplus = self.recent.len().saturating_sub(self.kept);
        self.recent.drain(..surplus);
    }
}

/// A mask source that allows the tokens that both of its parts allow.
#[derive(Debug)]
struct Both {
    one: Arc<dyn MaskSource>,
    other: Arc<dyn MaskSource>,
    /// The warnings of both parts.
    warnings: Vec<String>,
}

impl Both {
    fn new(one: Arc<dyn MaskSource>, other: Arc<dyn MaskSource>) -> Self {
        let warnings = [one.warnings(), other.warnings()].concat();
        Self { one, other, warnings }
    }
}

impl MaskSource for Both {
    fn start(&self) -> Box<dyn TokenMask> {
        Box::new(BothMasks { one: self.one.start(), other: self.other.start(), words: Vec::new() })
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

struct BothMasks {
    one: Box<dyn TokenMask>,
    other: Box<dyn TokenMask>,
    words: Vec<u32>,
}

impl TokenMask for BothMasks {
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> std::result::Result<(), SamplingError> {
        self.one.fill(drafts, words)?;
        self.words.resize(words.len(), 0);
        self.other.fill(drafts, &mut self.words)?;
        for (word, other) in words.iter_mut().zip(&self.words) {
            *word &= other;
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) {
        self.one.accept(id);
        self.other.accept(id);
    }

    fn forced(&mut self, tokens: &mut Vec<u32>) {
        self.other.forced(tokens);
    }
}
