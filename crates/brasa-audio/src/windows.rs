use std::ops::Range;

use crate::energies::STEP;
use crate::{Energies, SAMPLE_RATE, WINDOW_SAMPLES};

/// The shortest piece that is worth a window of its own; shorter rests join the piece before if they fit.
const SHORTEST: usize = SAMPLE_RATE as usize;

/// Cuts a long sound into pieces of at most 30 s that can be transcribed independently of each other, all in one batch.
///
/// `speech` are the spans of [`VoiceActivity::spans`](crate::VoiceActivity::spans). Pieces hold all speech; silence between them is
/// left out. As many spans as fit go into one piece. A span that is longer than 30 s is cut where the sound is quietest, in the last
/// 5 s of the window.
///
/// Ranges are of samples, in order, none empty and none overlapping another.
pub fn batch_windows(energies: &Energies, speech: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut windows: Vec<Range<usize>> = Vec::new();
    let samples = energies.samples();
    for span in speech {
        let mut rest = span.start.min(samples)..span.end.min(samples);
        if let Some(last) = windows.last() {
            rest.start = rest.start.max(last.end);
        }
        while !rest.is_empty() {
            match windows.last_mut() {
                Some(last) if rest.end - last.start <= WINDOW_SAMPLES => {
                    last.end = rest.end;
                    break;
                }
                _ => {}
            }
            let end = if rest.len() <= WINDOW_SAMPLES {
                rest.end
            } else {
                quietest(energies, rest.start, rest.end)
            };
            windows.push(rest.start..end);
            rest.start = end;
        }
    }
    windows
}

/// Joins spans of speech, with the pauses between them, as long as they fit into one window of 30 s. The results are transcribed in
/// order. A longer span stays whole.
pub fn speech_clips(speech: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut clips: Vec<Range<usize>> = Vec::new();
    for span in speech {
        match clips.last_mut() {
            Some(last) if span.end - last.start <= WINDOW_SAMPLES || span.start <= last.end => {
                last.end = span.end;
            }
            _ => clips.push(span.clone()),
        }
    }
    clips
}

/// The next window of a sound that is transcribed in order: from `seek`, at most 30 s; None at the end.
///
/// The caller moves `seek` to the last timestamp that was closed, or to the window's end.
pub fn seek_window(samples_len: usize, seek: usize) -> Option<Range<usize>> {
    (seek < samples_len).then(|| seek..samples_len.min(seek.saturating_add(WINDOW_SAMPLES)))
}

/// A place to cut in the last 5 s of the window from `start` on: the middle of the quietest 100 ms.
fn quietest(energies: &Energies, start: usize, end: usize) -> usize {
    const STEPS: usize = 10;
    let to = start + WINDOW_SAMPLES;
    // What is left over shall not be a crumb.
    let to = to.min(end.saturating_sub(SHORTEST)).max(start + WINDOW_SAMPLES / 2);
    let from = (start + WINDOW_SAMPLES - 5 * SAMPLE_RATE as usize).min(to - STEP * STEPS);
    let (from, to) = (from / STEP, to / STEP);
    let sums = energies.sums()[from..to].windows(STEPS).map(|steps| steps.iter().sum::<f32>());
    let least = sums.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(at, _)| at);
    (from + least + STEPS / 2) * STEP
}
