//! Embedding models: a decoder or an encoder.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::task::{Context, Poll};
use std::time::Instant;

use brasa_formats::{Bytes, Checkpoint};
use brasa_graph::device::DeviceInfo;
use brasa_models::{ModelInfo, ModelKind, Pooling, Source};

use crate::{
    EmbedOptions, Embeddings, Encoder, Error, InOrder, LoadOptions, LoadProgress, Model, TokensOptions,
};

/// A model that makes vectors of texts, of either kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Embedder {
    /// A language model, whose hidden states are pooled.
    Decoder(Model),
    /// A text encoder.
    Encoder(Encoder),
}

impl Embedder {
    /// Loads a checkpoint as an encoder or a language model, whichever it is.
    ///
    /// # Errors
    ///
    /// The errors of [`Model::load_with_progress`].
    pub fn load_with_progress(
        path: impl AsRef<Path>,
        options: &LoadOptions,
        progress: impl FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let started = Instant::now();
        Self::from_checkpoint(&Checkpoint::open(path.as_ref())?, options, progress, started)
    }

    /// Loads a GGUF file that is already in memory.
    ///
    /// # Errors
    ///
    /// The errors of [`load_with_progress`](Self::load_with_progress).
    pub fn from_gguf_bytes(
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
        options: &LoadOptions,
        progress: impl FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let started = Instant::now();
        Self::from_checkpoint(&Checkpoint::from_gguf_bytes(Bytes::new(bytes))?, options, progress, started)
    }

    /// Loads a model of text. Models of other kinds are refused by name before their weights are read.
    pub(crate) fn from_checkpoint(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        progress: impl FnMut(LoadProgress) -> ControlFlow<()>,
        started: Instant,
    ) -> Result<Self, Error> {
        if ModelKind::of(&Source::of(checkpoint)?) == ModelKind::Encoder {
            return Encoder::from_checkpoint(checkpoint, options, progress, started).map(Self::Encoder);
        }
        Model::from_checkpoint(checkpoint, options, progress, started).map(Self::Decoder)
    }

    /// Architecture, sizes and storage of the model.
    pub fn info(&self) -> &ModelInfo {
        match self {
            Self::Decoder(model) => model.info(),
            Self::Encoder(encoder) => encoder.info(),
        }
    }

    /// The device that the model runs on.
    pub fn device(&self) -> &DeviceInfo {
        match self {
            Self::Decoder(model) => model.device(),
            Self::Encoder(encoder) => encoder.device(),
        }
    }

    /// Oddities of the checkpoint that do not keep it from running.
    pub fn warnings(&self) -> &[String] {
        match self {
            Self::Decoder(model) => model.warnings(),
            Self::Encoder(encoder) => encoder.warnings(),
        }
    }

    /// Most tokens of a text.
    pub fn context(&self) -> usize {
        match self {
            Self::Decoder(model) => model.context(),
            Self::Encoder(encoder) => encoder.context(),
        }
    }

    /// How vectors are pooled if the options do not say.
    pub fn pooling(&self) -> Pooling {
        match self {
            Self::Decoder(model) => model.pooling(),
            Self::Encoder(encoder) => encoder.pooling(),
        }
    }

    /// Refuses vectors of `dimensions` elements unless vectors are that long or the checkpoint
    /// [declares](crate::Encoder::matryoshka_dimensions) that they may be cut to that length.
    ///
    /// # Errors
    ///
    /// [`Error::Options`], which names the lengths that are possible.
    pub fn check_dimensions(&self, dimensions: usize) -> Result<(), Error> {
        match self {
            Self::Decoder(model) => model.check_dimensions(dimensions),
            Self::Encoder(encoder) => encoder.check_dimensions(dimensions),
        }
    }

    /// The checkpoint's prompts for texts to embed, by name.
    pub fn prompts(&self) -> &BTreeMap<String, String> {
        match self {
            Self::Decoder(model) => model.embedding_prompts(),
            Self::Encoder(encoder) => encoder.prompts(),
        }
    }

    /// True if texts get a prompt by default.
    pub fn has_default_prompt(&self) -> bool {
        match self {
            Self::Decoder(model) => model.sentence().default_prompt.is_some(),
            Self::Encoder(encoder) => encoder.sentence().default_prompt.is_some(),
        }
    }

    /// The token ids of a text that is embedded, with the special tokens that the model puts around it.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`]; [`Error::Options`] for a prompt that the checkpoint does not have.
    pub fn tokens(&self, text: &str, options: &TokensOptions) -> Result<Vec<u32>, Error> {
        match self {
            Self::Decoder(model) => model.embedding_prompt_with(text, options),
            Self::Encoder(encoder) => encoder.tokens_with(text, options),
        }
    }

    /// The vector of each text, in the order of the texts: [`Model::embed`] or [`Encoder::embed`].
    ///
    /// # Errors
    ///
    /// The errors of [`Model::embed`] and [`Encoder::embed`].
    pub fn embed(&self, texts: Vec<Vec<u32>>, options: &EmbedOptions) -> Result<Vectors, Error> {
        Ok(match self {
            Self::Decoder(model) => Vectors::Decoder(model.embed(texts, options)?),
            Self::Encoder(encoder) => Vectors::Encoder(encoder.embed(texts, options)?),
        })
    }
}

/// Vectors of either kind of model, in the order of the texts: the iterator waits for the next one,
/// [`poll_next`](Self::poll_next) does not. Dropping it ends the request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Vectors {
    /// Vectors of a decoder, which works on the next texts while the caller reads.
    Decoder(InOrder<std::vec::IntoIter<Vec<u32>>, Vec<f32>>),
    /// Vectors of an encoder.
    Encoder(Embeddings),
}

impl Vectors {
    /// The next vector if it is there; otherwise `Pending`, and the task of `context` is woken when there is more to read.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<f32>, Error>>> {
        match self {
            Self::Decoder(vectors) => vectors.poll_next(context),
            Self::Encoder(vectors) => vectors.poll_next(context),
        }
    }
}

impl Iterator for Vectors {
    type Item = Result<Vec<f32>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Decoder(vectors) => vectors.next(),
            Self::Encoder(vectors) => vectors.next(),
        }
    }
}
