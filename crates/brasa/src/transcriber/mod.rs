//! A model of speech made ready to transcribe.

mod batch;
mod live;
mod segments;
mod speed;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brasa_audio::{Audio, FeatureWindows, Heard, LogMel, MelFilters, Recording, Sound, VoiceDetector};
use brasa_engine::MaskSource;
use brasa_formats::Checkpoint;
use brasa_grammar::{Grammar, Grammars};
use brasa_graph::device::DeviceInfo;
use brasa_models::{ModelInfo, Source, SpeechGeneration, SpeechModel, build_speech};
use brasa_speech::{
    Programs, Recogniser, SpeechGraphs, SpeechVocabulary, TextGrammar, TranscribeOptions, Transcription,
    TranscriptionTimes,
};
use brasa_tokenizer::Tokenizer;

use crate::{Error, LoadOptions, LoadProgress, adapter, device};
pub use batch::{BatchSound, TranscribeBatch};
pub use live::{Live, LiveUpdate};
pub use segments::Segments;
pub use speed::SpeechSpeed;

/// The device of models of speech if the options name none.
const DEVICE: &str = "cpu";

/// A model of speech made ready: vocabulary, features, an encoder's and a decoder's program.
///
/// A handle: clones are cheap, name one loaded model, and may be used from any thread. Transcriptions that run at once take turns,
/// window by window.
///
/// ```
/// use brasa::audio::{Audio, Limits};
/// use brasa::{LoadOptions, TranscribeOptions, Transcriber};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-whisper");
/// let transcriber = Transcriber::load(folder, &LoadOptions::default())?;
/// let audio = Audio::open(format!("{folder}/held-3.wav"), &Limits::default())?;
/// let mut text = String::new();
/// for segment in transcriber.transcribe(&audio, TranscribeOptions::default())? {
///     text += &segment?.text;
/// }
/// assert_eq!(text, " Call Emma at four o'clock.");
/// # Ok::<(), brasa::Error>(())
/// ```
#[derive(Clone)]
pub struct Transcriber(Arc<Parts>);

impl std::fmt::Debug for Transcriber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transcriber").field("info", &self.0.info).finish_non_exhaustive()
    }
}

struct Parts {
    programs: Mutex<Programs>,
    vocabulary: SpeechVocabulary,
    grammars: Grammars,
    log_mel: LogMel,
    info: ModelInfo,
    device: DeviceInfo,
    warnings: Vec<String>,
    load_time: Duration,
    weight_bytes: u64,
}

impl Transcriber {
    /// Loads a Hugging Face checkpoint of Whisper.
    ///
    /// Used options: device (the CPU if none is named), threads, instruction set, precision, determinism, type of keys and
    /// values, and strictness.
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

    pub(crate) fn from_checkpoint(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        mut progress: impl FnMut(LoadProgress) -> ControlFlow<()>,
        started: Instant,
    ) -> Result<Self, Error> {
        adapter::refuse(options, "a model of speech")?;
        let load = brasa_models::LoadOptions { context_length: None, strict: options.strict };
        let source = Source::of(checkpoint)?;
        let model = build_speech(&source, &load)?;
        let generation = SpeechGeneration::of(checkpoint, &source, &model.spec)?;
        let tokenizer = Tokenizer::from_checkpoint(checkpoint, options.pre_tokenizer.as_deref())?;
        let warnings = [&model.warnings, tokenizer.judged_warnings(options.strict)?].concat();
        let tokenizer = Arc::new(tokenizer);
        let grammars = Grammars::new(Arc::clone(&tokenizer), model.spec.vocab_size);
        let vocabulary = SpeechVocabulary::new(tokenizer, model.spec.vocab_size)?;
        let vocabulary = vocabulary
            .with_lists(generation.suppress_tokens.clone(), generation.begin_suppress_tokens.clone());
        let graphs = graphs(&model, generation.heads(&model.spec));
        let filters = match &model.mel_filters {
            Some(weights) => MelFilters::from_matrix(model.spec.num_mel_bins, weights)?,
            None => MelFilters::slaney(model.spec.num_mel_bins)?,
        };
        let named = options.device.is_some() || options.own_device.is_some();
        let backend = if named {
            device::of(options)?
        } else {
            device::of(&LoadOptions { device: Some(DEVICE.into()), ..options.clone() })?
        };
        let log_mel = LogMel::new(filters).with_threads(backend.info().threads);
        let weights = backend.weight_set(options.precision);
        let total_bytes = backend.weight_bytes(&graphs.encoder) + backend.weight_bytes(&graphs.decoder);
        let mut before = 0;
        for graph in [&graphs.encoder, &graphs.decoder] {
            let mut done = 0;
            weights.add(graph, &mut |upload| {
                done = upload.total_bytes;
                let done_bytes = (before + upload.done_bytes).min(total_bytes);
                progress(LoadProgress { done_bytes, total_bytes })
            })?;
            before += done;
        }
        let weight_bytes = weights.size_bytes();
        let device = backend.info();
        let programs = Programs::new(backend, weights, graphs, options.kv_type(), 1)?;
        Ok(Self(Arc::new(Parts {
            programs: Mutex::new(programs),
            vocabulary,
            grammars,
            log_mel,
            info: model.info,
            device,
            warnings,
            load_time: started.elapsed(),
            weight_bytes,
        })))
    }

    /// Transcribes a sound. The returned iterator computes segments on demand; dropping it ends the work.
    ///
    /// # Errors
    ///
    /// [`Error::Speech`] for options that make no sense, an unknown language, or samples that are no numbers.
    pub fn transcribe(&self, audio: &Audio, options: TranscribeOptions) -> Result<Segments, Error> {
        self.transcribe_samples(audio.samples(), options)
    }

    /// Like [`transcribe`](Self::transcribe), for samples of one channel at 16 kHz.
    ///
    /// # Errors
    ///
    /// The errors of [`transcribe`](Self::transcribe).
    pub fn transcribe_samples(&self, samples: &[f32], options: TranscribeOptions) -> Result<Segments, Error> {
        options.check()?;
        let (task, started) = (options.task, Instant::now());
        let features = self.0.log_mel.features(samples)?;
        let times = TranscriptionTimes {
            mel: started.elapsed(),
            total: started.elapsed(),
            ..TranscriptionTimes::default()
        };
        let work = self.transcription(features, options)?;
        Ok(Segments::new(self.clone(), work, task, samples.len(), times))
    }

    /// Reads a sound to its end, and keeps the facts about the whole sound that its transcription needs. `going` receives the
    /// progress and may cancel.
    ///
    /// # Errors
    ///
    /// [`Error::Audio`]: any error of reading; `Cancelled` if `going` breaks.
    pub fn read(
        &self,
        sound: Sound,
        going: &mut dyn FnMut(Heard) -> ControlFlow<()>,
    ) -> Result<Recording, Error> {
        Ok(Recording::read(sound, &self.0.log_mel, going)?)
    }

    /// Like [`transcribe`](Self::transcribe), for a sound of any length. The sound is read again window by window, so memory does
    /// not grow with it. [`read`](Self::read) makes recordings.
    ///
    /// # Errors
    ///
    /// The errors of [`transcribe`](Self::transcribe), and those of opening the sound again. The segments may end with an error of
    /// reading.
    pub fn transcribe_recording(
        &self,
        recording: &Recording,
        options: TranscribeOptions,
    ) -> Result<Segments, Error> {
        options.check()?;
        let task = options.task;
        let work = self.transcription(recording.features()?, options)?;
        Ok(Segments::new(self.clone(), work, task, recording.samples(), read(recording)))
    }

    /// Like [`transcribe_recording`](Self::transcribe_recording), but leaves pauses out, in which the model might invent words.
    /// Spans of speech that fit into 30 s are transcribed together; a window begins where speech does.
    ///
    /// # Errors
    ///
    /// The errors of [`transcribe_recording`](Self::transcribe_recording).
    pub fn transcribe_speech(
        &self,
        recording: &Recording,
        voice: VoiceDetector,
        options: TranscribeOptions,
    ) -> Result<Segments, Error> {
        Ok(self.transcribe_recording(recording, options)?.without_pauses(recording, voice))
    }

    fn transcription(
        &self,
        features: impl Into<FeatureWindows>,
        options: TranscribeOptions,
    ) -> Result<Transcription, Error> {
        let shape = self.with_programs(|programs| programs.shape());
        Ok(Transcription::new(&shape, &self.0.vocabulary, features, options)?)
    }

    /// Transcribes several sounds, up to `at_once` of them in common steps. Each piece of a sound in pieces counts as a sound. A
    /// window takes the same memory as it does alone.
    ///
    /// In reference precision, or with [`LoadOptions::deterministic`], transcripts do not depend on `at_once`, and a sound that is not in
    /// pieces has the transcript of [`transcribe`](Self::transcribe).
    ///
    /// # Errors
    ///
    /// [`Error::Speech`] for options that make no sense.
    pub fn transcribe_batch(
        &self,
        sounds: Vec<BatchSound>,
        at_once: usize,
    ) -> Result<TranscribeBatch, Error> {
        TranscribeBatch::new(self.clone(), sounds, at_once)
    }

    /// Transcribes a sound that is still going on, at 16 kHz.
    ///
    /// # Errors
    ///
    /// [`Error::Speech`] for options that make no sense.
    pub fn live(&self, options: TranscribeOptions) -> Result<Live, Error> {
        options.check()?;
        Ok(Live::new(self.clone(), options))
    }

    /// The probability of each language in the first 30 s of a sound, by code, likeliest first. They add up to 1.
    ///
    /// # Errors
    ///
    /// [`Error::Speech`] for a model of English alone, or samples that are no numbers; errors of the device.
    pub fn detect_language(&self, samples: &[f32]) -> Result<Vec<(&'static str, f64)>, Error> {
        let mel = self.0.log_mel.window(samples)?;
        self.with_programs(|programs| {
            let windows = programs.encode(&[&mel])?;
            let &[id] = &windows[..] else { unreachable!("one window for one") };
            let found = brasa_speech::detect_language(programs, id, &self.0.vocabulary);
            programs.forget(id);
            Ok(found?)
        })
    }

    /// Architecture, sizes and storage of the model.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// The device that the model runs on.
    pub fn device(&self) -> &DeviceInfo {
        &self.0.device
    }

    /// The model's vocabulary.
    pub fn vocabulary(&self) -> &SpeechVocabulary {
        &self.0.vocabulary
    }

    /// Oddities of the checkpoint that do not keep it from running.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.0.load_time
    }

    /// Bytes of the weights on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.0.weight_bytes
    }

    /// Biases that make words likelier: the first token of each, with and without a space in front, gets `bias` on its logit.
    ///
    /// # Errors
    ///
    /// Errors of the tokenizer.
    pub fn hotwords(&self, words: &[impl AsRef<str>], bias: f32) -> Result<Arc<[(u32, f32)]>, Error> {
        let mut tokens = Vec::new();
        for word in words {
            let word = word.as_ref().trim();
            if word.is_empty() {
                continue;
            }
            for text in [word.to_owned(), format!(" {word}")] {
                tokens.extend(self.0.vocabulary.encode(&text)?.first());
            }
        }
        tokens.sort_unstable();
        tokens.dedup();
        Ok(tokens.into_iter().map(|token| (token, bias)).collect())
    }

    /// Compiles a grammar for [`TranscribeOptions::grammar`], which the text of each window of 30 s then follows. A space in front of
    /// the text is allowed whether the grammar has it or not.
    ///
    /// # Errors
    ///
    /// [`Error::Grammar`] says where the grammar is wrong, or what of it is not supported.
    pub fn grammar(&self, grammar: Grammar) -> Result<TextGrammar, Error> {
        let compiled = self.0.grammars.compile(&Grammar::AfterSpace(Box::new(grammar)))?;
        Ok(TextGrammar::new(move || compiled.start()))
    }

    fn with_programs<T>(&self, work: impl FnOnce(&mut Programs) -> T) -> T {
        work(&mut self.0.programs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The times of a transcription that has read its recording and not begun yet.
fn read(recording: &Recording) -> TranscriptionTimes {
    let read = recording.read_time();
    TranscriptionTimes { read, total: read, ..TranscriptionTimes::default() }
}

fn graphs(model: &SpeechModel, alignment_heads: Vec<(usize, usize)>) -> SpeechGraphs {
    let spec = &model.spec;
    SpeechGraphs {
        encoder: Arc::new(model.encoder.clone()),
        decoder: Arc::new(model.decoder.clone()),
        cross_queries: model.cross_queries.clone(),
        alignment_heads,
        vocab_size: spec.vocab_size,
        text_context: spec.decoder.positions,
        mel_bins: spec.num_mel_bins,
        positions: spec.encoder.positions,
        heads: spec.decoder.heads,
        head_dim: spec.head_dim(),
    }
}
