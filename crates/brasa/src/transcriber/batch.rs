//! Several sounds, or pieces of one, decoded in common steps.
//!
//! A step reads the decoder's weights once, however many texts it carries. A sound that is not cut into pieces is transcribed as
//! it would be alone. A sound in pieces is cut at its pauses ([`batch_windows`]), and the pieces are transcribed independently.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use brasa_audio::transcript::{Segment, Transcript};
use brasa_audio::{Excerpts, Recording, SAMPLE_RATE, VoiceDetector, batch_windows};
use brasa_speech::{Timed, TranscribeOptions, Transcription, TranscriptionTimes, advance_together};

use super::Transcriber;
use super::segments::{speech, transcript_of};
use crate::Error;

/// A sound of a batch.
#[derive(Clone, Debug)]
pub struct BatchSound {
    /// The sound, which is read again piece by piece.
    pub recording: Recording,
    /// How the sound is transcribed.
    pub options: TranscribeOptions,
    /// True to cut the sound at its pauses into pieces of at most 30 s, which are transcribed independently. False transcribes it
    /// in order.
    pub in_pieces: bool,
    /// Detector of pauses for a sound in pieces; `Off` cuts it where it is quietest. Has no effect on a sound that is transcribed
    /// in order.
    pub voice: VoiceDetector,
}

/// An iterator of transcripts, in the order in which sounds end: the number of a sound and its transcript. Iteration ends with
/// the first error. Dropping the iterator ends the work. See [`Transcriber::transcribe_batch`].
pub struct TranscribeBatch {
    transcriber: Transcriber,
    /// Pieces in one step.
    at_once: usize,
    sounds: Vec<State>,
    /// Number of sounds that have been cut into pieces.
    cut: usize,
    waiting: VecDeque<Piece>,
    running: Vec<Running>,
    /// Numbers of sounds that have ended and have not been returned yet.
    ready: VecDeque<usize>,
    done: usize,
    all: usize,
    /// Times of all parts so far, without the features of pieces that still run.
    times: TranscriptionTimes,
    ended: bool,
}

/// State of one sound of the batch.
struct State {
    sound: BatchSound,
    /// The samples of the sound's pieces; `None` before the first piece and after the last.
    excerpts: Option<Excerpts>,
    language: Option<&'static str>,
    /// Pieces that have not ended.
    open: usize,
    /// Segments of pieces that have ended, in any order.
    segments: Vec<Segment>,
}

/// A part of a sound: the number of the sound, and samples.
struct Piece {
    sound: usize,
    range: Range<usize>,
}

struct Running {
    piece: Piece,
    work: Transcription,
    segments: Vec<Segment>,
    ended: bool,
}

impl TranscribeBatch {
    pub(super) fn new(
        transcriber: Transcriber,
        sounds: Vec<BatchSound>,
        at_once: usize,
    ) -> Result<Self, Error> {
        let (mut states, mut times) = (Vec::new(), TranscriptionTimes::default());
        for sound in sounds {
            sound.options.check()?;
            times.read += sound.recording.read_time();
            states.push(State { sound, excerpts: None, language: None, open: 0, segments: Vec::new() });
        }
        let (waiting, running, ready) = (VecDeque::new(), Vec::new(), VecDeque::new());
        let at_once = at_once.max(1);
        times.total = times.read;
        Ok(Self {
            transcriber,
            at_once,
            sounds: states,
            cut: 0,
            waiting,
            running,
            ready,
            done: 0,
            all: 0,
            times,
            ended: false,
        })
    }

    /// Finds the pieces of all sounds.
    fn cut(&mut self, going: &mut dyn FnMut() -> ControlFlow<()>) -> Result<(), Error> {
        while let Some(State { sound, open, .. }) = self.sounds.get_mut(self.cut) {
            let pieces = if sound.in_pieces {
                let speech = speech(&sound.recording, sound.voice, going)?;
                batch_windows(sound.recording.energies(), &speech)
            } else {
                let whole = 0..sound.recording.samples();
                vec![whole]
            };
            *open = pieces.len();
            if pieces.is_empty() {
                self.ready.push_back(self.cut);
            }
            self.all += pieces.iter().map(Range::len).sum::<usize>();
            self.waiting.extend(pieces.into_iter().map(|range| Piece { sound: self.cut, range }));
            self.cut += 1;
        }
        Ok(())
    }

    /// Like `next`, but calls `going` before each step of the device; `Break` cancels.
    ///
    /// # Errors
    ///
    /// Errors of the device and of the options; [`DeviceError::Cancelled`](brasa_graph::device::DeviceError::Cancelled) if
    /// `going` breaks.
    pub fn next_while(
        &mut self,
        going: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Option<Result<(usize, Transcript), Error>> {
        let started = Instant::now();
        let found = self.find(going);
        self.times.total += started.elapsed();
        found
    }

    fn find(
        &mut self,
        going: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Option<Result<(usize, Transcript), Error>> {
        if let Err(error) = self.cut(going) {
            let was_ended = std::mem::replace(&mut self.ended, true);
            return (!was_ended).then_some(Err(error));
        }
        loop {
            if let Some(number) = self.ready.pop_front() {
                return Some(Ok((number, self.transcript(number))));
            }
            if self.ended {
                return None;
            }
            match self.advance(going) {
                Ok(true) => {}
                Ok(false) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
    }

    /// Seconds of sound that are transcribed so far, and in all. For a sound in pieces, pauses do not count.
    pub fn progress(&self) -> (f64, f64) {
        let seconds = |samples: usize| samples as f64 / f64::from(SAMPLE_RATE);
        let running = self.running.iter().map(|running| running.work.progress().0 as f64 / 100.0);
        (seconds(self.done) + running.sum::<f64>(), seconds(self.all))
    }

    /// Times of the parts of all transcriptions together so far. Steps that several sounds share cannot be told apart.
    pub fn times(&self) -> TranscriptionTimes {
        let mel = self.running.iter().map(|running| running.work.mel_time());
        TranscriptionTimes { mel: self.times.mel + mel.sum::<Duration>(), ..self.times }
    }

    /// Decodes one window of every running piece; returns false if nothing is left.
    fn advance(&mut self, going: &mut dyn FnMut() -> ControlFlow<()>) -> Result<bool, Error> {
        while self.running.len() < self.at_once
            && let Some(piece) = self.waiting.pop_front()
        {
            let running = self.start(piece)?;
            self.running.push(running);
        }
        if self.running.is_empty() {
            return Ok(false);
        }
        let Self { transcriber, running, times, .. } = self;
        let mut works: Vec<&mut Transcription> =
            running.iter_mut().map(|running| &mut running.work).collect();
        let found = transcriber.with_programs(|programs| {
            advance_together(&mut works, &mut Timed::new(programs, times), going)
        })?;
        for (running, found) in self.running.iter_mut().zip(found) {
            match found {
                Some(segments) => running.segments.extend(segments),
                None => running.ended = true,
            }
        }
        let (over, still): (Vec<Running>, Vec<Running>) =
            std::mem::take(&mut self.running).into_iter().partition(|running| running.ended);
        self.running = still;
        for running in over {
            self.end(running);
        }
        Ok(true)
    }

    fn start(&mut self, piece: Piece) -> Result<Running, Error> {
        let Piece { sound: number, range } = &piece;
        let state = &mut self.sounds[*number];
        let BatchSound { recording, options, in_pieces, .. } = &state.sound;
        let mut options = options.clone();
        let work = if *in_pieces {
            let excerpts = state.excerpts.get_or_insert_with(|| recording.excerpts());
            let samples = excerpts.samples(range.clone())?;
            // Pieces of one sound are in one language: that of the first.
            let vocabulary = self.transcriber.vocabulary();
            if options.language.is_none() && state.language.is_none() && vocabulary.tokens().is_multilingual()
            {
                state.language = self.transcriber.detect_language(samples)?.first().map(|(code, _)| *code);
            }
            options.language = options.language.or_else(|| state.language.map(str::to_owned));
            options.condition_on_previous_text = false;
            let started = Instant::now();
            let features = self.transcriber.0.log_mel.features(samples)?;
            self.times.mel += started.elapsed();
            self.transcriber.transcription(features, options)?
        } else {
            self.transcriber.transcription(recording.features()?, options)?
        };
        Ok(Running { piece, work, segments: Vec::new(), ended: false })
    }

    /// Moves the segments of a piece to their places in the sound.
    fn end(&mut self, running: Running) {
        let Running { piece: Piece { sound: number, range }, work, segments, .. } = running;
        self.done += range.len();
        self.times.mel += work.mel_time();
        let seconds = |samples: usize| samples as f64 / f64::from(SAMPLE_RATE);
        let (from_s, to_s) = (seconds(range.start), seconds(range.end));
        let state = &mut self.sounds[number];
        let in_pieces = state.sound.in_pieces;
        state.language = state.language.or(work.language());
        state.segments.extend(
            segments
                .into_iter()
                .map(|segment| if in_pieces { moved(segment, range.start, from_s, to_s) } else { segment }),
        );
        state.open -= 1;
        if state.open == 0 {
            self.ready.push_back(number);
        }
    }

    fn transcript(&mut self, number: usize) -> Transcript {
        let state = &mut self.sounds[number];
        let mut segments = std::mem::take(&mut state.segments);
        segments.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        let duration_s = state.sound.recording.samples() as f64 / f64::from(SAMPLE_RATE);
        state.excerpts = None;
        transcript_of(state.sound.options.task, state.language, duration_s, segments)
    }
}

impl Iterator for TranscribeBatch {
    type Item = Result<(usize, Transcript), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_while(&mut || ControlFlow::Continue(()))
    }
}

/// Shifts a segment's times from the beginning of its piece to the beginning of the sound, and limits them to the piece's end.
fn moved(mut segment: Segment, start_samples: usize, from_s: f64, to_s: f64) -> Segment {
    let place = |time_s: f64| (time_s + from_s).min(to_s);
    (segment.start_s, segment.end_s) = (place(segment.start_s), place(segment.end_s));
    segment.seek += (start_samples / (SAMPLE_RATE as usize / 100)) as u32;
    for word in segment.words.iter_mut().flatten() {
        (word.start_s, word.end_s) = (place(word.start_s), place(word.end_s));
    }
    segment
}
