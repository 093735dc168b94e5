//! Live transcription.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use brasa::audio::{AudioError, SAMPLE_RATE};
use brasa::{TranscribeOptions, Transcriber};

use super::screen::Screen;
use super::sound;
use crate::args::TranscribeArguments;
use crate::failure::Failure;
use crate::interrupt;

/// Most blocks of sound that wait to be transcribed. Beyond, the sound's writer must wait.
const WAITING_BLOCKS: usize = 64;
/// Most seconds of sound between two transcriptions, even if more is waiting.
const MOST_S: f32 = 10.0;
/// Time between two checks for Ctrl-C while no sound arrives.
const PATIENCE: Duration = Duration::from_millis(100);

/// A block of samples, or the error that ended the sound.
type Block = Result<Vec<f32>, AudioError>;

/// Transcribes live sound. Ctrl-C ends the sound; the words so far are written before the program ends.
pub fn transcribe(
    transcriber: &Transcriber,
    options: TranscribeOptions,
    arguments: &TranscribeArguments,
) -> Result<(), Failure> {
    let path = match &arguments.files[..] {
        [] => Path::new("-"),
        [file] => file,
        _ => return Err(Failure::Usage("--stream transcribes one sound".into())),
    };
    let mut live = transcriber.live(options)?.with_voice(arguments.search.vad.unwrap_or_default());
    let mut reader = sound::live(path, arguments)?;
    let (sender, receiver) = sync_channel(WAITING_BLOCKS);
    // The sound is taken from its writer while the model computes. The thread ends with the sound, or with the program.
    let ears = std::thread::spawn(move || {
        for block in reader.by_ref() {
            if sender.send(block).is_err() {
                break;
            }
        }
        reader.warnings().to_vec()
    });
    let mut screen = Screen::new(arguments);
    let step = (arguments.step * SAMPLE_RATE as f32) as usize;
    let mut samples = Vec::new();
    let end = loop {
        samples.clear();
        let end = gather(&receiver, &mut samples, step);
        if !samples.is_empty() {
            screen.show(&live.push(&samples)?)?;
        }
        if let Some(end) = end {
            break end;
        }
    };
    screen.end(&live.finish())?;
    if end.is_ok() {
        // The thread has ended with the sound.
        ears.join().unwrap_or_default().iter().for_each(sound::warn);
    }
    end
}

/// Waits for `step` samples, and takes all that have arrived. Returns the outcome if the sound has ended.
fn gather(receiver: &Receiver<Block>, samples: &mut Vec<f32>, step: usize) -> Option<Result<(), Failure>> {
    let most = (MOST_S * SAMPLE_RATE as f32) as usize;
    while samples.len() < step {
        if interrupt::take() {
            return Some(Err(Failure::Interrupted));
        }
        match receiver.recv_timeout(PATIENCE) {
            Ok(Ok(block)) => samples.extend(block),
            Ok(Err(error)) => return Some(Err(brasa::Error::from(error).into())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Some(Ok(())),
        }
    }
    while samples.len() < most {
        match receiver.try_recv() {
            Ok(Ok(block)) => samples.extend(block),
            Ok(Err(error)) => return Some(Err(brasa::Error::from(error).into())),
            // The end is found by the next call.
            Err(_) => break,
        }
    }
    None
}
