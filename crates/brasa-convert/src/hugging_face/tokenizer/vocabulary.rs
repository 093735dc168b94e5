//! The vocabulary of a GGUF file: tokens, scores and types.

use super::files::Files;
use crate::{ConvertError, Result};

/// Token types, numbered as in GGUF.
pub const NORMAL: i32 = 1;
pub const UNKNOWN: i32 = 2;
pub const CONTROL: i32 = 3;
pub const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
pub const BYTE: i32 = 6;

/// The algorithm that applies a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Byte-level BPE, GGUF's `gpt2`.
    Bytes,
    /// SentencePiece: merges by score, GGUF's `llama`.
    SentencePiece,
    /// BPE over text with ▁ in place of spaces, and byte tokens for missing characters: GGUF's `gemma4`.
    Spaces,
    /// The longest pieces of a word, from its beginning on: GGUF's `bert`.
    WordPiece,
    /// SentencePiece: the largest sum of scores, GGUF's `t5`.
    Unigram,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "gpt2",
            Self::SentencePiece => "llama",
            Self::Spaces => "gemma4",
            Self::WordPiece => "bert",
            Self::Unigram => "t5",
        }
    }
}

/// One entry per row of the embedding.
#[derive(Debug)]
pub struct Vocabulary {
    pub kind: Kind,
    pub tokens: Vec<Vec<u8>>,
    pub scores: Option<Vec<f32>>,
    pub types: Vec<i32>,
    /// True if a space is put before the text; `None` for the default.
    pub space_prefix: Option<bool>,
}

impl Vocabulary {
    pub fn empty(kind: Kind, vocab_len: usize, score: Option<f32>) -> Self {
        Self {
            kind,
            tokens: (0..vocab_len).map(|id| format!("[PAD{id}]").into_bytes()).collect(),
            scores: score.map(|score| vec![score; vocab_len]),
            types: vec![UNUSED; vocab_len],
            space_prefix: None,
        }
    }

    pub fn set(&mut self, id: usize, token: &str, token_type: i32, score: f32) {
        self.tokens[id] = token.as_bytes().to_vec();
        self.types[id] = token_type;
        if let Some(scores) = &mut self.scores {
            scores[id] = score;
        }
    }
}

pub fn too_many(problem: String) -> ConvertError {
    let hint = "the tokenizer does not belong to this checkpoint, or its embedding was not resized";
    ConvertError::tokenizer("tokenizer.json", problem, hint)
}

/// Every token of the vocabulary with its id, which is below `vocab_len`.
pub fn base_tokens(files: &Files, vocab_len: usize) -> Result<Vec<(usize, String)>> {
    let vocab = files.vocab().ok_or_else(|| {
        ConvertError::tokenizer("tokenizer.json", "model.vocab is missing", "download the file again")
    })?;
    let mut tokens = Vec::with_capacity(vocab.len());
    for (token, id) in vocab {
        let id = id.as_u64().map(|id| id as usize);
        let Some(id) = id.filter(|id| *id < vocab_len) else {
            return Err(too_many(format!(
                "token {token:?} has id {id:?}, the embedding has {vocab_len} rows"
            )));
        };
        tokens.push((id, token.clone()));
    }
    Ok(tokens)
}
