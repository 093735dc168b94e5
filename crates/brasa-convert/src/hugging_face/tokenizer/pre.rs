//! Which of llama.cpp's pre-tokenizers cuts text as this `tokenizer.json` does.
//!
//! llama.cpp's converter knows published tokenizers by a hash of some encoded text. Here the rules themselves are
//! compared, so that a new vocabulary under known rules is recognised too.

use serde_json::Value;

use super::files::Files;
use crate::{ConvertError, Result};

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// One step of a pre-tokenizer, as far as it decides where text is cut.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Split(String),
    /// Every digit by itself.
    Digits,
    /// The cuts of GPT-2.
    Gpt2,
    Other(String),
}

/// The value of `tokenizer.ggml.pre` for a byte-level tokenizer.
pub fn name_of(files: &Files) -> Result<&'static str> {
    let mut steps = Vec::new();
    collect(&files.tokenizer["pre_tokenizer"], &mut steps);
    let ignores_merges = files.tokenizer["model"]["ignore_merges"] == true;
    let known = match &steps[..] {
        [Step::Split(regex)] => match regex.as_str() {
            LLAMA_3 if ignores_merges => Some("llama-bpe"),
            LLAMA_3 => Some("dbrx"),
            QWEN_2 => Some("qwen2"),
            QWEN_35 => Some("qwen35"),
            TEKKEN => Some("tekken"),
            GPT_4O => Some("gpt-4o"),
            _ => None,
        },
        [Step::Gpt2] => Some("gpt-2"),
        [Step::Digits, Step::Gpt2] => Some("starcoder"),
        _ => None,
    };
    known.ok_or_else(|| {
        let steps: Vec<_> = steps.iter().map(|step| format!("{step:?}")).collect();
        let shown = if steps.is_empty() { "none".to_owned() } else { steps.join(", ") };
        ConvertError::tokenizer(
            "tokenizer.json",
            format!("pre-tokenizer not recognised: {shown}"),
            "name one of llama.cpp's that cuts text in the same way with `--pre`, such as llama-bpe, qwen2 or gpt-2",
        )
    })
}

fn collect(value: &Value, steps: &mut Vec<Step>) {
    match value["type"].as_str() {
        Some("Sequence") => {
            for inner in value["pretokenizers"].as_array().into_iter().flatten() {
                collect(inner, steps);
            }
        }
        // Bytes become letters; nothing is cut.
        Some("ByteLevel") if value["use_regex"] == false => {}
        Some("ByteLevel") => steps.push(Step::Gpt2),
        Some("Digits") if value["individual_digits"] == true => steps.push(Step::Digits),
        Some("Split") => match (value["pattern"]["Regex"].as_str(), value["behavior"].as_str()) {
            // Some files hold line breaks themselves, others their escapes.
            (Some(regex), Some("Isolated" | "Removed")) => {
                steps.push(Step::Split(regex.replace('\r', "\\r").replace('\n', "\\n")));
            }
            _ => steps.push(Step::Other(value.to_string())),
        },
        Some(_) => steps.push(Step::Other(value.to_string())),
        None => {}
    }
}
