//! Models of every kind that a file may hold.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use brasa_formats::{Bytes, Checkpoint};
use brasa_graph::device::DeviceInfo;
use brasa_models::{ModelInfo, ModelKind, Source};

use crate::{Embedder, Encoder, Error, LoadOptions, LoadProgress, Model, Transcriber};

/// A loaded model of any kind, for programs that serve any file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyModel {
    /// A language model.
    Text(Model),
    /// A text encoder.
    Encoder(Encoder),
    /// A model of speech.
    Speech(Transcriber),
}

impl AnyModel {
    /// Loads a checkpoint as a text model, an encoder or a speech model, whichever it is.
    ///
    /// # Errors
    ///
    /// The errors of [`Model::load_with_progress`]. For a model of another kind, the error names the kind.
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

    fn from_checkpoint(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        progress: impl FnMut(LoadProgress) -> ControlFlow<()>,
        started: Instant,
    ) -> Result<Self, Error> {
        if ModelKind::of(&Source::of(checkpoint)?) == ModelKind::Speech {
            return Transcriber::from_checkpoint(checkpoint, options, progress, started).map(Self::Speech);
        }
        Ok(match Embedder::from_checkpoint(checkpoint, options, progress, started)? {
            Embedder::Decoder(model) => Self::Text(model),
            Embedder::Encoder(encoder) => Self::Encoder(encoder),
        })
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
            Self::Text(model) => model.info(),
            Self::Encoder(encoder) => encoder.info(),
            Self::Speech(transcriber) => transcriber.info(),
        }
    }

    /// The device that the model runs on.
    pub fn device(&self) -> &DeviceInfo {
        match self {
            Self::Text(model) => model.device(),
            Self::Encoder(encoder) => encoder.device(),
            Self::Speech(transcriber) => transcriber.device(),
        }
    }

    /// Oddities of the checkpoint that do not keep it from running.
    pub fn warnings(&self) -> &[String] {
        match self {
            Self::Text(model) => model.warnings(),
            Self::Encoder(encoder) => encoder.warnings(),
            Self::Speech(transcriber) => transcriber.warnings(),
        }
    }
}
