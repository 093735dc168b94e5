//! Applies sentence-transformers' settings to texts and vectors, for encoders and language models alike.

use std::collections::BTreeMap;

use brasa_models::{Pooling, SentenceConfig};
use brasa_tokenizer::{AddSpecial, ParseSpecial, Tokenizer};

use crate::dense::{cut, pass, scale};
use crate::{EmbedOptions, Error, TokensOptions};

/// The token ids of a text behind its prompt, with the special tokens that the model puts around it, at most `context` if the options
/// cut texts.
pub(crate) fn tokens(
    sentence: &SentenceConfig,
    tokenizer: &Tokenizer,
    context: usize,
    text: &str,
    options: &TokensOptions,
) -> Result<Vec<u32>, Error> {
    let name = options.prompt.as_ref().or(sentence.default_prompt.as_ref());
    let prompt = match name {
        None => "",
        Some(name) => sentence.prompts.get(name).ok_or_else(|| no_prompt(&sentence.prompts, name))?,
    };
    let mut text = format!("{prompt}{text}");
    if sentence.lowercase {
        text = text.to_lowercase();
    }
    let mut ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::No)?;
    let (before, behind) = tokenizer.added_around();
    if options.truncate {
        let most = context.min(sentence.max_tokens.unwrap_or(usize::MAX));
        ids.truncate(most.saturating_sub(before.len() + behind.len()));
    }
    Ok([before, &ids, behind].concat())
}

/// The error for a prompt name that the checkpoint does not have; it lists the names.
fn no_prompt(prompts: &BTreeMap<String, String>, name: &str) -> Error {
    let names: Vec<&str> = prompts.keys().map(String::as_str).collect();
    let there = if names.is_empty() { "it has none".into() } else { format!("it has {}", names.join(", ")) };
    Error::Options(format!("the model has no prompt {name}: {there}"))
}

/// Passes a pooled vector through the dense layers, cuts and scales it. Without pooling, `vector` holds the states of tokens,
/// `[tokens, width]`, and each is scaled.
pub(crate) fn finish(
    sentence: &SentenceConfig,
    mut vector: Vec<f32>,
    width: usize,
    options: &EmbedOptions,
) -> Vec<f32> {
    if options.pooling == Some(Pooling::None) {
        return vector.chunks(width).flat_map(|state| scale(state.to_vec(), options.norm)).collect();
    }
    for layer in &sentence.dense {
        vector = pass(layer, &vector);
    }
    cut(&mut vector, options.dimensions);
    scale(vector, options.norm)
}

/// Refuses to cut states that are not pooled.
///
/// # Errors
///
/// [`Error::Options`].
pub(crate) fn check_unpooled(options: &EmbedOptions) -> Result<(), Error> {
    match options.dimensions {
        Some(_) if options.pooling == Some(Pooling::None) => {
            Err(Error::Options("dimensions cut a pooled vector, not the states of single tokens".into()))
        }
        _ => Ok(()),
    }
}

/// Refuses vectors of another length than `own` and those that the checkpoint declares.
pub(crate) fn check_dimensions(
    sentence: &SentenceConfig,
    own: usize,
    dimensions: usize,
) -> Result<(), Error> {
    if dimensions == own || sentence.matryoshka.contains(&dimensions) {
        return Ok(());
    }
    let lengths: Vec<String> = sentence.matryoshka.iter().map(usize::to_string).collect();
    Err(Error::Options(if lengths.is_empty() {
        format!("embeddings of this model have {own} dimensions, and mean nothing when cut to {dimensions}")
    } else {
        format!(
            "embeddings of this model have {own} dimensions, and keep their meaning if cut to {}",
            lengths.join(", ")
        )
    }))
}
