//! A model of the `tokenizers` crate that remembers words.

use std::sync::{Mutex, TryLockError};

use ahash::AHashMap;
use tokenizers::models::ModelWrapper;
use tokenizers::{Model, Token};

/// Most words that are remembered.
const CAPACITY: usize = 10_000;
/// Words of this many bytes or more are not remembered.
const LONG_BYTES: usize = 256;

/// A model of the `tokenizers` crate, with a cache of words and their tokens.
///
/// The crate's own cache belongs to the thread that tokenizes and outlives the model, so a server that loads models repeatedly
/// keeps the words of each. So BPE models are built without that cache, and this cache is dropped with the model.
pub struct Words {
    model: ModelWrapper,
    known: Mutex<AHashMap<Box<str>, Vec<Token>>>,
}

impl Words {
    pub fn new(model: ModelWrapper) -> Self {
        Self { model, known: Mutex::default() }
    }

    /// The tokens of one piece.
    pub fn tokenize(&self, piece: &str) -> tokenizers::Result<Vec<Token>> {
        if !matches!(self.model, ModelWrapper::BPE(_)) || piece.len() >= LONG_BYTES {
            return self.model.tokenize(piece);
        }
        if let Some(tokens) = self.with_known(|known| known.get(piece).cloned()).flatten() {
            return Ok(tokens);
        }
        let tokens = self.model.tokenize(piece)?;
        self.with_known(|known| {
            if known.len() < CAPACITY {
                known.insert(piece.into(), tokens.clone());
            }
        });
        Ok(tokens)
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.model.token_to_id(token)
    }

    /// Runs `work` on the cached words, unless another thread uses the cache: tokenizing a word is faster than waiting.
    fn with_known<T>(&self, work: impl FnOnce(&mut AHashMap<Box<str>, Vec<Token>>) -> T) -> Option<T> {
        match self.known.try_lock() {
            Ok(mut known) => Some(work(&mut known)),
            Err(TryLockError::Poisoned(poisoned)) => Some(work(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::models::bpe::BPE;

    use super::*;

    #[test]
    fn words_have_the_tokens_that_they_had() {
        let vocabulary = ["h", "i", "hi", "!"].into_iter().zip(0..).map(|(token, id)| (token.to_owned(), id));
        let merges = vec![("h".to_owned(), "i".to_owned())];
        let bpe = BPE::builder()
            .vocab_and_merges(vocabulary.collect::<AHashMap<_, _>>(), merges)
            .cache_capacity(0)
            .build();
        let words = Words::new(ModelWrapper::BPE(bpe.unwrap()));
        let ids =
            |piece| -> Vec<u32> { words.tokenize(piece).unwrap().iter().map(|token| token.id).collect() };
        for _ in 0..2 {
            assert_eq!(ids("hi!"), [2, 3]);
            assert_eq!(ids("ih"), [1, 0]);
        }
        assert_eq!(words.known.lock().unwrap().len(), 2);
        assert_eq!(ids(&"hi".repeat(200)).len(), 200);
        assert_eq!(words.known.lock().unwrap().len(), 2, "a long word is not kept");
    }
}
