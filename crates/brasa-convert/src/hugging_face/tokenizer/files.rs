//! The files that describe a tokenizer.

use std::collections::{BTreeMap, HashSet};

use brasa_formats::Checkpoint;
use serde_json::Value;

use crate::{ConvertError, Result};

/// `tokenizer.json`, `tokenizer_config.json` and their older companions. Absent files are `null`.
#[derive(Debug)]
pub struct Files {
    pub tokenizer: Value,
    pub config: Value,
    /// `added_tokens.json`: content to id.
    added: Value,
    /// `tokenizer.model`.
    pub sentencepiece: Option<Vec<u8>>,
    merges_text: Option<String>,
    vocab: Value,
}

/// A token beside the vocabulary proper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    pub content: String,
    pub special: bool,
}

impl Files {
    /// `None` if there is no tokenizer at all.
    pub fn read(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let tokenizer = json(checkpoint, "tokenizer.json")?;
        let files = Self {
            config: json(checkpoint, "tokenizer_config.json")?,
            added: json(checkpoint, "added_tokens.json")?,
            sentencepiece: checkpoint.sidecar("tokenizer.model")?,
            // Only where tokenizer.json does not say it better.
            merges_text: if tokenizer.is_null() { checkpoint.sidecar_text("merges.txt")? } else { None },
            vocab: if tokenizer.is_null() { json(checkpoint, "vocab.json")? } else { Value::Null },
            tokenizer,
        };
        let nothing = files.tokenizer.is_null() && files.sentencepiece.is_none() && files.vocab.is_null();
        Ok((!nothing).then_some(files))
    }

    /// Token text to id.
    pub fn vocab(&self) -> Option<&serde_json::Map<String, Value>> {
        self.tokenizer["model"]["vocab"].as_object().or_else(|| self.vocab.as_object())
    }

    /// Tokens that are added to the vocabulary, by id; `tokenizer.json` wins.
    pub fn added_tokens(&self) -> BTreeMap<usize, Added> {
        let mut added = BTreeMap::new();
        let mut add = |id: Option<u64>, content: Option<&str>, special: bool| {
            if let (Some(id), Some(content)) = (id, content) {
                added.entry(id as usize).or_insert_with(|| Added { content: content.to_owned(), special });
            }
        };
        for token in self.tokenizer["added_tokens"].as_array().into_iter().flatten() {
            add(token["id"].as_u64(), token["content"].as_str(), token["special"] == true);
        }
        for (id, token) in self.config["added_tokens_decoder"].as_object().into_iter().flatten() {
            add(id.parse().ok(), token["content"].as_str(), token["special"] == true);
        }
        for (content, id) in self.added.as_object().into_iter().flatten() {
            add(id.as_u64(), Some(content), false);
        }
        added
    }

    /// Merges as GGUF spells them: two parts with a space between, spaces within a part as `Ġ`.
    pub fn merges(&self) -> Result<Vec<String>> {
        if let Some(text) = &self.merges_text {
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let lines = lines.enumerate().filter(|(at, line)| *at > 0 || !line.starts_with('#'));
            return Ok(lines.map(|(_, line)| line.to_owned()).collect());
        }
        let merges = self.tokenizer["model"]["merges"].as_array();
        let merge = |merge: &Value| match merge {
            Value::String(text) => Some(text.clone()),
            Value::Array(pair) => match &pair[..] {
                [Value::String(a), Value::String(b)] => {
                    Some(format!("{} {}", a.replace(' ', "\u{120}"), b.replace(' ', "\u{120}")))
                }
                _ => None,
            },
            _ => None,
        };
        let merges: Option<Vec<String>> = merges.into_iter().flatten().map(merge).collect();
        let merges = merges.ok_or_else(|| {
            ConvertError::tokenizer(
                "tokenizer.json",
                "a merge that is neither a string nor a pair",
                "download the model's tokenizer.json again",
            )
        })?;
        Ok(last_of_each(merges))
    }
}

/// Drops all but the last of equal merges. The checkpoint's tokenizer ranks a merge by its last place, llama.cpp by its
/// first.
fn last_of_each(merges: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::with_capacity(merges.len());
    let last: Vec<bool> = merges.iter().rev().map(|merge| seen.insert(merge.as_str())).collect();
    let keep: Vec<bool> = last.into_iter().rev().collect();
    merges.into_iter().zip(keep).filter_map(|(merge, keep)| keep.then_some(merge)).collect()
}

fn json(checkpoint: &Checkpoint, name: &'static str) -> Result<Value> {
    let Some(text) = checkpoint.sidecar_text(name)? else { return Ok(Value::Null) };
    serde_json::from_str(&text).map_err(|error| {
        ConvertError::tokenizer(name, error.to_string(), "the file is damaged; download it again")
    })
}
