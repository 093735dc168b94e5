//! Tokens to texts.

use std::sync::Arc;

use brasa_tokenizer::{AddSpecial, ParseSpecial, Tokenizer};

use crate::{Result, SpeechTokens};

/// A tokenizer with the special tokens of speech. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SpeechVocabulary {
    tokenizer: Arc<Tokenizer>,
    tokens: Arc<SpeechTokens>,
}

impl SpeechVocabulary {
    /// The vocabulary of a model with `vocab_size` logits.
    ///
    /// # Errors
    ///
    /// The errors of [`SpeechTokens::new`].
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Result<Self> {
        let tokens = Arc::new(SpeechTokens::new(&tokenizer, vocab_size)?);
        Ok(Self { tokenizer, tokens })
    }

    /// The vocabulary with a checkpoint's own lists of tokens that never occur, and that do not begin a text; `None` leaves a list as
    /// it is.
    #[must_use]
    pub fn with_lists(self, never: Option<Vec<u32>>, never_first: Option<Vec<u32>>) -> Self {
        let mut tokens = SpeechTokens::clone(&self.tokens);
        tokens.non_speech = never.unwrap_or(tokens.non_speech);
        tokens.never_first = never_first.unwrap_or(tokens.never_first);
        Self { tokens: Arc::new(tokens), ..self }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The special tokens.
    pub fn tokens(&self) -> &SpeechTokens {
        &self.tokens
    }

    /// The tokens of a plain text.
    ///
    /// # Errors
    ///
    /// Errors of the tokenizer.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode(text, AddSpecial::No, ParseSpecial::No)?)
    }

    /// The text of tokens; special tokens have none.
    ///
    /// # Errors
    ///
    /// Errors of the tokenizer.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let mut bytes = Vec::new();
        for &token in tokens.iter().filter(|&&token| token < self.tokens.eot) {
            bytes.extend_from_slice(&self.tokenizer.piece_bytes(token)?);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
