//! The tokenizer as GGUF metadata: `tokenizer.…`.

mod files;
mod pre;
mod sentencepiece;
mod special;
mod vocabulary;

use brasa_formats::Checkpoint;
use brasa_formats::gguf::{Array, Metadata};

use super::config::Config;
use super::family::Family;
use crate::write::tell;
use crate::{ConvertError, Event, Observer, Options, Result};
use files::Files;
use vocabulary::{Kind, Vocabulary};

/// Writes vocabulary, merges, special tokens and chat template. `vocab_len` is the number of rows of the embedding.
pub fn describe(
    metadata: &mut Metadata,
    checkpoint: &Checkpoint,
    config: &Config,
    vocab_len: Option<usize>,
    options: &Options,
    observer: &mut Observer<'_>,
) -> Result<()> {
    let vocab_len = vocab_len.unwrap_or(0);
    let Some(files) = Files::read(checkpoint)? else {
        metadata.insert("tokenizer.ggml.model", "none");
        metadata.insert(format!("{}.vocab_size", config.family.architecture()), vocab_len as u32);
        let warning = "no tokenizer.json and no tokenizer.model: the output can only be run on token ids";
        return tell(observer, Event::Warning(warning.into()));
    };
    let vocabulary = Vocabulary::of(&files, config, vocab_len)?;
    let (kind, added) = (vocabulary.kind, files.added_tokens());

    let says_prefix = files.config["add_prefix_space"].as_bool();
    if config.family == Family::Llama
        && let Some(prefix) = says_prefix
    {
        metadata.insert("tokenizer.ggml.add_space_prefix", prefix);
    }
    metadata.insert("tokenizer.ggml.model", kind.name());
    match kind {
        Kind::Bytes => {
            let pre = match &options.pre_tokenizer {
                Some(name) => name.clone(),
                None => pre::name_of(&files)?.to_owned(),
            };
            metadata.insert("tokenizer.ggml.pre", pre);
        }
        Kind::SentencePiece => metadata.insert("tokenizer.ggml.pre", "default"),
        Kind::Spaces => {}
    }
    metadata.insert("tokenizer.ggml.tokens", Array::of_strings(&vocabulary.tokens));
    if let Some(scores) = &vocabulary.scores {
        metadata.insert("tokenizer.ggml.scores", Array::of(scores.iter().copied()));
    }
    metadata.insert("tokenizer.ggml.token_type", Array::of(vocabulary.types.iter().copied()));
    if kind != Kind::SentencePiece {
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
    special::describe(metadata, &files, &added, config, vocab_len, observer)?;
    special::chat_template(metadata, &files, checkpoint)?;

    if let Some(prefix) = vocabulary.space_prefix
        && !(config.family == Family::Llama && says_prefix.is_some())
    {
        metadata.insert("tokenizer.ggml.add_space_prefix", prefix);
    }
    if config.family == Family::Gemma4 {
        metadata.insert("tokenizer.ggml.add_bos_token", true);
    }
    Ok(())
}
