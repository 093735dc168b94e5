use std::ops::Range;

use super::network::STEP;
use crate::SAMPLE_RATE;

/// Finds spans of speech in the probabilities of [`VoiceNetwork`](crate::VoiceNetwork): the rules of Silero's own
/// `get_speech_timestamps`.
///
/// Speech sets in at `threshold` and ends where the probability is below `release` for `shortest_pause_ms`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VoiceSpans {
    /// The probability at which speech begins; 0.5 by default.
    pub threshold: f32,
    /// The probability below which speech ends; 0.35 by default.
    pub release: f32,
    /// Longest span that does not count as speech; 250 ms by default.
    pub shortest_ms: u32,
    /// Pauses that are shorter are bridged; 300 ms by default.
    pub shortest_pause_ms: u32,
    /// Time added before and after a span, since quiet consonants surround loud vowels; 200 ms by default. A pause that is too
    /// short for the time of both neighbours is halved between them.
    pub pad_ms: u32,
}

impl Default for VoiceSpans {
    fn default() -> Self {
        Self { threshold: 0.5, release: 0.35, shortest_ms: 250, shortest_pause_ms: 300, pad_ms: 200 }
    }
}

impl VoiceSpans {
    /// Ranges of samples at 16 kHz that hold speech, in order; neighbours may touch. `probabilities` belong to a sound of `samples`
    /// samples.
    pub fn spans(&self, probabilities: &[f32], samples: usize) -> Vec<Range<usize>> {
        let mut open = Open::default();
        let mut spans = Vec::new();
        for &probability in probabilities {
            spans.extend(open.step(self, probability));
        }
        spans.extend(open.rest(self, samples));
        self.padded(spans, samples)
    }

    /// Spans with their ends padded.
    pub(super) fn padded(&self, mut spans: Vec<Range<usize>>, samples: usize) -> Vec<Range<usize>> {
        let pad = in_samples(self.pad_ms);
        if let Some(first) = spans.first_mut() {
            first.start = first.start.saturating_sub(pad);
        }
        for at in 0..spans.len() {
            let Some(next) = spans.get(at + 1).cloned() else {
                spans[at].end = samples.min(spans[at].end + pad);
                break;
            };
            let pause = next.start - spans[at].end;
            let pad = if pause < 2 * pad { pause / 2 } else { pad };
            spans[at].end = samples.min(spans[at].end + pad);
            spans[at + 1].start = next.start - pad;
        }
        spans
    }
}

/// Speech that may be going on.
#[derive(Clone, Debug, Default)]
pub(super) struct Open {
    /// Number of samples that were processed.
    at: usize,
    start: Option<usize>,
    /// The place at which a pause began that is not long enough yet.
    pause: Option<usize>,
}

impl Open {
    /// Takes the probability of the next step; returns a span that it ends.
    pub(super) fn step(&mut self, rules: &VoiceSpans, probability: f32) -> Option<Range<usize>> {
        let now = self.at;
        self.at += STEP;
        if probability >= rules.threshold {
            self.pause = None;
            self.start.get_or_insert(now);
            return None;
        }
        let start = self.start.filter(|_| probability < rules.release)?;
        let end = *self.pause.get_or_insert(now);
        if now - end < in_samples(rules.shortest_pause_ms) {
            return None;
        }
        (self.start, self.pause) = (None, None);
        (end - start > in_samples(rules.shortest_ms)).then_some(start..end)
    }

    /// The span that is open at the end of a sound.
    pub(super) fn rest(&self, rules: &VoiceSpans, samples: usize) -> Option<Range<usize>> {
        let start = self.start?;
        (samples.saturating_sub(start) > in_samples(rules.shortest_ms)).then_some(start..samples)
    }
}

pub(super) fn in_samples(ms: u32) -> usize {
    ms as usize * SAMPLE_RATE as usize / 1000
}
