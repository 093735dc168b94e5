use std::ops::Range;

use crate::Energies;
use crate::energies::STEP;

/// Finds speech by its energy above an adaptive noise floor.
///
/// The level of each step of 10 ms is compared with the noise floor. The floor falls at once with a quieter step and rises slowly with
/// louder ones, so that it follows the pauses (a minimum follower; after Sohn, Kim & Sung 1999 the pauses are what a voice detector can
/// trust). Speech sets in `onset_db` above the floor and holds on down to `release_db` above it.
///
/// This separates sound from silence and steady noise, but not voices from music.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VoiceActivity {
    /// dB above the noise floor at which speech begins; 9 by default. A lower value finds quieter speech, and more noise.
    pub onset_db: f32,
    /// dB above the noise floor below which speech ends; 5 by default.
    pub release_db: f32,
    /// Level in dB of full scale below which nothing is speech; −60 by default.
    pub silence_db: f32,
    /// Rate at which the noise floor rises while steps are louder, in dB a second; 3 by default. A steady noise counts as speech
    /// until the floor has reached it.
    pub floor_rise_db_per_s: f32,
    /// Steps of 10 ms by which speech is extended after its last loud step; 30 by default. The extension bridges stops between
    /// syllables.
    pub hangover: usize,
    /// Steps of 10 ms that loud sound must last; 5 by default. Shorter sounds are clicks.
    pub shortest: usize,
    /// Steps of 10 ms that are added before each span; 10 by default. Quiet consonants precede loud vowels.
    pub lead: usize,
}

impl Default for VoiceActivity {
    fn default() -> Self {
        Self {
            onset_db: 9.0,
            release_db: 5.0,
            silence_db: -60.0,
            floor_rise_db_per_s: 3.0,
            hangover: 30,
            shortest: 5,
            lead: 10,
        }
    }
}

impl VoiceActivity {
    /// Ranges of samples at 16 kHz that hold speech, in order and apart from each other.
    pub fn spans(&self, energies: &Energies) -> Vec<Range<usize>> {
        let mut follower = Follower::default();
        follower.push(self, &energies.levels_db());
        follower.spans(self, energies.samples())
    }
}

/// Follows the levels of a sound, step by step.
#[derive(Clone, Debug, Default)]
pub(super) struct Follower {
    floor: Option<f32>,
    /// Number of steps that were processed.
    step: usize,
    /// Start and last loud step of the span that is open.
    open: Option<(usize, usize)>,
    /// Spans in steps.
    steps: Vec<Range<usize>>,
}

impl Follower {
    /// Takes the levels of further steps.
    pub(super) fn push(&mut self, voice: &VoiceActivity, levels: &[f32]) {
        // The first half second begins at its quietest step, not at whatever comes first.
        let mut floor = self.floor.unwrap_or_else(|| levels.iter().take(50).copied().fold(0.0, f32::min));
        let rise = voice.floor_rise_db_per_s / 100.0;
        for &level in levels {
            let step = self.step;
            self.step += 1;
            floor = level.min(floor + rise);
            let threshold = floor + if self.open.is_some() { voice.release_db } else { voice.onset_db };
            if level > threshold.max(voice.silence_db) {
                self.open = Some((self.open.map_or(step, |(start, _)| start), step));
            } else if let Some((start, last)) = self.open
                && step > last + voice.hangover
            {
                close(voice, start, last, &mut self.steps);
                self.open = None;
            }
        }
        self.floor = Some(floor);
    }

    /// The spans if the sound ends after `samples` samples.
    pub(super) fn spans(&self, voice: &VoiceActivity, samples: usize) -> Vec<Range<usize>> {
        let mut steps = self.steps.clone();
        if let Some((start, last)) = self.open {
            close(voice, start, last, &mut steps);
        }
        steps.iter().map(|span| span.start * STEP..(span.end * STEP).min(samples)).collect()
    }

    /// Forgets the spans that end before a sample.
    pub(super) fn forget(&mut self, before: usize) {
        self.steps.retain(|span| span.end * STEP >= before);
    }
}

/// Ends a span after its extension, and joins it to the previous span if they touch.
fn close(voice: &VoiceActivity, start: usize, last: usize, steps: &mut Vec<Range<usize>>) {
    if last + 1 - start < voice.shortest {
        return;
    }
    let span = start.saturating_sub(voice.lead)..last + 1 + voice.hangover;
    match steps.last_mut() {
        Some(before) if before.end >= span.start => before.end = span.end,
        _ => steps.push(span),
    }
}
