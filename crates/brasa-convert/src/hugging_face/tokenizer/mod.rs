//! The tokenizer as GGUF metadata: `tokenizer.…`.

mod bpe;
mod files;
mod sentencepiece;
mod special;
mod vocabulary;
mod words;

use std::collections::BTreeMap;

use brasa_formats::gguf::{Array, Metadata};

use super::input::Input;
use crate::progress::tell;
use crate::{ConvertError, Event, Observer, Options, Result};
use files::{Added, Files};
use vocabulary::{Kind, Vocabulary, base_tokens};

/// A GGUF key of Brasa's own: the texts that get a space in front, if not every text does.
pub const PREFIX_SCHEME: &str = "tokenizer.ggml.space_prefix_scheme";

/// Writes vocabulary, merges, special tokens and chat template. `vocab_len` is the number of rows of the embedding.
pub fn describe(
    metadata: &mut Metadata,
    input: &Input<'_>,
    vocab_len: usize,
    options: &Options,
    observer: &mut Observer<'_>,
) -> Result<()> {
    let architecture = input.architecture;
    let Some(files) = Files::read(input.checkpoint)? else {
        metadata.insert("tokenizer.ggml.model", "none");
        metadata.insert(format!("{architecture}.vocab_size"), vocab_len as u32);
        let warning = "no tokenizer.json and no tokenizer.model: the output can only be run on token ids";
        return tell(observer, Event::Warning(warning.into()));
    };
    let mut added = files.added_tokens();
    // Text models of multimodal families have no row for the tokens of images.
    let beyond = added.split_off(&vocab_len);
    if let Some((id, token)) = beyond.first_key_value() {
        let (count, name) = (beyond.len(), &token.content);
        let warning = format!(
            "{count} added tokens are left out, since the embedding table has {vocab_len} rows: the first is {id} ({name})"
        );
        tell(observer, Event::Warning(warning))?;
    }
    let vocabulary = vocabulary(&files, &added, input, vocab_len)?;
    let kind = vocabulary.kind;

    let says_prefix = files.config["add_prefix_space"].as_bool();
    if architecture == "llama"
        && let Some(prefix) = says_prefix
    {
        metadata.insert("tokenizer.ggml.add_space_prefix", prefix);
    }
    metadata.insert("tokenizer.ggml.model", kind.name());
    match kind {
        Kind::Bytes => {
            let pre = match &options.pre_tokenizer {
                Some(name) => name.clone(),
                None => brasa_tokenizer::pre_tokenizer_name(&files.tokenizer)
                    .map_err(|found| ConvertError::UnknownPreTokenizer { found })?
                    .to_owned(),
            };
            metadata.insert("tokenizer.ggml.pre", pre);
        }
        Kind::SentencePiece | Kind::WordPiece | Kind::Unigram => {
            metadata.insert("tokenizer.ggml.pre", "default");
        }
        Kind::Spaces => {}
    }
    metadata.insert("tokenizer.ggml.tokens", Array::of_strings(&vocabulary.tokens));
    if let Some(scores) = &vocabulary.scores {
        metadata.insert("tokenizer.ggml.scores", Array::of(scores.iter().copied()));
    }
    metadata.insert("tokenizer.ggml.token_type", Array::of(vocabulary.types.iter().copied()));
    if matches!(kind, Kind::Bytes | Kind::Spaces) {
        let merges = files.merges()?;
        if merges.is_empty() {
            return Err(ConvertError::tokenizer(
                "tokenizer.json",
                "a BPE vocabulary without merges",
                "download the model's tokenizer.json again",
            ));
        }
        metadata.insert("tokenizer.ggml.merges", Array::of_strings(merges));
    }
    words::describe(metadata, kind, &files)?;
    special::describe(metadata, &files, &added, input, vocab_len, observer)?;
    special::chat_template(metadata, &files, input.checkpoint)?;

    if let Some(prefix) = vocabulary.space_prefix
        && !(architecture == "llama" && says_prefix.is_some())
    {
        metadata.insert("tokenizer.ggml.add_space_prefix", prefix);
    }
    if kind == Kind::SentencePiece
        && metadata.get::<bool>("tokenizer.ggml.add_space_prefix")? != Some(false)
        && let Some(scheme) = prefix_scheme(&files.tokenizer["pre_tokenizer"])
    {
        metadata.insert(PREFIX_SCHEME, scheme);
    }
    if architecture == "gemma4" {
        metadata.insert("tokenizer.ggml.add_bos_token", true);
    }
    Ok(())
}

/// The vocabulary of `files`; `added` are the added tokens that have a row.
fn vocabulary(
    files: &Files,
    added: &BTreeMap<usize, Added>,
    input: &Input<'_>,
    vocab_len: usize,
) -> Result<Vocabulary> {
    let byte_fallback = files.tokenizer["model"]["byte_fallback"] == true;
    // A file of this name may hold another kind of tokenizer: then tokenizer.json is there too.
    let is_encoder = input.architecture.contains("bert");
    let pieces = files.sentencepiece.as_deref();
    let pieces = pieces.filter(|_| input.architecture != "gemma4" && !is_encoder);
    match pieces.map(sentencepiece::parse) {
        Some(Ok(model)) => return Vocabulary::of_pieces(&model, added, input.is_gemma(), vocab_len),
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
        return Ok(Vocabulary::of_bytes(base, added, vocab_len));
    }
    if bpe::adds_prefix(&files.tokenizer) {
        Vocabulary::of_ranks(base, added, files, vocab_len)
    } else {
        Ok(Vocabulary::of_spaces(base, added, vocab_len))
    }
}

/// The `prepend_scheme` of the Metaspace among pre-tokenizers, if there is one that puts a space anywhere.
fn prefix_scheme(pre_tokenizer: &serde_json::Value) -> Option<&'static str> {
    if let Some(steps) = pre_tokenizer["pretokenizers"].as_array() {
        return steps.iter().find_map(prefix_scheme);
    }
    if pre_tokenizer["type"] != "Metaspace" {
        return None;
    }
    match (pre_tokenizer["prepend_scheme"].as_str(), pre_tokenizer["add_prefix_space"].as_bool()) {
        (Some("first"), _) => Some("first"),
        (Some("always"), _) | (None, Some(true)) => Some("always"),
        _ => None,
    }
}
