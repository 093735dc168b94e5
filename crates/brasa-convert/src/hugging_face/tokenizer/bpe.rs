//! Vocabularies of byte-level BPE and of SentencePiece.

use std::collections::{BTreeMap, HashMap};

use super::files::{Added, Files};
use super::sentencepiece;
use super::vocabulary::{BYTE, CONTROL, Kind, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary, too_many};
use crate::Result;

/// The score of tokens that are no result of a merge.
const NO_SCORE: f32 = -1000.0;

impl Vocabulary {
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

    pub fn of_bytes(base: Vec<(usize, String)>, added: &BTreeMap<usize, Added>, vocab_len: usize) -> Self {
        let mut vocabulary = Self::empty(Kind::Bytes, vocab_len, None);
        for (id, token) in base {
            vocabulary.set(id, &token, NORMAL, 0.0);
        }
        vocabulary.add(added);
        vocabulary
    }

    pub fn of_spaces(base: Vec<(usize, String)>, added: &BTreeMap<usize, Added>, vocab_len: usize) -> Self {
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
    pub fn of_ranks(
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

    pub fn of_pieces(
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

/// True if the tokenizer puts a space before the text, as SentencePiece does.
pub fn adds_prefix(tokenizer: &serde_json::Value) -> bool {
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
