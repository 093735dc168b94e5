//! Transcripts written to their destinations, and the outcome of a run.

use std::time::Duration;

use brasa::TranscriptionTimes;
use brasa::audio::transcript::{Transcript, TranscriptFormat};

use super::destination::{self, Destination};
use super::text;
use crate::args::TranscribeArguments;
use crate::failure::Failure;
use crate::{load, output};

/// The outcome of a run in which `failures` of `count` files failed.
pub fn told(failures: usize, count: usize) -> Result<(), Failure> {
    match failures {
        0 => Ok(()),
        failures => Err(Failure::Failed(format!("{failures} of {count} files were not transcribed"))),
    }
}

/// Writes a transcript to its destination and reports it, with times if they are known. Text for standard output is left out
/// unless `with_text`.
pub fn write(
    destination: &Destination,
    transcript: &Transcript,
    times: Option<&TranscriptionTimes>,
    arguments: &TranscribeArguments,
    took: Duration,
    with_text: bool,
) -> Result<(), Failure> {
    let summary = format!(
        "{} of {}, {} in {:.1} s",
        load::clock(transcript.duration_s),
        transcript.language,
        output::plural(transcript.segments.len(), "segment"),
        took.as_secs_f64()
    );
    if let Some(path) = &destination.output {
        let content = text::content(transcript, times, arguments);
        output::file(path, destination::force(arguments), |out| out.write_all(content.as_bytes()))?;
        output::line(&format!("{}: {summary}", path.display()))?;
        tell(times, transcript.duration_s, arguments);
        return Ok(());
    }
    if with_text || arguments.format != TranscriptFormat::Text {
        output::write(&text::content(transcript, times, arguments))?;
    }
    if arguments.verbose {
        output::note(&format!("{}: {summary}", destination.input_name()));
    }
    tell(times, transcript.duration_s, arguments);
    Ok(())
}

/// Reports the times of a transcription's parts, if requested.
pub fn tell(times: Option<&TranscriptionTimes>, duration_s: f64, arguments: &TranscribeArguments) {
    if let Some(times) = times.filter(|_| arguments.verbose) {
        output::note(&text::parts(times, duration_s));
    }
}
