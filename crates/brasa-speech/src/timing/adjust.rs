//! Times of words that cannot be right are mended, and segments follow their words.

use brasa_audio::transcript::{Segment, Word};

use super::{TimedWord, merge_punctuation};

/// Marks that end sentences.
const SENTENCE_ENDS: &str = ".。!！?？";
/// The longest duration of a usual word, in seconds.
const LONGEST_USUAL_S: f64 = 0.7;

/// Adds words with times to the segments of one window. `offset_s` is the start of the window, `spoken_until_s` the end of the last
/// segment before it; returns the end of the last segment. `eot`: all tokens below are text.
pub fn time_segments(
    segments: &mut [Segment],
    mut words: Vec<TimedWord>,
    offset_s: f64,
    mut spoken_until_s: f64,
    eot: u32,
) -> f64 {
    let mut durations: Vec<f64> =
        words.iter().map(|word| word.end_s - word.start_s).filter(|duration| *duration != 0.0).collect();
    durations.sort_by(f64::total_cmp);
    let median_s = median(&durations).min(LONGEST_USUAL_S);
    let longest_s = 2.0 * median_s;
    // Silence at the ends of sentences is no part of their words.
    for at in 1..words.len() {
        if words[at].end_s - words[at].start_s > longest_s {
            if SENTENCE_ENDS.contains(words[at].word.as_str()) {
                words[at].end_s = words[at].start_s + longest_s;
            } else if SENTENCE_ENDS.contains(words[at - 1].word.as_str()) {
                words[at].start_s = words[at].end_s - longest_s;
            }
        }
    }
    merge_punctuation(&mut words);
    let mut words = words.into_iter();
    for segment in segments {
        let expected = segment.tokens.iter().filter(|&&token| token < eot).count();
        let mut seen = 0;
        let mut timed = Vec::new();
        while seen < expected {
            let Some(word) = words.next() else { break };
            seen += word.tokens.len();
            if !word.word.is_empty() {
                let time = |s: f64| hundredths(offset_s + s);
                timed.push(Word {
                    text: word.word,
                    start_s: time(word.start_s),
                    end_s: time(word.end_s),
                    probability: word.probability,
                });
            }
        }
        if !timed.is_empty() {
            mend(segment, &mut timed, median_s, longest_s, spoken_until_s);
            spoken_until_s = segment.end_s;
        }
        segment.words = Some(timed);
    }
    spoken_until_s
}

/// Shortens first and last words that are too long; the segment begins and ends with its words.
fn mend(segment: &mut Segment, words: &mut [Word], median_s: f64, longest_s: f64, spoken_until_s: f64) {
    let duration = |word: &Word| word.end_s - word.start_s;
    // The first words behind a pause reach into it.
    let far = words[0].end_s - spoken_until_s > 4.0 * median_s;
    let two_long = words.get(1).is_some_and(|second| second.end_s - words[0].start_s > 2.0 * longest_s);
    if far && (duration(&words[0]) > longest_s || two_long) {
        if let Some(second) = words.get(1).filter(|second| duration(second) > longest_s) {
            let boundary = (second.end_s / 2.0).max(second.end_s - longest_s);
            words[0].end_s = boundary;
            words[1].start_s = boundary;
        }
        words[0].start_s = (words[0].end_s - longest_s).max(0.0);
    }
    let first = &mut words[0];
    if segment.start_s < first.end_s && segment.start_s - 0.5 > first.start_s {
        first.start_s = (first.end_s - median_s).min(segment.start_s).max(0.0);
    } else {
        segment.start_s = first.start_s;
    }
    let Some(last) = words.last_mut() else { return };
    if segment.end_s > last.start_s && segment.end_s + 0.5 < last.end_s {
        last.end_s = (last.start_s + median_s).max(segment.end_s);
    } else {
        segment.end_s = last.end_s;
    }
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Seconds to two places, as Python rounds them.
fn hundredths(s: f64) -> f64 {
    (s * 100.0).round_ties_even() / 100.0
}
