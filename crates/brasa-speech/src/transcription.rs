//! A sound, window by window, to segments.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_audio::transcript::Segment;
use brasa_audio::{Features, LogMel};

use crate::language::detect_language;
use crate::recogniser::{Recogniser, WindowId};
use crate::rules::Rules;
use crate::seek::{Cut, Seeker, Window};
use crate::timing::{align, time_segments};
use crate::vocabulary::SpeechVocabulary;
use crate::window::{Procedure, WindowTask, run_tasks};
use crate::{Result, SpeechError, Task, Timestamps, TranscribeOptions};

/// The language of models that know English alone.
const ENGLISH: &str = "en";

/// The segments of one sound, as an iterator: each call of `next` transcribes windows until there is a segment.
///
/// The first error ends it.
pub struct Transcription<'r> {
    recogniser: &'r mut dyn Recogniser,
    procedure: Arc<Procedure>,
    features: Features,
    seeker: Seeker,
    /// The start of the transcript, language and task; empty before the language is known.
    start: Vec<u32>,
    language: Option<&'static str>,
    ready: VecDeque<Segment>,
    spoken_until_s: f64,
    going: Box<dyn FnMut() -> ControlFlow<()> + 'r>,
    failed: bool,
}

impl<'r> Transcription<'r> {
    /// Begins with samples of one channel at 16 kHz. `going` is asked before each step whether to go on.
    ///
    /// # Errors
    ///
    /// [`SpeechError::Options`], [`SpeechError::Language`], [`SpeechError::Audio`].
    pub fn new(
        recogniser: &'r mut dyn Recogniser,
        vocabulary: &SpeechVocabulary,
        log_mel: &LogMel,
        samples: &[f32],
        options: TranscribeOptions,
        going: impl FnMut() -> ControlFlow<()> + 'r,
    ) -> Result<Self> {
        options.check()?;
        let shape = recogniser.shape();
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
        Ok(Self {
            recogniser,
            procedure: Arc::new(procedure),
            features,
            seeker,
            start,
            language,
            ready: VecDeque::new(),
            spoken_until_s: 0.0,
            going: Box::new(going),
            failed: false,
        })
    }

    /// The code of the language, once it is known: with the first segment at the latest.
    pub fn language(&self) -> Option<&'static str> {
        self.language
    }

    /// Frames of 10 ms that are transcribed, and frames in all.
    pub fn progress(&self) -> (usize, usize) {
        (self.seeker.frames_done(), self.features.frames())
    }

    /// Transcribes the next window; false at the end.
    fn step(&mut self) -> Result<bool> {
        let Some(window) = self.seeker.window() else { return Ok(false) };
        let mel = windowed(&self.features, window);
        let id = *self.recogniser.encode(&[&mel])?.first().expect("one window");
        let found = self.transcribe(window, id);
        self.recogniser.forget(id);
        self.ready.extend(found?);
        Ok(true)
    }

    fn transcribe(&mut self, window: Window, id: WindowId) -> Result<Vec<Segment>> {
        if self.start.is_empty() {
            let found = detect_language(self.recogniser, id, &self.procedure.vocabulary)?;
            let code = found.first().map_or(ENGLISH, |(code, _)| *code);
            let token = self.procedure.vocabulary.tokens().language(code)?;
            self.start = start_of(&self.procedure.vocabulary, token, self.procedure.options.task);
            self.language = Some(code);
        }
        let procedure = Arc::clone(&self.procedure);
        let noise = window.seek as u64;
        let task = WindowTask::new(Arc::clone(&procedure), id, &self.seeker.context(), &self.start, noise);
        let mut tasks = [task];
        run_tasks(&mut tasks, self.recogniser, &mut self.going)?;
        let [task] = tasks;
        let text = task.into_text().expect("a finished task");
        let mut cut = self.seeker.cut(window, &text, &procedure.vocabulary)?;
        if procedure.options.timestamps == Timestamps::Words && !cut.segments.is_empty() {
            self.time_words(window, id, &mut cut)?;
        }
        Ok(self.seeker.follow(window, cut, &text))
    }

    fn time_words(&mut self, window: Window, id: WindowId, cut: &mut Cut) -> Result<()> {
        let vocabulary = &self.procedure.vocabulary;
        let language = self.language.unwrap_or(ENGLISH);
        let offset_s = window.seek as f64 / 100.0;
        let (start, segments) = (&self.start, &mut cut.segments);
        self.spoken_until_s = time_words(
            self.recogniser,
            id,
            vocabulary,
            start,
            segments,
            (window.frames, offset_s, self.spoken_until_s),
            language,
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

impl Iterator for Transcription<'_> {
    type Item = Result<Segment>;

    fn next(&mut self) -> Option<Result<Segment>> {
        loop {
            if self.failed {
                return None;
            }
            if let Some(segment) = self.ready.pop_front() {
                return Some(Ok(segment));
            }
            match self.step() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
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

/// The features of a window; silence behind its end.
fn windowed(features: &Features, window: Window) -> Features {
    features.window(window.seek)
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
