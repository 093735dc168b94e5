//! A sound, window by window, to segments.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brasa_audio::transcript::Segment;
use brasa_audio::{FeatureWindows, Features};
use brasa_graph::device::DeviceError;

use crate::language::detect_language;
use crate::recogniser::{Recogniser, Shape, WindowId};
use crate::rules::Rules;
use crate::seek::{Cut, Seeker, Window};
use crate::timing::{align, time_segments};
use crate::vocabulary::SpeechVocabulary;
use crate::window::{Procedure, WindowTask, WindowText, run_tasks};
use crate::{Result, SpeechError, Task, Timestamps, TranscribeOptions};

/// The language of models that know English alone.
const ENGLISH: &str = "en";

/// The segments of one sound, window by window.
///
/// A transcription holds no device, so that transcriptions may take turns on one.
pub struct Transcription {
    procedure: Arc<Procedure>,
    features: FeatureWindows,
    seeker: Seeker,
    /// The start of the transcript, language and task; empty before the language is known.
    start: Vec<u32>,
    language: Option<&'static str>,
    spoken_until_s: f64,
    mel_time: Duration,
}

impl Transcription {
    /// Begins with the features of a sound, whole or window by window, for a recogniser of this shape.
    ///
    /// # Errors
    ///
    /// [`SpeechError::Options`], [`SpeechError::Language`].
    pub fn new(
        shape: &Shape,
        vocabulary: &SpeechVocabulary,
        features: impl Into<FeatureWindows>,
        options: TranscribeOptions,
    ) -> Result<Self> {
        let features = features.into();
        options.check()?;
        check_model(vocabulary, &options, shape.mel_bins, features.bins())?;
        let seeker = Seeker::new(features.frames(), vocabulary, &options, shape.text_context)?;
        let tokens = vocabulary.tokens();
        let (mut start, mut language) = (Vec::new(), None);
        if !tokens.is_multilingual() {
            (start, language) = (vec![tokens.sot], Some(ENGLISH));
        } else if let Some(name) = &options.language {
            let token = tokens.language(name)?;
            start = start_of(vocabulary, token, options.task);
            language = tokens.language_of(token);
        }
        let rules = Rules::new(tokens, &options);
        let text_context = shape.text_context;
        let procedure = Procedure { options, vocabulary: vocabulary.clone(), rules, text_context };
        let procedure = Arc::new(procedure);
        Ok(Self {
            procedure,
            features,
            seeker,
            start,
            language,
            spoken_until_s: 0.0,
            mel_time: Duration::ZERO,
        })
    }

    /// Keeps only these ranges of frames of 10 ms, which are in order, and leaves pauses out. No window spans two of them. Call it
    /// before the first window.
    pub fn keep_only(&mut self, clips: &[Range<usize>]) {
        self.seeker.keep_only(clips);
    }

    /// The code of the language, once it is known: with the first segment at the latest.
    pub fn language(&self) -> Option<&'static str> {
        self.language
    }

    /// Frames of 10 ms that are transcribed, and frames in all.
    pub fn progress(&self) -> (usize, usize) {
        (self.seeker.frames_done(), self.features.frames())
    }

    /// Time that the features of all windows have taken so far.
    pub fn mel_time(&self) -> Duration {
        self.mel_time
    }

    /// Transcribes the next window and returns its segments; `None` at the end. `going` is called before each step, and `Break`
    /// cancels.
    ///
    /// # Errors
    ///
    /// Errors of the device, and of sound that is read as it is asked for. The window stays the next one.
    ///
    /// # Panics
    ///
    /// If the recogniser encodes no window when it is given one.
    pub fn advance(
        &mut self,
        recogniser: &mut dyn Recogniser,
        going: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Vec<Segment>>> {
        let found = advance_together(&mut [self], recogniser, going)?;
        Ok(found.into_iter().next().expect("one transcription"))
    }

    /// Finds the language in the window `id`, if it is not known yet.
    fn find_language(&mut self, id: WindowId, recogniser: &mut dyn Recogniser) -> Result<()> {
        if !self.start.is_empty() {
            return Ok(());
        }
        let procedure = &self.procedure;
        let found = detect_language(recogniser, id, &procedure.vocabulary)?;
        let code = found.first().map_or(ENGLISH, |(code, _)| *code);
        let token = procedure.vocabulary.tokens().language(code)?;
        self.start = start_of(&procedure.vocabulary, token, procedure.options.task);
        self.language = Some(code);
        Ok(())
    }

    /// The segments of a window whose text has been found.
    fn close(
        &mut self,
        window: Window,
        id: WindowId,
        text: &WindowText,
        recogniser: &mut dyn Recogniser,
    ) -> Result<Vec<Segment>> {
        let mut cut = self.seeker.cut(window, text, &self.procedure.vocabulary)?;
        if self.procedure.options.timestamps == Timestamps::Words && !cut.segments.is_empty() {
            self.time_words(window, id, &mut cut, recogniser)?;
        }
        Ok(self.seeker.follow(window, cut, text))
    }

    fn time_words(
        &mut self,
        window: Window,
        id: WindowId,
        cut: &mut Cut,
        recogniser: &mut dyn Recogniser,
    ) -> Result<()> {
        let offset_s = window.seek as f64 / 100.0;
        self.spoken_until_s = time_words(
            recogniser,
            id,
            &self.procedure.vocabulary,
            &self.start,
            &mut cut.segments,
            (window.frames, offset_s, self.spoken_until_s),
            self.language.unwrap_or(ENGLISH),
        )?;
        let last_word = cut.segments.iter().rev().find_map(|segment| segment.words.as_ref()?.last());
        let end_s = last_word.map(|word| word.end_s).or(cut.segments.last().map(|segment| segment.end_s));
        if let Some(end_s) = end_s {
            self.spoken_until_s = end_s;
            // The next window begins behind the last word, unless nothing follows it.
            if !cut.ends_alone && end_s > offset_s {
                cut.next_seek = (end_s * 100.0).round_ties_even() as usize;
            }
        }
        Ok(())
    }
}

/// Transcribes the next window of each transcription, all texts in common steps. Returns the segments of each, `None` for those
/// at their end. `going` is called before each step, and `Break` cancels.
///
/// Every transcription goes on as it would alone. Its numbers are those that it has alone as far as the recogniser's rows do not depend on
/// what else is in a step.
///
/// # Errors
///
/// Errors of the device, and of sound that is read as it is asked for. Transcriptions whose window had no text yet stay before it.
///
/// # Panics
///
/// If the recogniser encodes fewer windows than it is given.
pub fn advance_together(
    transcriptions: &mut [&mut Transcription],
    recogniser: &mut dyn Recogniser,
    going: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Vec<Option<Vec<Segment>>>> {
    let windows: Vec<Option<Window>> =
        transcriptions.iter().map(|transcription| transcription.seeker.window()).collect();
    let mut ids = Vec::new();
    let found = advance_windows(transcriptions, &windows, &mut ids, recogniser, going);
    for id in ids {
        recogniser.forget(id);
    }
    found
}

/// Like [`advance_together`]. `ids` gets the windows that were encoded, also in case of an error.
fn advance_windows(
    transcriptions: &mut [&mut Transcription],
    windows: &[Option<Window>],
    ids: &mut Vec<WindowId>,
    recogniser: &mut dyn Recogniser,
    going: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Vec<Option<Vec<Segment>>>> {
    let most = recogniser.shape().max_windows.max(1);
    let open: Vec<(usize, Window)> =
        windows.iter().enumerate().filter_map(|(number, window)| Some((number, (*window)?))).collect();
    for part in open.chunks(most) {
        if going().is_break() {
            return Err(SpeechError::Device(DeviceError::Cancelled));
        }
        let mels: Vec<Features> = part
            .iter()
            .map(|(number, window)| {
                let transcription = &mut *transcriptions[*number];
                let started = Instant::now();
                let mut features = transcription.features.window(window.seek)?;
                features.silence_from(window.frames);
                transcription.mel_time += started.elapsed();
                Ok(features)
            })
            .collect::<brasa_audio::Result<_>>()?;
        let encoded = recogniser.encode(&mels.iter().collect::<Vec<_>>())?;
        assert_eq!(encoded.len(), part.len(), "a window for each");
        ids.extend(encoded);
    }
    let mut tasks = Vec::with_capacity(open.len());
    for (&(number, window), &id) in open.iter().zip(&*ids) {
        let transcription = &mut *transcriptions[number];
        transcription.find_language(id, recogniser)?;
        let (procedure, context) = (Arc::clone(&transcription.procedure), transcription.seeker.context());
        tasks.push(WindowTask::new(procedure, id, &context, &transcription.start, window.seek as u64));
    }
    run_tasks(&mut tasks, recogniser, going)?;
    let mut found: Vec<Option<Vec<Segment>>> = vec![None; windows.len()];
    for ((&(number, window), &id), task) in open.iter().zip(&*ids).zip(tasks) {
        let text = task.into_text().expect("a finished task");
        found[number] = Some(transcriptions[number].close(window, id, &text, recogniser)?);
    }
    Ok(found)
}

/// Adds words to the segments of a window. `place`: frames of the window, its start, and the end of speech before it, in seconds.
/// Returns the end of the last segment.
fn time_words(
    recogniser: &mut dyn Recogniser,
    id: WindowId,
    vocabulary: &SpeechVocabulary,
    start: &[u32],
    segments: &mut [Segment],
    (frames, offset_s, spoken_until_s): (usize, f64, f64),
    language: &str,
) -> Result<f64> {
    let eot = vocabulary.tokens().eot;
    let text: Vec<u32> =
        segments.iter().flat_map(|segment| &segment.tokens).copied().filter(|&token| token < eot).collect();
    let words = align(recogniser, id, vocabulary, start, &text, frames, language)?;
    Ok(time_segments(segments, words, offset_s, spoken_until_s, eot))
}

/// The start of a transcript, its language and its task.
fn start_of(vocabulary: &SpeechVocabulary, language: u32, task: Task) -> Vec<u32> {
    let tokens = vocabulary.tokens();
    let task = match task {
        Task::Transcribe => tokens.transcribe,
        Task::Translate => tokens.translate,
    };
    vec![tokens.sot, language, task]
}

fn check_model(
    vocabulary: &SpeechVocabulary,
    options: &TranscribeOptions,
    mel_bins: usize,
    given_bins: usize,
) -> Result<()> {
    let bad = |what: String| Err(SpeechError::Options { what });
    if mel_bins != given_bins {
        return bad(format!("features of {given_bins} mel bins for a model of {mel_bins}"));
    }
    if vocabulary.tokens().is_multilingual() {
        return Ok(());
    }
    if options.task == Task::Translate {
        return bad("this model knows English alone and cannot translate".into());
    }
    match &options.language {
        Some(name) if crate::language_code(name) != Some(ENGLISH) => {
            Err(SpeechError::Language { name: name.clone() })
        }
        _ => Ok(()),
    }
}
