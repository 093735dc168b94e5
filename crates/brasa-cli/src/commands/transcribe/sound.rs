//! Sound from files, pipes and standard input.

use std::io::{Cursor, Read, stdin};
use std::path::Path;

use std::ops::ControlFlow;

use brasa::Transcriber;
use brasa::audio::{AudioReader, Limits, Recording, SAMPLE_RATE, SampleFormat, Sound};
use indicatif::ProgressBar;

use crate::args::TranscribeArguments;
use crate::failure::Failure;
use crate::{interrupt, load, output};

/// The name of standard input in messages.
pub const STANDARD_INPUT: &str = "standard input";
/// First bytes of sound files that may come through a pipe while being written.
const HEADERS: [&[u8]; 11] = [
    b"RIFF",
    b"RIFX",
    b"RF64",
    b"BW64",
    b"FORM",
    b"caff",
    b".snd",
    b"fLaC",
    b"OggS",
    b"ID3",
    b"\x1a\x45\xdf\xa3",
];

/// Reads a sound file to its end. The file is read again during the transcription.
///
/// # Errors
///
/// [`Failure::Failed`], naming the file; [`Failure::Interrupted`].
pub fn read(
    transcriber: &Transcriber,
    path: &Path,
    arguments: &TranscribeArguments,
    bar: &ProgressBar,
) -> Result<Recording, Failure> {
    let sound = open(path, arguments).map_err(brasa::Error::from)?;
    let recording = transcriber.read(sound, &mut |heard| {
        if let Some(all) = heard.claimed {
            load::set_clock(bar, heard.done.as_secs_f64(), all.as_secs_f64());
        }
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    interrupt::check()?;
    let recording = recording?;
    bar.suspend(|| recording.warnings().iter().for_each(warn));
    Ok(recording)
}

/// Prints a warning about a sound.
pub fn warn(warning: &String) {
    output::note(&format!("warning: {warning}"));
}

fn open(path: &Path, arguments: &TranscribeArguments) -> brasa::audio::Result<Sound> {
    let limits = Limits::default();
    let is_standard = path.as_os_str() == "-";
    match arguments.raw {
        Some(format) if is_standard => {
            raw(stdin(), format, arguments, STANDARD_INPUT).map(Sound::from_stream)
        }
        Some(format) => Sound::open_pcm(path, format, rate(arguments), &limits),
        None if is_standard => {
            AudioReader::from_stream(stdin(), STANDARD_INPUT, &limits).map(Sound::from_stream)
        }
        None => Sound::open(path, &limits),
    }
}

/// True if a file begins like a sound file.
pub fn begins_as_sound(file: impl Read) -> bool {
    let mut first = Vec::new();
    file.take(4).read_to_end(&mut first).is_ok() && HEADERS.iter().any(|header| first.starts_with(header))
}

/// Opens live sound, and waits only for its first bytes. Samples without a header are described by the arguments.
///
/// # Errors
///
/// [`Failure::Failed`], naming the input.
pub fn live(path: &Path, arguments: &TranscribeArguments) -> Result<AudioReader, Failure> {
    let is_standard = path.as_os_str() == "-";
    let name = if is_standard { STANDARD_INPUT.to_owned() } else { path.display().to_string() };
    let mut input: Box<dyn Read + Send> = if is_standard {
        Box::new(stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(|error| Failure::file(path, &error))?)
    };
    let reader = if let Some(format) = arguments.raw {
        raw(input, format, arguments, &name)
    } else {
        let mut first = Vec::new();
        let read = input.by_ref().take(4).read_to_end(&mut first);
        read.map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
        let has_header = HEADERS.iter().any(|header| first.starts_with(header));
        let input = Cursor::new(first).chain(input);
        if has_header {
            AudioReader::from_stream(input, &name, &Limits::default())
        } else {
            raw(input, SampleFormat::S16, arguments, &name)
        }
    };
    Ok(reader.map_err(brasa::Error::from)?)
}

fn raw(
    input: impl Read + Send + 'static,
    format: SampleFormat,
    arguments: &TranscribeArguments,
    name: &str,
) -> brasa::audio::Result<AudioReader> {
    AudioReader::from_pcm(input, format, rate(arguments), name, &Limits::default())
}

fn rate(arguments: &TranscribeArguments) -> u32 {
    arguments.rate.unwrap_or(SAMPLE_RATE)
}
