//! A sound, window by window, to segments.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_audio::transcript::Segment;
use brasa_audio::{Features, LogMel};

use crate::language::detect_language;
use crate::recogniser::{Recogniser, Shape, WindowId};
use crate::rules::Rules;
use crate::seek::{Cut, Seeker, Window};
use crate::timing::{align, time_segments};
use crate::vocabulary::SpeechVocabulary;
use crate::window::{Procedure, WindowTask, run_tasks};
use crate::{Result, SpeechError, Task, Timestamps, TranscribeOptions};

/// The language of models that know English alone.
const ENGLISH: &str = "en";

/// The segments of one sound, window by window.
///
/// It holds no device, so that transcriptions may take turns on one.
pub struct Transcription {
    procedure: Arc<Procedure>,
    features: Features,
    seeker: Seeker,
    /// The start of the transcript, language and task; empty before the language is known.
    start: Vec<u32>,
    language: Option<&'static str>,
    spoken_until_s: f64,
}

impl Transcription {
    /// Begins with samples of one channel at 16 kHz, for a recogniser of this shape.
    ///
    /// # Errors
    ///
    /// [`SpeechError::Options`], [`SpeechError::Language`], [`SpeechError::Audio`].
    pub fn new(
        shape: &Shape,
        vocabulary: &SpeechVocabulary,
        log_mel: &LogMel,
        samples: &[f32],
        options: TranscribeOptions,
    ) -> Result<Self> {
        options.check()?;
        check_model(vocabulary, &options, shape.mel_bins, log_mel.bins())?;
        let features = log_mel.features(samples)?;
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
        Ok(Self { procedure, features, seeker, start, language, spoken_until_s: 0.0 })
    }

    /// The code of the language, once it is known: with the first segment at the latest.
    pub fn language(&self) -> Option<&'static str> {
        self.language
    }

    /// Frames of 10 ms that are transcribed, and frames in all.
    pub fn progress(&self) -> (usize, usize) {
        (self.seeker.frames_done(), self.features.frames())
    }

    /// Transcribes the next window and returns its segments; `None` at the end. `going` is asked before each step whether to go on.
    ///
    /// # Errors
    ///
    /// Errors of the device. The window stays the next one.
    ///
    /// # Panics
    ///
    /// If the recogniser encodes no window when it is given one.
    pub fn advance(
        &mut self,
        recogniser: &mut dyn Recogniser,
        going: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Vec<Segment>>> {
        let Some(window) = self.seeker.window() else { return Ok(None) };
        let mel = self.features.window(window.seek);
        let id = *recogniser.encode(&[&mel])?.first().expect("one window");
        let found = self.transcribe(window, id, recogniser, going);
        recogniser.forget(id);
        found.map(Some)
    }

    fn transcribe(
        &mut self,
        window: Window,
        id: WindowId,
        recogniser: &mut dyn Recogniser,
        going: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<Segment>> {
        let procedure = Arc::clone(&self.procedure);
        if self.start.is_empty() {
            let found = detect_language(recogniser, id, &procedure.vocabulary)?;
            let code = found.first().map_or(ENGLISH, |(code, _)| *code);
            let token = procedure.vocabulary.tokens().language(code)?;
            self.start = start_of(&procedure.vocabulary, token, procedure.options.task);
            self.language = Some(code);
        }
        let context = self.seeker.context();
        let task = WindowTask::new(Arc::clone(&procedure), id, &context, &self.start, window.seek as u64);
        let mut tasks = [task];
        run_tasks(&mut tasks, recogniser, going)?;
        let [task] = tasks;
        let text = task.into_text().expect("a finished task");
        let mut cut = self.seeker.cut(window, &text, &procedure.vocabulary)?;
        if procedure.options.timestamps == Timestamps::Words && !cut.segments.is_empty() {
            self.time_words(window, id, &mut cut, recogniser)?;
        }
        Ok(self.seeker.follow(window, cut, &text))
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

/// Gives segments of a window their words. `place`: frames of the window, its start, and the end of speech before it, in seconds;
/// returns the end of the last segment.
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
