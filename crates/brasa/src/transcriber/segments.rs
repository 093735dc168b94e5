//! The segments of a sound, as they are found.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

use brasa_audio::transcript::{Segment, Transcript};
use brasa_audio::{AudioError, Recording, SAMPLE_RATE, VoiceDetector, speech_clips};
use brasa_graph::device::DeviceError;
use brasa_speech::{SpeechError, Task, Timed, Transcription, TranscriptionTimes, language_name};

use super::Transcriber;
use crate::Error;

/// An iterator of segments: each call of `next` transcribes windows until there is a segment. Iteration ends with the first
/// error. Dropping the iterator ends the work.
pub struct Segments {
    transcriber: Transcriber,
    work: Transcription,
    task: Task,
    samples: usize,
    /// The recording whose pauses are to be found before its first window.
    unheard: Option<(Recording, VoiceDetector)>,
    /// Times of all parts so far, without the features of windows.
    times: TranscriptionTimes,
    ready: VecDeque<Segment>,
    ended: bool,
}

impl Segments {
    /// Segments of `work`. `times` are those of the parts that are already done.
    pub(super) fn new(
        transcriber: Transcriber,
        work: Transcription,
        task: Task,
        samples: usize,
        times: TranscriptionTimes,
    ) -> Self {
        Self { transcriber, work, task, samples, unheard: None, times, ready: VecDeque::new(), ended: false }
    }

    pub(super) fn without_pauses(mut self, recording: &Recording, voice: VoiceDetector) -> Self {
        self.unheard = (voice != VoiceDetector::Off).then(|| (recording.clone(), voice));
        self
    }

    /// Like `next`, but calls `going` before each step of the device; `Break` cancels.
    ///
    /// # Errors
    ///
    /// Errors of the device; [`DeviceError::Cancelled`](brasa_graph::device::DeviceError::Cancelled) if `going` breaks.
    pub fn next_while(
        &mut self,
        going: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Option<Result<Segment, Error>> {
        let started = Instant::now();
        let found = self.find(going);
        self.times.total += started.elapsed();
        found
    }

    fn find(&mut self, going: &mut dyn FnMut() -> ControlFlow<()>) -> Option<Result<Segment, Error>> {
        loop {
            if let Some(segment) = self.ready.pop_front() {
                return Some(Ok(segment));
            }
            if self.ended {
                return None;
            }
            if let Some((recording, voice)) = self.unheard.take() {
                match speech(&recording, voice, going) {
                    Ok(speech) => self.work.keep_only(&in_frames(&speech_clips(&speech))),
                    Err(error) => {
                        self.ended = true;
                        return Some(Err(error));
                    }
                }
            }
            let (work, times) = (&mut self.work, &mut self.times);
            let found = self
                .transcriber
                .with_programs(|programs| work.advance(&mut Timed::new(programs, times), going));
            match found {
                Ok(Some(segments)) => self.ready.extend(segments),
                Ok(None) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error.into()));
                }
            }
        }
    }

    /// The code of the language, once it is known: with the first segment at the latest.
    pub fn language(&self) -> Option<&'static str> {
        self.work.language()
    }

    /// Seconds of sound that are transcribed so far, and in all.
    pub fn progress(&self) -> (f64, f64) {
        let (done, all) = self.work.progress();
        (done as f64 / 100.0, all as f64 / 100.0)
    }

    /// The length of the sound in seconds.
    pub fn duration_s(&self) -> f64 {
        self.samples as f64 / f64::from(SAMPLE_RATE)
    }

    /// Times of the parts of the transcription so far.
    pub fn times(&self) -> TranscriptionTimes {
        TranscriptionTimes { mel: self.times.mel + self.work.mel_time(), ..self.times }
    }

    /// A transcript of segments that this iterator returned.
    pub fn transcript(&self, segments: Vec<Segment>) -> Transcript {
        transcript_of(self.task, self.language(), self.duration_s(), segments)
    }

    /// Transcribes the rest; returns the whole transcript.
    ///
    /// # Errors
    ///
    /// The first error.
    pub fn finish(mut self) -> Result<Transcript, Error> {
        let segments = self.by_ref().collect::<Result<_, _>>()?;
        Ok(self.transcript(segments))
    }
}

/// The spans of speech of a recording, as ranges of samples. `going` may cancel.
pub(super) fn speech(
    recording: &Recording,
    voice: VoiceDetector,
    going: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Vec<Range<usize>>, Error> {
    recording.speech(voice, &mut |_| going()).map_err(|error| match error {
        AudioError::Cancelled { .. } => SpeechError::Device(DeviceError::Cancelled).into(),
        other => other.into(),
    })
}

/// Converts ranges of samples to the ranges of frames of 10 ms that cover them.
fn in_frames(clips: &[Range<usize>]) -> Vec<Range<usize>> {
    const FRAME: usize = SAMPLE_RATE as usize / 100;
    clips.iter().map(|clip| clip.start / FRAME..clip.end.div_ceil(FRAME)).collect()
}

/// A transcript of `segments`. `language` is a code.
pub(super) fn transcript_of(
    task: Task,
    language: Option<&'static str>,
    duration_s: f64,
    segments: Vec<Segment>,
) -> Transcript {
    let language = language.and_then(language_name).unwrap_or("unknown").into();
    let task = match task {
        Task::Transcribe => brasa_audio::transcript::Task::Transcribe,
        Task::Translate => brasa_audio::transcript::Task::Translate,
    };
    Transcript { task, language, duration_s, segments }
}

impl Iterator for Segments {
    type Item = Result<Segment, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_while(&mut || ControlFlow::Continue(()))
    }
}
