//! Transcription of several files, or pieces of files, at once.

use std::ops::ControlFlow;
use std::time::Instant;

use brasa::audio::{VoiceActivity, VoiceDetector};
use brasa::{BatchSound, TranscribeOptions, Transcriber};

use super::destination::Destination;
use super::report::{tell, told, write};
use super::sound;
use crate::args::TranscribeArguments;
use crate::failure::Failure;
use crate::{interrupt, load, output};

/// Transcribes files, with pieces of several files in common steps.
///
/// # Errors
///
/// [`Failure::Failed`] for the only file, or if some of several failed; [`Failure::Interrupted`].
pub fn transcribe(
    transcriber: &Transcriber,
    destinations: &[Destination],
    options: &TranscribeOptions,
    arguments: &TranscribeArguments,
) -> Result<(), Failure> {
    let (mut failures, mut at) = (0, 0);
    while at < destinations.len() {
        let (mut sounds, mut places) = (Vec::new(), Vec::new());
        while at < destinations.len() && places.len() < arguments.search.batch {
            let destination = &destinations[at];
            at += 1;
            let bar = load::time_bar(destination.input_name());
            let recording = sound::read(transcriber, &destination.input, arguments, &bar);
            bar.finish_and_clear();
            match recording {
                Ok(recording) => {
                    let voice = arguments
                        .search
                        .vad
                        .unwrap_or_else(|| VoiceDetector::Energy(VoiceActivity::default()));
                    sounds.push(BatchSound { recording, options: options.clone(), in_pieces: true, voice });
                    places.push(destination);
                }
                Err(Failure::Failed(message)) if destinations.len() > 1 => {
                    output::note(&format!("error: {message}"));
                    failures += 1;
                }
                Err(error) => return Err(error),
            }
        }
        together(transcriber, sounds, &places, arguments)?;
    }
    told(failures, destinations.len())
}

/// Transcribes sounds that have already been read once.
fn together(
    transcriber: &Transcriber,
    sounds: Vec<BatchSound>,
    places: &[&Destination],
    arguments: &TranscribeArguments,
) -> Result<(), Failure> {
    let started = Instant::now();
    let name = match places {
        [only] => only.input_name(),
        several => output::plural(several.len(), "file"),
    };
    let bar = load::time_bar(name);
    let mut batch = transcriber.transcribe_batch(sounds, arguments.search.batch)?;
    let mut duration_s = 0.0;
    let mut going = || {
        bar.tick();
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    loop {
        let found = batch.next_while(&mut going);
        interrupt::check()?;
        let Some(found) = found else { break };
        let (number, transcript) = found?;
        let (done_s, all_s) = batch.progress();
        load::set_clock(&bar, done_s, all_s);
        duration_s += transcript.duration_s;
        // Steps that several files share have one time.
        let times = (places.len() == 1).then(|| batch.times());
        bar.suspend(|| {
            write(places[number], &transcript, times.as_ref(), arguments, started.elapsed(), true)
        })?;
    }
    bar.finish_and_clear();
    if places.len() > 1 {
        tell(Some(&batch.times()), duration_s, arguments);
    }
    Ok(())
}
