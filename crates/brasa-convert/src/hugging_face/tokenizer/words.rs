//! Vocabularies of text encoders: WordPiece, and SentencePiece's unigram model.
//!
//! GGUF has fewer ways of cutting text than `tokenizer.json`, so what it cannot say is refused by name.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use brasa_formats::gguf::{Array, Metadata};
use serde_json::Value;

use super::files::{Added, Files};
use super::vocabulary::{CONTROL, Kind, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary, base_tokens, too_many};
use crate::{ConvertError, Result};

/// The score of rows without a token.
const NO_TOKEN: f32 = -10_000.0;

/// The steps of a unigram tokenizer before it looks for tokens.
#[derive(Debug, Default)]
struct Steps {
    charsmap: Vec<u8>,
    /// True if consecutive spaces count as one.
    merges_spaces: bool,
    /// True if a space is put before the text.
    adds_prefix: bool,
}

/// BERT's vocabulary. GGUF marks the first piece of a word by `▁`, `tokenizer.json` all others by `##`.
pub fn word_piece(files: &Files, added: &BTreeMap<usize, Added>, vocab_len: usize) -> Result<Vocabulary> {
    let json = &files.tokenizer;
    let normalizer = &json["normalizer"];
    let is_usual = normalizer["type"] == "BertNormalizer"
        && normalizer["clean_text"] != false
        && normalizer["handle_chinese_chars"] != false;
    if !is_usual {
        return Err(no_form(&format!("normalizer {normalizer}, expected BertNormalizer")));
    }
    if json["pre_tokenizer"]["type"] != "BertPreTokenizer" {
        return Err(no_form(&format!("pre_tokenizer {}, expected BertPreTokenizer", json["pre_tokenizer"])));
    }
    let prefix = &json["model"]["continuing_subword_prefix"];
    if !prefix.is_null() && prefix != "##" {
        return Err(no_form(&format!("continuing_subword_prefix {prefix}, expected ##")));
    }
    let mut vocabulary = Vocabulary::empty(Kind::WordPiece, vocab_len, None);
    for (id, token) in base_tokens(files, vocab_len)? {
        let token = match token.strip_prefix("##") {
            Some(rest) => rest.to_owned(),
            None => format!("▁{token}"),
        };
        vocabulary.set(id, &token, NORMAL, 0.0);
    }
    for (&id, token) in added {
        if !token.special {
            return Err(no_form(&format!("added token {:?}, which is no special one", token.content)));
        }
        vocabulary.set(id, &token.content, CONTROL, 0.0);
    }
    Ok(vocabulary)
}

/// The vocabulary of XLM-R.
pub fn unigram(files: &Files, added: &BTreeMap<usize, Added>, vocab_len: usize) -> Result<Vocabulary> {
    let model = &files.tokenizer["model"];
    if model["byte_fallback"] == true {
        return Err(no_form("byte_fallback is true"));
    }
    let pieces = model["vocab"].as_array().map_or(&[][..], Vec::as_slice);
    if pieces.len() > vocab_len {
        return Err(too_many(format!("{} pieces, the embedding has {vocab_len} rows", pieces.len())));
    }
    let mut vocabulary = Vocabulary::empty(Kind::Unigram, vocab_len, Some(NO_TOKEN));
    for (id, piece) in pieces.iter().enumerate() {
        let (Some(text), Some(score)) = (piece[0].as_str(), piece[1].as_f64()) else {
            return Err(no_form(&format!("piece {piece}, expected a text and its score")));
        };
        vocabulary.set(id, text, NORMAL, score as f32);
    }
    for (&id, token) in added {
        vocabulary.set(id, &token.content, if token.special { CONTROL } else { USER_DEFINED }, 0.0);
    }
    if let Some(unknown) = model["unk_id"].as_u64().filter(|&id| (id as usize) < pieces.len()) {
        vocabulary.types[unknown as usize] = UNKNOWN;
    }
    vocabulary.space_prefix = Some(Steps::of(&files.tokenizer)?.adds_prefix);
    Ok(vocabulary)
}

/// Writes the normalisation of texts into the metadata.
pub fn describe(metadata: &mut Metadata, kind: Kind, files: &Files) -> Result<()> {
    match kind {
        Kind::WordPiece => {
            for key in ["lowercase", "strip_accents"] {
                if let Some(flag) = files.tokenizer["normalizer"][key].as_bool() {
                    metadata.insert(format!("tokenizer.ggml.normalizer.{key}"), flag);
                }
            }
        }
        Kind::Unigram => {
            let steps = Steps::of(&files.tokenizer)?;
            metadata.insert("tokenizer.ggml.remove_extra_whitespaces", steps.merges_spaces);
            if !steps.charsmap.is_empty() {
                metadata.insert("tokenizer.ggml.precompiled_charsmap", Array::of(steps.charsmap));
            }
        }
        _ => {}
    }
    Ok(())
}

impl Steps {
    fn of(tokenizer: &Value) -> Result<Self> {
        let mut steps = Self::default();
        for step in flat(&tokenizer["normalizer"], "normalizers") {
            match step["type"].as_str() {
                Some("Precompiled") if steps.charsmap.is_empty() => {
                    let table = step["precompiled_charsmap"].as_str().unwrap_or_default();
                    let bytes = BASE64_STANDARD.decode(table);
                    steps.charsmap =
                        bytes.map_err(|error| no_form(&format!("precompiled_charsmap: {error}")))?;
                }
                Some("Replace") if step["pattern"]["Regex"] == " {2,}" => steps.merges_spaces = true,
                // The ends of a text are white space, which is dropped with the other.
                Some("Strip") => {}
                _ => return Err(no_form(&format!("normalizer {}", shortened(step)))),
            }
        }
        for step in flat(&tokenizer["pre_tokenizer"], "pretokenizers") {
            match step["type"].as_str() {
                Some("WhitespaceSplit") => steps.merges_spaces = true,
                Some("Metaspace") => {
                    let scheme = step["prepend_scheme"].as_str();
                    let old = step["add_prefix_space"].as_bool().unwrap_or(true);
                    steps.adds_prefix = scheme.map_or(old, |scheme| scheme != "never");
                }
                _ => return Err(no_form(&format!("pre_tokenizer {}", shortened(step)))),
            }
        }
        Ok(steps)
    }
}

/// The steps of a sequence, or the only step.
fn flat<'a>(value: &'a Value, list: &str) -> Vec<&'a Value> {
    match value[list].as_array() {
        Some(steps) => steps.iter().collect(),
        None => Some(value).filter(|value| !value.is_null()).into_iter().collect(),
    }
}

/// A step for a message.
fn shortened(step: &Value) -> String {
    const LONGEST: usize = 200;
    let text = step.to_string();
    if text.len() <= LONGEST { text } else { step["type"].to_string() }
}

fn no_form(problem: &str) -> ConvertError {
    let hint = "GGUF has no such tokenizer; run the checkpoint's folder as it is";
    ConvertError::tokenizer("tokenizer.json", format!("{problem}: this has no GGUF form"), hint)
}
