//! Sequence breakers of DRY: from texts to sequences of tokens, as llama.cpp makes them.

use std::sync::{Mutex, PoisonError};

use brasa_engine::EngineError;
use brasa_graph::sampling::{DryBreakers, SamplingError};
use brasa_tokenizer::{AddSpecial, ParseSpecial, Tokenizer};

use crate::{Error, Model};

/// llama.cpp's default sequence breakers of DRY: newline, colon, quote and asterisk.
pub const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Largest number of bytes in the text of a breaker.
const LONGEST: usize = 40;
/// Largest number of texts in one set of breakers.
const MOST: usize = 64;
/// Largest number of tokens of a sequence behind its first; further tokens are left out.
const LONGEST_TAIL: usize = 20;

/// A cache of one entry: the latest texts and their sequences of tokens. Most requests with breakers have the same
/// texts.
#[derive(Debug, Default)]
pub(super) struct Latest(Mutex<Option<(Vec<String>, DryBreakers)>>);

impl Model {
    /// Makes DRY's sequence breakers of texts: the sequences of tokens that contain one of `texts`, for
    /// [`Dry::breakers`](brasa_graph::sampling::Dry::breakers).
    ///
    /// A token with the whole text of a breaker in it is a sequence by itself. A token that ends with the beginning of
    /// a breaker makes a sequence with the tokens of the breaker's rest, at most 20 of them. Reads the whole
    /// vocabulary, unless the previous call had the same texts.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] with [`SamplingError::Breaker`]: a text is empty or longer than 40 bytes, or there are more
    /// than 64 texts. [`Error::Tokenizer`].
    pub fn dry_breakers<T: AsRef<str>>(&self, texts: &[T]) -> Result<DryBreakers, Error> {
        let texts: Vec<String> = texts.iter().map(|text| text.as_ref().to_owned()).collect();
        check(&texts).map_err(EngineError::from)?;
        let mut latest = self.0.breakers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, breakers)) = &*latest
            && *known == texts
        {
            return Ok(breakers.clone());
        }
        let breakers = sequences(self.tokenizer(), &texts)?;
        *latest = Some((texts, breakers.clone()));
        Ok(breakers)
    }
}

fn check(texts: &[String]) -> Result<(), SamplingError> {
    let wrong = |reason: String| Err(SamplingError::Breaker { reason });
    if texts.len() > MOST {
        return wrong(format!("{} texts, at most {MOST} are possible", texts.len()));
    }
    match texts.iter().find(|text| text.is_empty() || text.len() > LONGEST) {
        Some(text) => wrong(format!("a text of {} bytes, expected 1 to {LONGEST}", text.len())),
        None => Ok(()),
    }
}

fn sequences(tokenizer: &Tokenizer, texts: &[String]) -> Result<DryBreakers, Error> {
    let mut found: Vec<Vec<u32>> = Vec::new();
    for text in texts {
        let text = text.as_bytes();
        // The tokens of the text behind its first 1, 2, 3, … bytes.
        let mut tails: Vec<Option<Vec<u32>>> = vec![None; text.len()];
        for id in 0..tokenizer.vocabulary().len() as u32 {
            // Ids without a text break nothing.
            let Ok(word) = tokenizer.piece_bytes(id) else { continue };
            if word.windows(text.len()).any(|part| part == text) {
                found.push(vec![id]);
                continue;
            }
            for at in (0..word.len()).filter(|&at| text.starts_with(&word[at..])) {
                let tail = &mut tails[word.len() - at];
                if tail.is_none() {
                    let rest = &text[word.len() - at..];
                    let mut ids = tokenizer.encode_bytes(rest, AddSpecial::No, ParseSpecial::No)?;
                    ids.truncate(LONGEST_TAIL);
                    *tail = Some(ids);
                }
                found.push([&[id], tail.as_deref().unwrap_or_default()].concat());
            }
        }
    }
    Ok(DryBreakers::new(found.iter().map(Vec::as_slice)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::path::Path;

    use super::*;

    #[test]
    fn breakers_are_the_tokens_that_hold_their_text() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
        let tokenizer = crate::open_tokenizer(&path, None).unwrap();
        let of = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            sequences(&tokenizer, &texts).unwrap().sequences()
        };
        let alone: Vec<u32> = of(&["\n"]).into_iter().map(|sequence| sequence[0]).collect();
        assert!(!alone.is_empty());
        for id in 0..tokenizer.vocabulary().len() as u32 {
            let has = tokenizer.piece_bytes(id).is_ok_and(|word| word.contains(&b'\n'));
            assert_eq!(alone.contains(&id), has, "token {id}");
        }
        // However a text is cut into tokens, a sequence is found in it.
        let ids = tokenizer.encode("What does it mean?", AddSpecial::No, ParseSpecial::No).unwrap();
        let sequences = of(&["does it"]);
        let begins = |at: usize| sequences.iter().any(|sequence| ids[at..].starts_with(sequence));
        assert!((0..ids.len()).any(begins), "{ids:?}, {sequences:?}");
        assert!(check(&["x".repeat(41)]).unwrap_err().to_string().contains("41 bytes"));
        assert!(check(&[String::new()]).is_err() && check(&vec!["a".to_owned(); 65]).is_err());
    }
}
