//! Special tokens by role, whether they are added to a prompt, and the chat template.

use std::collections::BTreeMap;

use brasa_formats::Checkpoint;
use brasa_formats::gguf::{Array, Metadata};
use serde_json::Value;

use super::super::input::Input;
use super::files::{Added, Files};
use crate::progress::tell;
use crate::{Event, Observer, Result};

/// A role in Hugging Face's files and its key in GGUF (with the spelling that llama.cpp has).
const ROLES: [(&str, &str); 7] = [
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("unk", "unknown_token_id"),
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("cls", "cls_token_id"),
    ("mask", "mask_token_id"),
];

/// Roles that are written only if a template replaces the end token.
const END_OF_TURN: (&str, &str) = ("eot", "eot_token_id");

/// Writes ids and `add_…` switches.
pub fn describe(
    metadata: &mut Metadata,
    files: &Files,
    added: &BTreeMap<usize, Added>,
    input: &Input<'_>,
    vocab_len: usize,
    observer: &mut Observer<'_>,
) -> Result<()> {
    let mut names = names(files);
    let mut adds = adds(files, &mut names);
    let mut ids: Vec<(&str, u32)> = Vec::new();
    let mut give = |key: &'static str, id: Option<u64>| {
        let id = id.and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < vocab_len);
        if let Some(id) = id
            && !ids.iter().any(|(known, _)| *known == key)
        {
            ids.push((key, id));
        }
    };
    for (role, key) in ROLES.into_iter().chain([END_OF_TURN]) {
        let Some(name) = names.get(role) else { continue };
        let id = added.iter().find(|(_, token)| token.content == *name).map(|(id, _)| *id as u64);
        give(key, id);
    }
    for (role, key) in ROLES {
        give(key, input.source.value(&format!("{role}_token_id")).and_then(Value::as_u64));
    }
    if input.architecture == "gemma" {
        code_gemma(added, &mut give);
    }
    for (key, id) in ids {
        metadata.insert(format!("tokenizer.ggml.{key}"), id);
    }
    for (role, _) in ROLES {
        let said = files.config[format!("add_{role}_token")].as_bool();
        match (said, adds.iter().find(|(known, _)| *known == role)) {
            (Some(said), None) => adds.push((role, said)),
            (Some(said), Some((_, found))) if said != *found => {
                let warning = format!(
                    "tokenizer_config.json: add_{role}_token is {said}, but tokenizer.json says {found}, which counts"
                );
                tell(observer, Event::Warning(warning))?;
            }
            _ => {}
        }
    }
    for (role, add) in adds {
        if matches!(role, "bos" | "eos" | "sep") {
            metadata.insert(format!("tokenizer.ggml.add_{role}_token"), add);
        }
    }
    Ok(())
}

/// The token of each role in `tokenizer_config.json`.
fn names(files: &Files) -> BTreeMap<&'static str, String> {
    let mut names = BTreeMap::new();
    for (role, _) in ROLES {
        let token = &files.config[format!("{role}_token")];
        if let Some(name) = token.as_str().or_else(|| token["content"].as_str()) {
            names.insert(role, name.to_owned());
        }
    }
    // BERT's names for the same things.
    for (role, other) in [("bos", "cls"), ("eos", "sep")] {
        if !files.config.is_null()
            && !names.contains_key(role)
            && let Some(name) = names.get(other).cloned()
        {
            names.insert(role, name);
        }
    }
    names
}

/// The roles that the post-processor adds. A template may also name tokens that the configuration does not.
fn adds(files: &Files, names: &mut BTreeMap<&'static str, String>) -> Vec<(&'static str, bool)> {
    let mut adds: Vec<(&'static str, bool)> = Vec::new();
    let mut set = |role, add, replace| match adds.iter_mut().find(|(known, _)| *known == role) {
        Some(entry) if replace => entry.1 = add,
        Some(_) => {}
        None => adds.push((role, add)),
    };
    let post = &files.tokenizer["post_processor"];
    let processors = match post["processors"].as_array() {
        Some(processors) => processors.iter().collect(),
        None => vec![post],
    };
    for processor in processors {
        match processor["type"].as_str() {
            Some("ByteLevel") => {
                set("bos", false, false);
                set("eos", false, false);
            }
            Some("RobertaProcessing" | "BertProcessing") => {
                for role in ["bos", "eos", "sep"] {
                    set(role, true, true);
                }
                for (role, end) in [("bos", "cls"), ("eos", "sep")] {
                    if let Some(token) = processor[end][0].as_str() {
                        names.entry(role).or_insert_with(|| token.to_owned());
                    }
                }
            }
            Some("TemplateProcessing") => {
                let single = processor["single"].as_array().map_or(&[][..], Vec::as_slice);
                let special = |entry: Option<&Value>| {
                    entry.and_then(|entry| entry["SpecialToken"]["id"].as_str()).map(str::to_owned)
                };
                let (first, last) = match single {
                    [first, .., last] => (special(Some(first)), special(Some(last))),
                    _ => (None, None),
                };
                if let Some(first) = &first {
                    names.entry("bos").or_insert_with(|| first.clone());
                    let known = names.get("bos") == Some(first) || names.get("cls") == Some(first);
                    set("bos", known, true);
                }
                if let Some(last) = &last {
                    if let Some(old) = names.get("eos").filter(|eos| *eos != last).cloned() {
                        names.insert(END_OF_TURN.0, old);
                    }
                    names.insert("eos", last.clone());
                    set("eos", true, true);
                }
                if let Some(add) = adds_separator(&processor["pair"], first.as_ref(), last.as_ref(), names) {
                    set("sep", add, true);
                }
            }
            _ => {}
        }
    }
    adds
}

/// True if a separator stands between the texts of a pair; `None` if there is neither.
fn adds_separator(
    pair: &Value,
    first: Option<&String>,
    last: Option<&String>,
    names: &BTreeMap<&'static str, String>,
) -> Option<bool> {
    let token = |entry: &Value| entry["SpecialToken"]["id"].as_str().map(str::to_owned);
    let mut pair = pair.as_array()?.as_slice();
    if let [head, rest @ ..] = pair
        && first.is_some()
        && token(head).as_ref() == first
    {
        pair = rest;
    }
    if let [rest @ .., tail] = pair
        && last.is_some()
        && token(tail).as_ref() == last
    {
        pair = rest;
    }
    let [a, between @ .., b] = pair else { return None };
    if a["Sequence"]["id"] != "A" || b["Sequence"]["id"] != "B" || between.is_empty() {
        return None;
    }
    let is_separator = |entry: &Value| {
        let name = token(entry);
        name.is_some() && (name.as_ref() == names.get("sep") || name.as_ref() == names.get("eos"))
    };
    let by_first = is_separator(&between[0]) && last.is_none();
    Some(by_first || (between.len() == 2 && is_separator(&between[1])))
}

/// CodeGemma's tokens for filling in the middle, if the vocabulary has them.
fn code_gemma(added: &BTreeMap<usize, Added>, give: &mut impl FnMut(&'static str, Option<u64>)) {
    for (key, id, content) in [
        ("fim_pre_token_id", 67, "<|fim_prefix|>"),
        ("fim_suf_token_id", 69, "<|fim_suffix|>"),
        ("fim_mid_token_id", 68, "<|fim_middle|>"),
        ("fim_sep_token_id", 70, "<|file_separator|>"),
        ("eot_token_id", 107, "<end_of_turn>"),
    ] {
        if added.get(&id).is_some_and(|token| token.content == content) {
            give(key, Some(id as u64));
        }
    }
}

/// Writes the template, or several under their names.
pub fn chat_template(metadata: &mut Metadata, files: &Files, checkpoint: &Checkpoint) -> Result<()> {
    let mut template = files.config["chat_template"].clone();
    if template.is_null()
        && let Some(text) = checkpoint.sidecar_text("chat_template.jinja")?
    {
        template = Value::String(text);
    }
    if template.is_null()
        && let Some(text) = checkpoint.sidecar_text("chat_template.json")?
        && let Ok(json) = serde_json::from_str::<Value>(&text)
    {
        template = json["chat_template"].clone();
    }
    match template {
        Value::String(text) => metadata.insert("tokenizer.chat_template", text),
        Value::Array(choices) => {
            let mut others = Vec::new();
            let mut default = None;
            for choice in &choices {
                let (Some(name), Some(text)) = (choice["name"].as_str(), choice["template"].as_str()) else {
                    continue;
                };
                let name: String =
                    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
                if name == "default" {
                    default = Some(text);
                } else {
                    metadata.insert(format!("tokenizer.chat_template.{name}"), text);
                    others.push(name);
                }
            }
            if !others.is_empty() {
                metadata.insert("tokenizer.chat_templates", Array::of_strings(others));
            }
            if let Some(text) = default {
                metadata.insert("tokenizer.chat_template", text);
            }
        }
        _ => {}
    }
    Ok(())
}
