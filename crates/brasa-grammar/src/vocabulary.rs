//! The bytes of every token, in the parser's form.

use std::sync::Arc;

use brasa_tokenizer::{AddSpecial, ParseSpecial, TokenKind, Tokenizer};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::GrammarError;

/// A model's tokens in a tree of their bytes, and its tokenizer.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
    /// True if the tokenizer encodes a text inside another text as it does alone, so that forced text has one spelling.
    is_canonical: bool,
}

/// The tokens of `tokenizer` for a model with `vocab_size` logits. Ids without a token, such as padding, have no bytes.
pub fn environment(tokenizer: &Arc<Tokenizer>, vocab_size: usize) -> Result<TokEnv, GrammarError> {
    let ends: Vec<u32> = tokenizer.special_tokens().end_of_generation.clone();
    let ends: Vec<u32> = ends.into_iter().filter(|&id| (id as usize) < vocab_size).collect();
    let Some(&end) = ends.first() else { return Err(GrammarError::NoEnd) };
    let words: Vec<Vec<u8>> = (0..vocab_size as u32).map(|id| bytes(tokenizer, id, &ends)).collect();
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, end), &words).with_eos_tokens(&ends);
    let is_canonical = spells_alike(tokenizer);
    Ok(Arc::new(Vocabulary { trie, tokenizer: Arc::clone(tokenizer), is_canonical }))
}

/// The bytes that a token adds to a text; control tokens get a prefix that no text has, and padding has no bytes.
fn bytes(tokenizer: &Tokenizer, id: u32, ends: &[u32]) -> Vec<u8> {
    let vocabulary = tokenizer.vocabulary();
    let kind = vocabulary.kind(id);
    let special = || {
        let text = vocabulary.text(id).unwrap_or_default();
        [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat()
    };
    match kind {
        _ if vocabulary.text(id).is_none_or(str::is_empty) => Vec::new(),
        _ if ends.contains(&id) => special(),
        TokenKind::Control | TokenKind::Unknown => special(),
        TokenKind::Missing | TokenKind::Unused => Vec::new(),
        _ => {
            let bytes = tokenizer.piece_bytes(id).map(std::borrow::Cow::into_owned).unwrap_or_default();
            // No text has this byte: the token could only be taken for a control token.
            if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) { Vec::new() } else { bytes }
        }
    }
}

/// True if encoding and decoding returns every text unchanged, whatever it begins with.
fn spells_alike(tokenizer: &Tokenizer) -> bool {
    ["{\"a\": [1, true]}", " x", "x", "\n\n", "\": \""].iter().all(|text| {
        encode(tokenizer, text).is_some_and(|ids| pieces(tokenizer, &ids).as_deref() == Some(text.as_bytes()))
    })
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
    tokenizer.encode(text, AddSpecial::No, ParseSpecial::No).ok()
}

fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Option<Vec<u8>> {
    let pieces: Option<Vec<_>> = ids.iter().map(|&id| tokenizer.piece_bytes(id).ok()).collect();
    Some(pieces?.concat())
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        // Text that ends inside a character, or that the tokenizer changes, is spelled with the longest tokens that fit.
        let whole = std::str::from_utf8(bytes).ok().and_then(|text| encode(&self.tokenizer, text));
        whole
            .filter(|ids| pieces(&self.tokenizer, ids).as_deref() == Some(bytes))
            .unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_canonical
    }
}
