use std::ops::Range;

use crate::Energies;
use crate::energies::STEP;

/// Finds speech by its energy above an adaptive noise floor.
///
/// The level of each step of 10 ms is compared with the noise floor. The floor falls at once with a quieter step and rises slowly with
/// louder ones, so that it follows the pauses (a minimum follower; after Sohn, Kim & Sung 1999 the pauses are what a voice detector can
/// trust). Speech sets in `onset_db` above the floor and holds on down to `release_db` above it.
///
/// This tells sound from silence and steady noise, not voices from music.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VoiceActivity {
    /// dB above the floor at which speech sets in; 9 without change. Lower finds quiet speech, and more noise.
    pub onset_db: f32,
    /// dB above the floor below which speech ends; 5 without change.
    pub release_db: f32,
    /// Level in dB of full scale below which nothing is speech; −60 without change.
    pub silence_db: f32,
    /// How fast the floor rises while steps are louder, in dB a second; 3 without change. A steady noise counts as speech until the
    /// floor has reached it.
    pub floor_rise_db_per_s: f32,
    /// Steps of 10 ms that speech outlasts its last loud step; 30 without change. Bridges stops between syllables.
    pub hangover: usize,
    /// Steps of 10 ms that loud sound must last; 5 without change. Shorter ones are clicks.
    pub shortest: usize,
    /// Steps of 10 ms that are added in front of each span; 10 without change. Quiet consonants stand before loud vowels.
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
        let levels = energies.levels_db();
        // The first half second begins at its quietest step, not at whatever comes first.
        let mut floor = levels.iter().take(50).copied().fold(0.0, f32::min);
        let rise = self.floor_rise_db_per_s / 100.0;
        let mut steps: Vec<Range<usize>> = Vec::new();
        // Start and last loud step of the span that is open.
        let mut open: Option<(usize, usize)> = None;
        for (step, &level) in levels.iter().enumerate() {
            floor = level.min(floor + rise);
            let threshold = floor + if open.is_some() { self.release_db } else { self.onset_db };
            if level > threshold.max(self.silence_db) {
                open = Some((open.map_or(step, |(start, _)| start), step));
            } else if let Some((start, last)) = open
                && step > last + self.hangover
            {
                self.close(start, last, &mut steps);
                open = None;
            }
        }
        if let Some((start, last)) = open {
            self.close(start, last, &mut steps);
        }
        steps.iter().map(|span| span.start * STEP..(span.end * STEP).min(energies.samples())).collect()
    }

    /// Ends a span behind its hang-over; joins it to the one before if they touch.
    fn close(&self, start: usize, last: usize, steps: &mut Vec<Range<usize>>) {
        if last + 1 - start < self.shortest {
            return;
        }
        let span = start.saturating_sub(self.lead)..last + 1 + self.hangover;
        match steps.last_mut() {
            Some(before) if before.end >= span.start => before.end = span.end,
            _ => steps.push(span),
        }
    }
}
