//! Tokens, scores and types.

use std::collections::{BTreeMap, HashMap};

use super::super::Input;
use super::files::{Added, Files};
use super::{sentencepiece, words};
use crate::{ConvertError, Result};

/// Token types, numbered as in GGUF.
pub const NORMAL: i32 = 1;
pub const UNKNOWN: i32 = 2;
pub const CONTROL: i32 = 3;
pub const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The score of tokens that are no result of a merge.
const NO_SCORE: f32 = -1000.0;

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
    /// The vocabulary of `files`; `added` are the added tokens that have a row.
    pub fn of(
        files: &Files,
        added: &BTreeMap<usize, Added>,
        input: &Input<'_>,
        vocab_len: usize,
    ) -> Result<Self> {
        let byte_fallback = files.tokenizer["model"]["byte_fallback"] == true;
        // A file of this name may hold another kind of tokenizer: then tokenizer.json is there too.
        let is_encoder = input.architecture.contains("bert");
        let pieces = files.sentencepiece.as_deref();
        let pieces = pieces.filter(|_| input.architecture != "gemma4" && !is_encoder);
        match pieces.map(sentencepiece::parse) {
            Some(Ok(model)) => return Self::of_pieces(&model, added, input.is_gemma(), vocab_len),
            Some(Err(problem)) if files.tokenizer.is_null() => {
                let hint = "put the model's tokenizer.json beside it";
                return Err(ConvertError::tokenizer("tokenizer.model", problem, hint));
            }
            _ => {}
        }
        let model_type = files.tokenizer["model"]["type"].as_str().unwrap_or("BPE");
        match model_type {
            "WordPiece" if is_encoder => return words::word_piece(files, added, vocab_len),
            "Unigram" if is_encoder => return words::unigram(files, added, vocab_len),
            _ => {}
        }
        if model_type != "BPE" {
            let problem = format!("a {model_type} tokenizer, expected BPE");
            let hint = "put the model's tokenizer.model beside it, if there is one";
            return Err(ConvertError::tokenizer("tokenizer.json", problem, hint));
        }
        let base = base_tokens(files, vocab_len)?;
        if !byte_fallback {
            return Ok(Self::of_bytes(base, added, vocab_len));
        }
        if adds_prefix(&files.tokenizer) {
            Self::of_ranks(base, added, files, vocab_len)
        } else {
            Ok(Self::of_spaces(base, added, vocab_len))
        }
    }

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

    /// Added tokens are matched before the vocabulary: control tokens by name, others as text.
    fn add(&mut self, added: &BTreeMap<usize, Added>) {
        for (&id, token) in added {
            if token.special || looks_special(&token.content) {
                self.set(id, &token.content, CONTROL, NO_SCORE);
            } else {
                self.set(id, &token.content.replace('▁', " "), USER_DEFINED, NO_SCORE);
            }
        }
    }

    fn of_bytes(base: Vec<(usize, String)>, added: &BTreeMap<usize, Added>, vocab_len: usize) -> Self {
        let mut vocabulary = Self::empty(Kind::Bytes, vocab_len, None);
        for (id, token) in base {
            vocabulary.set(id, &token, NORMAL, 0.0);
        }
        vocabulary.add(added);
        vocabulary
    }

    fn of_spaces(base: Vec<(usize, String)>, added: &BTreeMap<usize, Added>, vocab_len: usize) -> Self {
        // Shown to whoever reads a chat, so never hidden as control tokens are.
        const VISIBLE: [&str; 7] = [
            "<|channel>",
            "<channel|>",
            "<|tool_call>",
            "<tool_call|>",
            "<|tool_response>",
            "<tool_response|>",
            "<|\"|>",
        ];
        let mut vocabulary = Self::empty(Kind::Spaces, vocab_len, Some(NO_SCORE));
        for (id, token) in base {
            vocabulary.set(id, &token, if is_byte(&token) { BYTE } else { NORMAL }, NO_SCORE);
        }
        vocabulary.add(added);
        for (&id, token) in added {
            if VISIBLE.contains(&token.content.as_str()) {
                vocabulary.types[id] = USER_DEFINED;
            }
        }
        vocabulary.space_prefix = Some(false);
        vocabulary
    }

    /// SentencePiece from its BPE form: the earlier a merge, the higher the score of what it makes.
    fn of_ranks(
        base: Vec<(usize, String)>,
        added: &BTreeMap<usize, Added>,
        files: &Files,
        vocab_len: usize,
    ) -> Result<Self> {
        let merges = files.merges()?;
        let mut ranks = HashMap::new();
        for (rank, merge) in merges.iter().enumerate() {
            ranks.entry(merge.replacen(' ', "", 1)).or_insert(rank);
        }
        let mut vocabulary = Self::empty(Kind::SentencePiece, vocab_len, Some(-10_000.0));
        for (id, token) in base {
            let token_type = if is_byte(&token) { BYTE } else { NORMAL };
            let rank = ranks.get(&token).copied().unwrap_or(merges.len());
            vocabulary.set(id, &token, token_type, -(rank as f32));
        }
        vocabulary.add(added);
        if let Some(unknown) = files.tokenizer["model"]["unk_token"].as_str()
            && let Some(id) = vocabulary.tokens.iter().position(|token| token == unknown.as_bytes())
        {
            vocabulary.types[id] = UNKNOWN;
        }
        vocabulary.space_prefix = Some(true);
        Ok(vocabulary)
    }

    fn of_pieces(
        model: &sentencepiece::Model,
        added: &BTreeMap<usize, Added>,
        is_gemma: bool,
        vocab_len: usize,
    ) -> Result<Self> {
        if model.pieces.len() > vocab_len {
            let problem = format!("{} pieces, the embedding has {vocab_len} rows", model.pieces.len());
            return Err(too_many(problem));
        }
        let mut vocabulary = Self::empty(Kind::SentencePiece, vocab_len, Some(-10_000.0));
        for (id, piece) in model.pieces.iter().enumerate() {
            vocabulary.set(id, &piece.text, piece.token_type, piece.score);
        }
        vocabulary.add(added);
        if is_gemma || !model.adds_prefix {
            vocabulary.space_prefix = Some(model.adds_prefix && !is_gemma);
        }
        Ok(vocabulary)
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

/// True if the tokenizer puts a space before the text, as SentencePiece does.
fn adds_prefix(tokenizer: &serde_json::Value) -> bool {
    fn any(value: &serde_json::Value) -> bool {
        let nested = ["normalizers", "pretokenizers"].into_iter().filter_map(|key| value[key].as_array());
        let metaspace = value["type"] == "Metaspace"
            && (value["add_prefix_space"] == true
                || value["prepend_scheme"].as_str().is_some_and(|s| s != "never"));
        value["type"] == "Prepend" || metaspace || nested.flatten().any(any)
    }
    any(&tokenizer["normalizer"]) || any(&tokenizer["pre_tokenizer"])
}

/// True for the text of a byte token, such as `<0x0A>`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Tokens that some checkpoints forget to mark as special.
fn looks_special(token: &str) -> bool {
    matches!(token, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || (token.starts_with("<|") && token.ends_with("|>"))
        || (token.starts_with("<｜") && token.ends_with("｜>"))
        || (token.starts_with("<unused") && token.ends_with('>'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_specials_are_recognised() {
        assert!(is_byte("<0x0A>") && is_byte("<0xff>") && !is_byte("<0x0>") && !is_byte("<0xGG>"));
        assert!(looks_special("<|im_end|>") && looks_special("<unused7>") && !looks_special("<b>"));
    }

    #[test]
    fn a_prefix_comes_from_normalizer_or_pre_tokenizer() {
        use serde_json::json;
        let llama2 =
            json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]}});
        let mistral = json!({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}});
        let gemma = json!({"normalizer": {"type": "Replace"}, "pre_tokenizer": {"type": "Split"}});
        assert!(adds_prefix(&llama2) && adds_prefix(&mistral) && !adds_prefix(&gemma));
    }
}
