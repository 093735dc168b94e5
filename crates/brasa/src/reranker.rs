//! Models that judge documents: a language model, or a cross-encoder.

use std::ops::ControlFlow;
use std::path::Path;
use std::task::{Context, Poll};

use brasa_graph::device::DeviceInfo;
use brasa_models::ModelInfo;

use crate::{Embedder, Encoder, Error, InOrder, LoadOptions, LoadProgress, Model, PairScores, RerankOptions};

/// A model that judges how well documents answer a query, of either kind.
///
/// ```
/// use brasa::{LoadOptions, RerankOptions, Reranker};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/random-encoders/bert-judge");
/// let reranker = Reranker::load(path, &LoadOptions::default())?;
/// let documents = ["An ember is a glowing coal.".to_owned(), "Rivers flow to the sea.".to_owned()];
/// let scores = reranker.rerank("What is an ember?", &documents, &RerankOptions::default())?;
/// for (score, document) in scores.zip(&documents) {
///     println!("{:.3} {document}", score?);
/// }
/// # Ok::<(), brasa::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reranker {
    /// A language model, which answers whether a document answers the query.
    Decoder(Model),
    /// A cross-encoder, whose head judges query and document together.
    Encoder(Encoder),
}

impl Reranker {
    /// Loads a checkpoint as a cross-encoder or a language model, whichever it is.
    ///
    /// # Errors
    ///
    /// The errors of [`Model::load`].
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, Error> {
        Self::load_with_progress(path, options, |_| ControlFlow::Continue(()))
    }

    /// Like [`load`](Self::load), but `progress` receives the progress and may cancel.
    ///
    /// # Errors
    ///
    /// The errors of [`Model::load_with_progress`].
    pub fn load_with_progress(
        path: impl AsRef<Path>,
        options: &LoadOptions,
        progress: impl FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        Embedder::load_with_progress(path, options, progress).map(Self::from)
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
        Embedder::from_gguf_bytes(bytes, options, progress).map(Self::from)
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

    /// Most tokens of a query and a document together.
    pub fn context(&self) -> usize {
        match self {
            Self::Decoder(model) => model.context(),
            Self::Encoder(encoder) => encoder.context(),
        }
    }

    /// The relevance of each document to `query`, in the order of the documents: [`Model::rerank`] or [`Encoder::rerank`].
    ///
    /// # Errors
    ///
    /// The errors of [`Model::rerank`], [`Encoder::rerank`] and [`Model::rerank_prompts`].
    pub fn rerank(
        &self,
        query: &str,
        documents: &[String],
        options: &RerankOptions,
    ) -> Result<Scores, Error> {
        match self {
            Self::Decoder(model) => {
                let prompts = model.rerank_prompts(query, documents, options)?;
                let tokens = prompts.tokens();
                Ok(Scores::Decoder { scores: model.rerank(prompts), tokens })
            }
            Self::Encoder(encoder) => encoder.rerank(query, documents, options).map(Scores::Encoder),
        }
    }
}

impl From<Embedder> for Reranker {
    fn from(model: Embedder) -> Self {
        match model {
            Embedder::Decoder(model) => Self::Decoder(model),
            Embedder::Encoder(encoder) => Self::Encoder(encoder),
        }
    }
}

/// Scores of either kind of model, in the order of the documents: the iterator waits for the next one, [`poll_next`](Self::poll_next)
/// does not. Dropping it ends the request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Scores {
    /// Scores of a language model, which judges the next documents while the caller reads.
    Decoder {
        /// The scores.
        scores: InOrder<std::vec::IntoIter<Vec<u32>>, f32>,
        /// Tokens of all prompts.
        tokens: usize,
    },
    /// Scores of a cross-encoder.
    Encoder(PairScores),
}

impl Scores {
    /// Tokens of all documents with their query.
    pub fn tokens(&self) -> usize {
        match self {
            Self::Decoder { tokens, .. } => *tokens,
            Self::Encoder(scores) => scores.tokens(),
        }
    }

    /// The next score if it is there; otherwise `Pending`, and the task of `context` is woken when there is more to read.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<f32, Error>>> {
        match self {
            Self::Decoder { scores, .. } => scores.poll_next(context),
            Self::Encoder(scores) => scores.poll_next(context),
        }
    }
}

impl Iterator for Scores {
    type Item = Result<f32, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Decoder { scores, .. } => scores.next(),
            Self::Encoder(scores) => scores.next(),
        }
    }
}
