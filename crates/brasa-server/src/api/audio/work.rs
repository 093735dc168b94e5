//! Transcriptions on threads of their own. Dropping the receiving end cancels a transcription.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use brasa::audio::transcript::{Segment, Transcript};
use brasa::audio::{Limits, Sound as AudioSound, VoiceDetector};
use brasa::engine::EngineError;
use brasa::speech::SpeechError;
use brasa::{TranscribeOptions, TranscriptionTimes};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::form::Sound;
use super::request::Request;
use crate::answer::generate::saw_error;
use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::models::loaded_speech::{LoadedSpeech, Place};
use crate::state::App;

/// Most segments that wait to be sent to a client.
const WAITING: usize = 16;

/// An event of a transcription.
pub(super) enum Event {
    /// The sound has been read. The texts are warnings about it.
    Opened(Vec<String>),
    /// A segment has been transcribed.
    Segment(Segment),
    /// The end: the transcript, and the times of the parts.
    End(Transcript, TranscriptionTimes),
}

/// The receiving end of a transcription.
pub(super) struct Work {
    receiver: mpsc::Receiver<Result<Event>>,
    app: App,
    record: Record,
    id: String,
    started: Instant,
    tokens: usize,
    ended: bool,
}

impl Work {
    /// Starts a transcription.
    pub fn start(
        app: &App,
        record: &Record,
        loaded: &Arc<LoadedSpeech>,
        place: Place,
        sound: Sound,
        request: &Request,
    ) -> Self {
        let (options, voice) = (request.options.clone(), request.voice);
        let (sender, receiver) = mpsc::channel(WAITING);
        let limits = Limits { duration: app.options.max_audio_duration, ..Limits::default() };
        // Errors of a device revive the model, which needs the runtime.
        let (model, runtime, state) =
            (Arc::clone(loaded), tokio::runtime::Handle::current(), Arc::clone(app));
        tokio::task::spawn_blocking(move || {
            // The place is free when the work has ended, not when its client has gone.
            let _place = place;
            if let Err(error) = transcribe(&sender, &model, sound, &limits, (options, voice)) {
                if let brasa::Error::Speech(SpeechError::Device(error)) = &error {
                    let _runtime = runtime.enter();
                    saw_error(&state, &model.presence, &EngineError::Device(error.clone()));
                }
                // The client may have gone.
                let _ = sender.blocking_send(Err(error.into()));
            }
        });
        let (app, record, id) = (Arc::clone(app), record.clone(), loaded.id().to_owned());
        Self { receiver, app, record, id, started: Instant::now(), tokens: 0, ended: false }
    }

    /// Number of tokens written so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Waits until the sound has been read. Returns warnings about it.
    ///
    /// # Errors
    ///
    /// The error of the sound or of the options.
    pub async fn opened(&mut self) -> Result<Vec<String>> {
        match self.next().await? {
            Event::Opened(warnings) => Ok(warnings),
            Event::Segment(_) | Event::End(..) => Ok(Vec::new()),
        }
    }

    /// The next event of the transcription.
    ///
    /// # Errors
    ///
    /// The error of the transcription, or the time limit of the request.
    pub async fn next(&mut self) -> Result<Event> {
        let deadline = self.started + self.app.options.request_timeout;
        let event = match tokio::time::timeout_at(deadline, self.receiver.recv()).await {
            Ok(Some(event)) => event,
            Ok(None) => Err(ApiError::internal("the transcription failed by a fault of the server")),
            Err(_) => Err(EngineError::DeadlineExceeded { tokens: self.tokens }.into()),
        };
        match &event {
            Ok(Event::Opened(warnings)) if !warnings.is_empty() => {
                self.record.set("warnings", warnings.clone());
            }
            Ok(Event::Opened(_)) => {}
            Ok(Event::Segment(segment)) => self.tokens += segment.tokens.len(),
            Ok(Event::End(transcript, _)) => self.end("stop", transcript.duration_s),
            Err(_) => self.end("error", 0.0),
        }
        event
    }

    fn end(&mut self, reason: &'static str, audio_s: f64) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let took: Duration = self.started.elapsed();
        self.app.metrics.saw_transcription(&self.id, reason, self.tokens, audio_s, took);
        self.record.set("audio_seconds", audio_s);
        self.record.set("completion_tokens", self.tokens);
        self.record.set("finish", reason);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.end("cancelled", 0.0);
    }
}

/// Transcribes a sound and sends its parts. Ends early, without an error, if the receiver is gone.
fn transcribe(
    sender: &mpsc::Sender<Result<Event>>,
    loaded: &LoadedSpeech,
    sound: Sound,
    limits: &Limits,
    (options, voice): (TranscribeOptions, VoiceDetector),
) -> std::result::Result<(), brasa::Error> {
    let gone = || if sender.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let sound = AudioSound::from_bytes(sound.bytes, &sound.name, limits);
    let recording = match loaded.transcriber.read(sound, &mut |_| gone()) {
        Err(_) if sender.is_closed() => return Ok(()),
        recording => recording?,
    };
    let mut segments = loaded.transcriber.transcribe_speech(&recording, voice, options)?;
    let mut is_heard = sender.blocking_send(Ok(Event::Opened(recording.warnings().to_vec()))).is_ok();
    let mut found: Vec<Segment> = Vec::new();
    while is_heard && let Some(segment) = segments.next_while(&mut || gone()) {
        let segment = match segment {
            Err(_) if sender.is_closed() => return Ok(()),
            segment => segment?,
        };
        found.push(segment.clone());
        is_heard = sender.blocking_send(Ok(Event::Segment(segment))).is_ok();
    }
    // The client may have gone.
    let _ = sender.blocking_send(Ok(Event::End(segments.transcript(found), segments.times())));
    Ok(())
}
