//! A loaded model of any kind.

use std::sync::Arc;
use std::time::Duration;

use brasa::engine::EngineStats;
use brasa::{AnyModel, Embedder, Encoder, ModelInfo, ModelKind, Reranker, Tokenizer};

use serde_json::{Value, json};

use crate::http::error::{ApiError, Result};
use crate::metrics::{Memory, Now};
use crate::models::loaded_speech::LoadedSpeech;
use crate::models::loaded_text::LoadedText;
use crate::models::presence::Presence;
use crate::models::reaper::Reaped;

/// A loaded model by kind. A handle: clones are cheap.
#[derive(Clone)]
pub(crate) enum Loaded {
    /// A language model, with its running generations.
    Text(Arc<LoadedText>),
    /// A text encoder.
    Encoder(Arc<LoadedEncoder>),
    /// A model of speech, with its running transcriptions.
    Speech(Arc<LoadedSpeech>),
}

/// A text encoder in memory.
pub(crate) struct LoadedEncoder {
    pub encoder: Reaped<Encoder>,
    // The model keeps it until it is gone: whoever waits for the end of a model waits for its presence.
    pub presence: Arc<Presence>,
}

impl Loaded {
    /// Wraps a model that has no requests yet.
    ///
    /// # Errors
    ///
    /// [`brasa::Error::Options`] for a kind of model that is not served.
    pub fn new(id: String, model: AnyModel) -> Result<Self, brasa::Error> {
        Ok(match model {
            AnyModel::Encoder(encoder) => {
                let presence = Presence::new(id);
                Self::Encoder(Arc::new(LoadedEncoder { encoder: Reaped::new(encoder, &presence), presence }))
            }
            AnyModel::Text(model) => Self::Text(Arc::new(LoadedText::new(id, model))),
            AnyModel::Speech(transcriber) => Self::Speech(Arc::new(LoadedSpeech::new(id, transcriber))),
            other => {
                let kind = other.kind().name();
                return Err(brasa::Error::Options(format!("models of the kind {kind} are not served")));
            }
        })
    }

    /// The record of the model's requests.
    pub fn presence(&self) -> &Arc<Presence> {
        match self {
            Self::Text(loaded) => &loaded.presence,
            Self::Encoder(loaded) => &loaded.presence,
            Self::Speech(loaded) => &loaded.presence,
        }
    }

    /// The log's entry for a loaded model: its device, its context, and for a language model the number of requests served at
    /// once and the bytes for their keys and values.
    pub fn start_line(&self) -> Value {
        let mut line =
            json!({"loaded": self.presence().id, "device": self.device(), "context": self.context()});
        if let Self::Text(loaded) = self {
            line["parallel"] = loaded.slots.into();
            line["cache_bytes"] = loaded.model.engine().config().cache_bytes.into();
        }
        line
    }

    /// The kind of the model.
    pub fn kind(&self) -> ModelKind {
        match self {
            Self::Text(_) => ModelKind::Text,
            Self::Encoder(_) => ModelKind::Encoder,
            Self::Speech(_) => ModelKind::Speech,
        }
    }

    /// Architecture, sizes and storage of the model.
    pub fn info(&self) -> &ModelInfo {
        match self {
            Self::Text(loaded) => loaded.model.info(),
            Self::Encoder(loaded) => loaded.encoder.info(),
            Self::Speech(loaded) => loaded.transcriber.info(),
        }
    }

    /// The tokenizer of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        match self {
            Self::Text(loaded) => loaded.model.tokenizer(),
            Self::Encoder(loaded) => loaded.encoder.tokenizer(),
            Self::Speech(loaded) => loaded.transcriber.vocabulary().tokenizer(),
        }
    }

    /// Rows of the embedding table.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Text(loaded) => loaded.model.vocab_size(),
            Self::Encoder(loaded) => loaded.encoder.vocab_size(),
            Self::Speech(loaded) => loaded.transcriber.info().vocab_size.unwrap_or_default(),
        }
    }

    /// Description of the device that the model runs on.
    pub fn device(&self) -> &str {
        match self {
            Self::Text(loaded) => &loaded.model.device().description,
            Self::Encoder(loaded) => &loaded.encoder.device().description,
            Self::Speech(loaded) => &loaded.transcriber.device().description,
        }
    }

    /// The model's present activity and memory.
    pub fn now(&self) -> Now {
        let id = self.presence().id.clone();
        match self {
            Self::Text(loaded) => {
                let stats = loaded.model.engine().stats();
                Now { model: id, memory: Memory::of(&loaded.model, &stats), stats }
            }
            Self::Encoder(loaded) => {
                let mut stats = EngineStats::default();
                stats.running = loaded.presence.busy();
                Now { model: id, stats, memory: Memory::of_encoder(&loaded.encoder) }
            }
            Self::Speech(loaded) => {
                let mut stats = EngineStats::default();
                (stats.running, stats.waiting) = (loaded.running(), loaded.waiting());
                Now { model: id, stats, memory: Memory::of_speech(&loaded.transcriber) }
            }
        }
    }

    /// Most tokens of a text.
    pub fn context(&self) -> usize {
        match self {
            Self::Text(loaded) => loaded.model.context(),
            Self::Encoder(loaded) => loaded.encoder.context(),
            Self::Speech(loaded) => loaded.transcriber.info().context_length.unwrap_or_default(),
        }
    }

    /// Oddities of the checkpoint that do not keep it from running.
    pub fn warnings(&self) -> &[String] {
        match self {
            Self::Text(loaded) => loaded.model.warnings(),
            Self::Encoder(loaded) => loaded.encoder.warnings(),
            Self::Speech(loaded) => loaded.transcriber.warnings(),
        }
    }

    /// False if the engine has failed, or has stalled for the time `silence`.
    pub async fn is_alive(&self, silence: Duration) -> bool {
        match self {
            Self::Text(loaded) => loaded.is_alive(silence).await,
            Self::Encoder(loaded) => !loaded.presence.is_closed(),
            Self::Speech(loaded) => !loaded.presence.is_closed(),
        }
    }

    /// The language model, if it is one.
    ///
    /// # Errors
    ///
    /// 400 that names the kind of a model of another kind.
    pub fn text(self) -> Result<Arc<LoadedText>> {
        match self {
            Self::Text(loaded) => Ok(loaded),
            Self::Encoder(_) => {
                Err(self.other_kind("a text encoder", "generates no text: it embeds texts or judges them"))
            }
            Self::Speech(_) => Err(self.speech_alone()),
        }
    }

    /// The speech model, if it is one.
    ///
    /// # Errors
    ///
    /// 400 that names the kind of a model of another kind.
    pub fn speech(self) -> Result<Arc<LoadedSpeech>> {
        match self {
            Self::Speech(loaded) => Ok(loaded),
            Self::Text(_) => {
                Err(self.other_kind("a language model", "cannot transcribe sound: a model of speech does"))
            }
            Self::Encoder(_) => {
                Err(self.other_kind("a text encoder", "cannot transcribe sound: a model of speech does"))
            }
        }
    }

    /// The model for computing embeddings, if it is of such a kind.
    ///
    /// # Errors
    ///
    /// 400 that names the kind of a model of another kind.
    pub fn embedder(&self) -> Result<Embedder> {
        Ok(match self {
            Self::Text(loaded) => Embedder::Decoder(loaded.model.clone()),
            Self::Encoder(loaded) => Embedder::Encoder(loaded.encoder.clone()),
            Self::Speech(_) => return Err(self.speech_alone()),
        })
    }

    /// The model for reranking documents, if it is of such a kind.
    ///
    /// # Errors
    ///
    /// 400 that names the kind of a model of another kind.
    pub fn reranker(&self) -> Result<Reranker> {
        match self {
            Self::Text(loaded) => Ok(Reranker::Decoder(loaded.model.clone())),
            Self::Encoder(loaded) => Ok(Reranker::Encoder(loaded.encoder.clone())),
            Self::Speech(_) => Err(self.speech_alone()),
        }
    }

    fn speech_alone(&self) -> ApiError {
        self.other_kind("a model of speech", "takes sound: /v1/audio/transcriptions transcribes with it")
    }

    fn other_kind(&self, kind: &str, what: &str) -> ApiError {
        let message = format!("`{}` is {kind}, which {what}", self.presence().id);
        ApiError { code: "wrong_model_kind", ..ApiError::invalid(message) }.with_param("model")
    }
}
