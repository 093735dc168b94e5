//! A text encoder made ready to embed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use brasa_engine::{
    EncoderConfig, EncoderEngine, EncoderOutput, EncoderRows, EncoderText, EncoderVectors, EngineError,
    MakeProgram,
};
use brasa_formats::{Bytes, Checkpoint};
use brasa_graph::Graph;
use brasa_graph::device::{DeviceInfo, KvPoolSpec, ProgramLimits};
use brasa_models::{EncoderModel, MeanHead, ModelInfo, Pooling, SentenceConfig, load_encoder};
use brasa_tokenizer::Tokenizer;

use crate::inside::LoadedDevice;
use crate::sentence::{check_dimensions, check_unpooled, finish, tokens};
use crate::{
    EmbedOptions, Error, LoadOptions, LoadProgress, RequestOptions, TokensOptions, adapter, device, verify,
};

/// Most texts of a step.
const MOST_SEGMENTS: usize = 256;

/// A text encoder made ready: tokenizer, compiled programs, and an engine that computes whole texts.
///
/// A handle like [`Model`](crate::Model): clones are cheap and name one loaded encoder. An encoder makes vectors of texts
/// and generates nothing.
///
/// ```
/// use brasa::{EmbedOptions, Encoder, LoadOptions};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/random-encoders/bert");
/// let encoder = Encoder::load(path, &LoadOptions::default())?;
/// let texts = ["An ember glows.", "A river flows to the sea."].map(|text| encoder.tokens(text));
/// let texts = texts.into_iter().collect::<Result<_, _>>()?;
/// let vectors: Vec<Vec<f32>> = encoder.embed(texts, &EmbedOptions::default())?.collect::<Result<_, _>>()?;
/// assert_eq!(vectors[0].len(), encoder.dimensions());
/// # Ok::<(), brasa::Error>(())
/// ```
#[derive(Clone)]
pub struct Encoder(Arc<Parts>);

struct Parts {
    engine: EncoderEngine,
    tokenizer: Tokenizer,
    sentence: SentenceConfig,
    head: Option<Head>,
    /// The head that reads mean states and is computed outside the graph; `None` if the model has none.
    mean_head: Option<MeanHead>,
    /// Elements of a token's state.
    hidden_size: usize,
    /// Elements of a text's vector.
    dimensions: usize,
    info: ModelInfo,
    device: DeviceInfo,
    warnings: Vec<String>,
    weight_bytes: u64,
    load_time: Duration,
}

/// The head that judges texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Logits of a text.
    pub labels: usize,
    /// Number of token types, which mark the parts of a text; 0 or 1 if the model does not distinguish them.
    pub token_types: usize,
}

impl Encoder {
    /// Loads a Hugging Face or sentence-transformers folder, or a GGUF file.
    ///
    /// # Errors
    ///
    /// [`Error`], naming file and remedy.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, Error> {
        Self::load_with_progress(path, options, |_| ControlFlow::Continue(()))
    }

    /// Like [`load`](Self::load), but `progress` receives the progress and may cancel.
    ///
    /// # Errors
    ///
    /// The errors of [`load`](Self::load), and [`DeviceError::Cancelled`](brasa_graph::device::DeviceError::Cancelled).
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

    pub(crate) fn from_checkpoint(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        mut progress: impl FnMut(LoadProgress) -> ControlFlow<()>,
        started: Instant,
    ) -> Result<Self, Error> {
        if [options.chunk, options.context, options.threads].contains(&Some(0)) || options.max_waiting == 0 {
            return Err(Error::Options(
                "chunks, waiting requests, context and threads must be at least 1".into(),
            ));
        }
        adapter::refuse(options, "a text encoder")?;
        let load = brasa_models::LoadOptions { context_length: options.context, strict: options.strict };
        let model = load_encoder(checkpoint, &load)?;
        let sentence = SentenceConfig::of(checkpoint)?;
        if sentence.logit_score.is_some() {
            let what = "modules.json has a LogitScore, which judges by the logits of a language model, and this is a text encoder";
            return Err(Error::Options(what.into()));
        }
        let tokenizer = Tokenizer::from_checkpoint(checkpoint, options.pre_tokenizer.as_deref())?;
        let EncoderModel { info, warnings, .. } = &model;
        let mut warnings = warnings.clone();
        warnings.extend(verify::vocabulary(&tokenizer, checkpoint.container(), model.vocab_size())?);
        warnings.extend_from_slice(tokenizer.judged_warnings(options.strict)?);
        if let Some(layer) = sentence.dense.first().filter(|layer| layer.inputs != model.hidden_size()) {
            return Err(Error::Options(format!(
                "a dense layer has {} inputs, and hidden states have {}",
                layer.inputs,
                model.hidden_size()
            )));
        }
        let most = model.context_length().min(sentence.max_tokens.unwrap_or(usize::MAX));
        let context = options.context.map_or(most, |wanted| wanted.min(most));

        let backend = device::of(options)?;
        let weights = backend.upload(model.graph(), options.precision, &mut |upload| {
            progress(LoadProgress { done_bytes: upload.done_bytes, total_bytes: upload.total_bytes })
        })?;
        let weight_bytes = weights.size_bytes();
        let device = Arc::new(LoadedDevice { backend: Arc::clone(&backend), weights });
        let rows = options.chunk.unwrap_or(backend.info().prompt_rows).max(context);
        let program = |graph: Graph| -> MakeProgram {
            let (graph, device) = (Arc::new(graph), Arc::clone(&device));
            let limits =
                ProgramLimits { max_rows: rows, max_outs: rows, max_segments: rows.min(MOST_SEGMENTS) };
            Box::new(move || device.program(&graph, limits.into()))
        };
        let pool = backend.kv_pool(KvPoolSpec::empty())?;
        let config = EncoderConfig {
            context,
            vocab_size: model.vocab_size(),
            token_types: model.token_types(),
            max_jobs: options.max_waiting,
        };
        let head =
            model.classifier().map(|head| Head { labels: head.labels, token_types: model.token_types() });
        let logits = model.logits_graph().map(program);
        let engine = EncoderEngine::start(program(model.hidden_graph()), logits, pool, config)?;
        Ok(Self(Arc::new(Parts {
            engine,
            hidden_size: model.hidden_size(),
            dimensions: sentence.dimensions(model.hidden_size()),
            tokenizer,
            sentence,
            head,
            mean_head: model.head.clone(),
            info: info.clone(),
            device: backend.info(),
            warnings,
            weight_bytes,
            load_time: started.elapsed(),
        })))
    }

    /// Architecture, sizes and storage of the encoder.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// The device that the encoder runs on.
    pub fn device(&self) -> &DeviceInfo {
        &self.0.device
    }

    /// The engine that computes texts.
    pub(crate) fn engine(&self) -> &EncoderEngine {
        &self.0.engine
    }

    /// Settings in the files beside the checkpoint.
    pub(crate) fn sentence(&self) -> &SentenceConfig {
        &self.0.sentence
    }

    /// The head that judges texts; `None` without one.
    pub(crate) fn head(&self) -> Option<Head> {
        self.0.head
    }

    /// The head that judges texts by the mean of their states and is computed outside the graph, if the model has one.
    pub(crate) fn mean_head(&self) -> Option<&MeanHead> {
        self.0.mean_head.as_ref()
    }

    /// The tokenizer of the encoder.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    /// Oddities of the checkpoint that do not keep it from running.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// Most tokens of a text, special tokens included.
    pub fn context(&self) -> usize {
        self.0.engine.config().context
    }

    /// Rows of the embedding table. Token ids lie below.
    pub fn vocab_size(&self) -> usize {
        self.0.engine.config().vocab_size
    }

    /// Elements of a vector.
    pub fn dimensions(&self) -> usize {
        self.0.dimensions
    }

    /// Lengths to which vectors may be cut without losing their meaning, as the checkpoint declares them.
    pub fn matryoshka_dimensions(&self) -> &[usize] {
        &self.0.sentence.matryoshka
    }

    /// How vectors are pooled if the options do not say: as the checkpoint does, otherwise by the mean.
    pub fn pooling(&self) -> Pooling {
        self.0.sentence.pooling.unwrap_or(Pooling::Mean)
    }

    /// The checkpoint's prompts for texts to embed, by name: `query`, `document`.
    pub fn prompts(&self) -> &BTreeMap<String, String> {
        &self.0.sentence.prompts
    }

    /// Bytes of the weights on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.0.weight_bytes
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.0.load_time
    }

    /// The token ids of a text, with the model's special tokens, and behind the checkpoint's default prompt if it has one.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`].
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.tokens_with(text, &TokensOptions::default())
    }

    /// Like [`tokens`](Self::tokens), but with another prompt, or cut to the encoder's longest text.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`]; [`Error::Options`] for a prompt that the checkpoint does not have.
    pub fn tokens_with(&self, text: &str, options: &TokensOptions) -> Result<Vec<u32>, Error> {
        let Parts { sentence, tokenizer, .. } = &*self.0;
        tokens(sentence, tokenizer, self.context(), text, options)
    }

    /// The vector of each text, [`dimensions`](Self::dimensions) elements, in the order of the texts, which are token ids as
    /// [`tokens`](Self::tokens) makes them.
    ///
    /// Texts are computed whole, longest first, as many together as fit in a step; a vector does not depend on the other texts. A
    /// text that fails on the device gives an error in its place.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] for a way of pooling that Brasa does not compute, and for a length to which the checkpoint does not
    /// declare that vectors may be cut. [`Error::Engine`] for a text that is empty or too long; no text is computed then.
    pub fn embed(&self, texts: Vec<Vec<u32>>, options: &EmbedOptions) -> Result<Embeddings, Error> {
        let rows = match options.pooling.unwrap_or_else(|| self.pooling()) {
            Pooling::First => EncoderRows::First,
            Pooling::Last => EncoderRows::Last,
            Pooling::Mean => EncoderRows::Mean,
            Pooling::None => EncoderRows::All,
            Pooling::Other(name) => {
                return Err(Error::Options(format!(
                    "the model asks for {name} pooling, which Brasa does not compute\nhint: choose cls, mean or last"
                )));
            }
        };
        check_unpooled(options)?;
        if let Some(dimensions) = options.dimensions {
            self.check_dimensions(dimensions)?;
        }
        Self::check_request(&options.request)?;
        let texts = texts.into_iter().map(|tokens| EncoderText { tokens, types: Vec::new() }).collect();
        let vectors = self.0.engine.encode(texts, EncoderOutput::Hidden, rows, options.request.deadline)?;
        Ok(Embeddings { encoder: self.clone(), vectors, options: *options })
    }

    /// Refuses vectors of another length than the encoder's own and those that the checkpoint declares.
    pub(crate) fn check_dimensions(&self, dimensions: usize) -> Result<(), Error> {
        check_dimensions(&self.0.sentence, self.0.dimensions, dimensions)
    }

    /// Refuses a request that chooses adapters.
    pub(crate) fn check_request(request: &RequestOptions) -> Result<(), Error> {
        if request.cache_scope.adapter != 0 {
            return Err(Error::Options("an encoder has no adapters that requests could choose".into()));
        }
        Ok(())
    }

    /// Ends running requests, waits for the engine, and frees the weights, for all handles. Later requests give
    /// [`EngineError::Closed`].
    pub fn close(&self) {
        self.0.engine.close();
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder")
            .field("info", &self.0.info)
            .field("device", &self.0.device)
            .finish_non_exhaustive()
    }
}

/// Vectors of an encoder's texts, in the order of the texts: the iterator waits for the next one,
/// [`poll_next`](Self::poll_next) does not. Dropping it ends the request at the next step.
#[derive(Debug)]
pub struct Embeddings {
    encoder: Encoder,
    vectors: EncoderVectors,
    options: EmbedOptions,
}

impl Embeddings {
    /// Waits until more than `done` texts are computed; returns how many are. Texts are not computed in their order.
    pub fn wait_beyond(&self, done: usize) -> usize {
        self.vectors.wait_beyond(done)
    }

    /// The next vector if it is there; otherwise `Pending`, and the task of `context` is woken when there is more to read.
    ///
    /// This is the method of the same name of `futures`' `Stream`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<f32>, Error>>> {
        let next = ready!(self.vectors.poll_next(context));
        Poll::Ready(self.finish(next))
    }

    fn finish(&self, next: Option<Result<Vec<f32>, EngineError>>) -> Option<Result<Vec<f32>, Error>> {
        let Parts { sentence, hidden_size, .. } = &*self.encoder.0;
        Some(next?.map(|vector| finish(sentence, vector, *hidden_size, &self.options)).map_err(Error::from))
    }
}

impl Iterator for Embeddings {
    type Item = Result<Vec<f32>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.vectors.next();
        self.finish(next)
    }
}
