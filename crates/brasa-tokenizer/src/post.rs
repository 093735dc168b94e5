//! The ids that a `tokenizer.json` adds around a text.
//!
//! For one text, a post-processor is a list of ids before it and a list of ids after it. ([`pair`](crate::pair) reads the form
//! for pairs of texts.)

use serde_json::Value;

use crate::vocabulary::Vocabulary;
use crate::{Result, TokenizerError};

/// Most ids around a text; published tokenizers have three.
pub const MOST_IDS: usize = 1024;

/// The ids before and after a text.
pub fn around(post_processor: Option<&Value>, vocabulary: &Vocabulary) -> Result<(Vec<u32>, Vec<u32>)> {
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    if let Some(value) = post_processor.filter(|value| !value.is_null()) {
        wrap(value, &mut prefix, &mut suffix)?;
    }
    match prefix.iter().chain(&suffix).find(|id| vocabulary.text(**id).is_none()) {
        Some(id) => Err(malformed(&format!("id {id}, which no token has"))),
        None => Ok((prefix, suffix)),
    }
}

fn wrap(value: &Value, prefix: &mut Vec<u32>, suffix: &mut Vec<u32>) -> Result<()> {
    match value["type"].as_str() {
        Some("ByteLevel") => Ok(()),
        Some("Sequence") => {
            let inner = value["processors"].as_array().into_iter().flatten();
            inner.into_iter().try_for_each(|inner| {
                wrap(inner, prefix, suffix)?;
                check_count(prefix.len() + suffix.len())
            })
        }
        Some("BertProcessing" | "RobertaProcessing") => {
            prefix.insert(0, id(&value["cls"][1])?);
            suffix.push(id(&value["sep"][1])?);
            Ok(())
        }
        Some("TemplateProcessing") => {
            let (mut before, mut after, mut text_seen) = (Vec::new(), Vec::new(), false);
            for piece in value["single"].as_array().into_iter().flatten() {
                if piece.get("Sequence").is_some() {
                    text_seen = true;
                    continue;
                }
                let name = piece["SpecialToken"]["id"].as_str().unwrap_or_default();
                let ids = value["special_tokens"][name]["ids"].as_array();
                let ids = ids.ok_or_else(|| malformed(&format!("special token {name:?} without ids")))?;
                for one in ids {
                    (if text_seen { &mut after } else { &mut before }).push(id(one)?);
                    check_count(before.len() + after.len())?;
                }
            }
            if !text_seen {
                return Err(malformed("`single` without the text"));
            }
            before.append(prefix);
            *prefix = before;
            suffix.append(&mut after);
            Ok(())
        }
        other => Err(TokenizerError::unsupported(
            "post_processor",
            other.unwrap_or("without a type"),
            "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel and Sequence are",
        )),
    }
}

fn check_count(ids: usize) -> Result<()> {
    if ids > MOST_IDS { Err(malformed(&format!("more than {MOST_IDS} ids around a text"))) } else { Ok(()) }
}

pub fn id(value: &Value) -> Result<u32> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| malformed(&format!("id {value}")))
}

pub fn malformed(reason: &str) -> TokenizerError {
    TokenizerError::malformed("tokenizer.json post_processor", reason)
}
