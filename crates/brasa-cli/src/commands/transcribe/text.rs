//! Transcripts as text, with times or without.

use brasa::audio::transcript::{Segment, Transcript, TranscriptFormat};

use crate::args::TranscribeArguments;
use crate::load::clock;

/// The whole content of a transcript's file.
pub fn content(transcript: &Transcript, arguments: &TranscribeArguments) -> String {
    match arguments.format {
        TranscriptFormat::Text => {
            transcript.segments.iter().map(|segment| lines(segment, arguments)).collect()
        }
        format => transcript.to_format(format),
    }
}

/// The lines of a segment: its text, or one line for each word. Words have their times, texts on request.
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

/// A line with its times in front.
pub fn timed(start_s: f64, end_s: f64, text: &str) -> String {
    format!("[{} --> {}]  {}\n", fine(start_s), fine(end_s), text.trim())
}

/// Hours if there are any, minutes, seconds and milliseconds.
fn fine(seconds: f64) -> String {
    let milliseconds = (seconds * 1000.0).round_ties_even() as u64;
    format!("{}.{:03}", clock(milliseconds as f64 / 1000.0), milliseconds % 1000)
}
