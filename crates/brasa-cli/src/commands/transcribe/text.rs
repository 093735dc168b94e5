//! Transcripts as text, with or without times.

use brasa::TranscriptionTimes;
use brasa::audio::transcript::{Segment, Transcript, TranscriptFormat};
use serde_json::{Value, json};

use crate::args::TranscribeArguments;
use crate::load::clock;

/// The whole content of a transcript's file. JSON also has the times of the transcription, if they are known.
pub fn content(
    transcript: &Transcript,
    times: Option<&TranscriptionTimes>,
    arguments: &TranscribeArguments,
) -> String {
    let timed = |mut object: Value| {
        if let Some(times) = times {
            object["timings"] = times.to_json(transcript.duration_s);
        }
        format!("{object}\n")
    };
    match arguments.format {
        TranscriptFormat::Text => {
            transcript.segments.iter().map(|segment| lines(segment, arguments)).collect()
        }
        TranscriptFormat::Json => timed(json!({"text": transcript.text()})),
        TranscriptFormat::VerboseJson => timed(transcript.to_verbose_json()),
        format => transcript.to_format(format),
    }
}

/// The lines of a segment: its text, or one line for each word. Words always have times, texts only on request.
pub fn lines(segment: &Segment, arguments: &TranscribeArguments) -> String {
    if arguments.words {
        let words = segment.words.iter().flatten();
        return words.map(|word| timed(word.start_s, word.end_s, &word.text)).collect();
    }
    if arguments.timestamps {
        return timed(segment.start_s, segment.end_s, &segment.text);
    }
    format!("{}\n", segment.text.trim())
}

/// The times of a transcription's parts, and the real-time factor, as text.
pub fn parts(times: &TranscriptionTimes, duration_s: f64) -> String {
    let named = times.named().into_iter().filter(|(_, time)| !time.is_zero());
    let mut parts: Vec<String> =
        named.map(|(name, time)| format!("{name} {:.1} ms", time.as_secs_f64() * 1000.0)).collect();
    parts.extend(times.real_time_factor(duration_s).map(|factor| format!("real-time factor {factor:.3}")));
    parts.join(", ")
}

/// A line that begins with its times.
pub fn timed(start_s: f64, end_s: f64, text: &str) -> String {
    format!("[{} --> {}]  {}\n", fine(start_s), fine(end_s), text.trim())
}

/// Formats seconds as hours (if there are any), minutes, seconds and milliseconds.
fn fine(seconds: f64) -> String {
    let milliseconds = (seconds * 1000.0).round_ties_even() as u64;
    format!("{}.{:03}", clock(milliseconds as f64 / 1000.0), milliseconds % 1000)
}
