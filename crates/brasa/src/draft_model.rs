//! Loading of a draft model, and the check that both models have the same tokens.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use brasa_engine::{DraftModel, pages_bytes};
use brasa_formats::Checkpoint;
use brasa_graph::device::{Backend, KvPoolSpec, KvType};
use brasa_models::ModelInfo;
use brasa_tokenizer::{TokenKind, Tokenizer};

use crate::{Error, LoadOptions, LoadProgress};

/// Most ids by which the sizes of two vocabularies may differ, as in llama.cpp. Such a difference is padding.
const MOST_PADDING: usize = 128;

/// A draft model that has been loaded beside a model ([`LoadOptions::draft_model`]).
#[derive(Clone, Debug)]
pub struct DraftModelInfo {
    /// Architecture, sizes and storage.
    pub info: ModelInfo,
    /// Bytes of the draft model's weights on the device.
    pub weight_bytes: u64,
    /// Most bytes of the draft model's keys and values.
    pub cache_bytes: u64,
}

/// A draft model that has been loaded but not compared with its model yet.
pub(crate) struct Loaded {
    pub model: DraftModel,
    pub about: DraftModelInfo,
    tokenizer: Tokenizer,
    file: String,
}

/// The texts for which a draft model guesses.
#[derive(Clone, Copy)]
pub(crate) struct Texts {
    /// Most positions of a text.
    pub context: usize,
    /// The element type of keys and values.
    pub dtype: KvType,
    /// Texts that are served at once.
    pub sequences: usize,
}

/// Loads the draft model at `path` onto `backend`, for `texts`.
///
/// # Errors
///
/// The errors of [`Model::load`](crate::Model::load), which name the draft model's file.
pub(crate) fn load(
    path: &Path,
    options: &LoadOptions,
    backend: &Arc<dyn Backend>,
    texts: Texts,
    progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
) -> Result<Loaded, Error> {
    let file = path.display().to_string();
    let checkpoint = Checkpoint::open(path)?;
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint, options.pre_tokenizer.as_deref())?;
    let load = brasa_models::LoadOptions { context_length: None, strict: options.strict };
    let brasa_models::Model { spec, graph, info, .. } = brasa_models::load(&checkpoint, &load)?;
    let graph = Arc::new(graph);
    backend.capabilities().check(&backend.info().name, &graph, texts.dtype)?;
    let weights = backend.upload(&graph, options.precision, &mut |upload| {
        progress(LoadProgress { done_bytes: upload.done_bytes, total_bytes: upload.total_bytes })
    })?;
    let weight_bytes = weights.size_bytes();
    let program_spec = options.program_spec(&backend.info(), texts.sequences, spec.vocab_size);
    let program = backend.compile(Arc::clone(&graph), weights, program_spec)?;
    let pool = backend.kv_pool(KvPoolSpec::of(&graph, texts.dtype))?;
    let context = info.context_length.map_or(texts.context, |own| own.min(texts.context));
    // Each running text has one there.
    let cache_bytes = pages_bytes(&*pool, context).saturating_mul(texts.sequences as u64);
    let free = backend.info().memory_bytes.map(|bytes| bytes.saturating_sub(weight_bytes) / 8);
    let cache_bytes = free.map_or(cache_bytes, |free| cache_bytes.min(free));
    Ok(Loaded {
        model: DraftModel { program, pool, context, vocab_size: spec.vocab_size, cache_bytes },
        about: DraftModelInfo { info, weight_bytes, cache_bytes },
        tokenizer,
        file,
    })
}

impl Loaded {
    /// Checks that both models have the same tokens. A draft model may have a few ids less or more at the end, if no id of both has
    /// two texts.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] names the first difference.
    pub(crate) fn check(&self, tokenizer: &Tokenizer, vocab_size: usize) -> Result<(), Error> {
        differences(tokenizer, vocab_size, &self.tokenizer, self.model.vocab_size).map_err(|what| {
            Error::Options(format!(
                "draft model {}: {what}\nhint: a draft model must have the model's tokens; take a smaller one of the same family",
                self.file
            ))
        })
    }
}

/// The first difference between the tokens of a model and those of its draft model.
fn differences(own: &Tokenizer, own_size: usize, other: &Tokenizer, other_size: usize) -> Result<(), String> {
    if own_size.abs_diff(other_size) > MOST_PADDING {
        return Err(format!("{other_size} token ids, expected {own_size}, give or take {MOST_PADDING}"));
    }
    let (special, other_special) = (own.special_tokens(), other.special_tokens());
    let roles = [
        ("beginning of a text", special.bos, other_special.bos),
        ("end of a text", special.eos, other_special.eos),
    ];
    for (role, expected, found) in roles {
        // A file that does not name the token does not contradict the other.
        if let (Some(expected), Some(found)) = (expected, found)
            && expected != found
        {
            return Err(format!("the {role} is token {found}, expected {expected}"));
        }
    }
    let is_unused = |kind| matches!(kind, TokenKind::Missing | TokenKind::Unused);
    let (vocabulary, others) = (own.vocabulary(), other.vocabulary());
    for id in 0..own_size.min(other_size) as u32 {
        let (expected, found) = (vocabulary.text(id), others.text(id));
        let unused = is_unused(vocabulary.kind(id)) || is_unused(others.kind(id));
        if expected != found && !unused {
            return Err(format!("token {id} is {found:?}, expected {expected:?}"));
        }
    }
    Ok(())
}
