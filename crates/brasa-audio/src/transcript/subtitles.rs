//! Subtitles with the times and line breaks of openai-whisper's writers.

use std::fmt::Write;

use super::{Segment, Word, milliseconds};

/// Characters of a line before it is broken between two words.
const LONGEST_LINE: usize = 1000;

pub(super) fn srt(segments: &[Segment]) -> String {
    let mut out = String::new();
    for (index, cue) in cues(segments).enumerate() {
        let (start, end) = (srt_time(cue.start_s), srt_time(cue.end_s));
        write!(out, "{}\n{start} --> {end}\n{}\n\n", index + 1, cue.text).expect("a string takes everything");
    }
    out
}

pub(super) fn vtt(segments: &[Segment]) -> String {
    let mut out = "WEBVTT\n\n".to_owned();
    for cue in cues(segments) {
        let (start, end) = (vtt_time(cue.start_s), vtt_time(cue.end_s));
        write!(out, "{start} --> {end}\n{}\n\n", cue.text).expect("a string takes everything");
    }
    out
}

struct Cue {
    start_s: f64,
    end_s: f64,
    text: String,
}

/// One cue for each segment: from its first to its last word, if there are words.
fn cues(segments: &[Segment]) -> impl Iterator<Item = Cue> {
    let has_words = segments.first().is_some_and(|segment| segment.words.is_some());
    segments.iter().filter_map(move |segment| match segment.words.as_deref().unwrap_or_default() {
        _ if !has_words => Some(Cue {
            start_s: segment.start_s,
            end_s: segment.end_s,
            // An arrow would end the cue's times.
            text: segment.text.trim().replace("-->", "->"),
        }),
        [] => None,
        words @ [first, ..] => {
            Some(Cue { start_s: first.start_s, end_s: words[words.len() - 1].end_s, text: broken(words) })
        }
    })
}

/// The words in lines that are not too long.
fn broken(words: &[Word]) -> String {
    let mut text = String::new();
    let mut line_chars = 0;
    for word in words {
        let chars = word.text.chars().count();
        if line_chars > 0 && line_chars + chars <= LONGEST_LINE {
            text.push_str(&word.text);
            line_chars += chars;
        } else {
            let word = word.text.trim();
            if line_chars > 0 {
                text.push('\n');
            }
            text.push_str(word);
            line_chars = word.chars().count();
        }
    }
    text
}

fn srt_time(seconds: f64) -> String {
    let (hours, minutes, seconds, milliseconds) = parts(seconds);
    format!("{hours:02}:{minutes:02}:{seconds:02},{milliseconds:03}")
}

fn vtt_time(seconds: f64) -> String {
    let (hours, minutes, seconds, milliseconds) = parts(seconds);
    let hours = if hours > 0 { format!("{hours:02}:") } else { String::new() };
    format!("{hours}{minutes:02}:{seconds:02}.{milliseconds:03}")
}

fn parts(seconds: f64) -> (u64, u64, u64, u64) {
    let all = milliseconds(seconds);
    (all / 3_600_000, all / 60_000 % 60, all / 1000 % 60, all % 1000)
}
