use std::ops::Range;

use super::energy::Follower;
use super::spans::Open;
use super::{VoiceActivity, VoiceDetector, VoiceNetwork, VoiceSpans};
use crate::Energies;

/// Finds speech in a sound that is still going on.
///
/// ```
/// use brasa_audio::{VoiceDetector, VoiceFollower};
///
/// let mut voice = VoiceFollower::new(VoiceDetector::named("model").unwrap());
/// voice.push(&[0.0; 16_000]);
/// assert!(voice.spans().is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct VoiceFollower {
    kind: Kind,
    samples: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    Off,
    Energy { rules: VoiceActivity, energies: Energies, follower: Follower },
    Network { rules: VoiceSpans, network: Box<VoiceNetwork>, open: Open, spans: Vec<Range<usize>> },
}

impl VoiceFollower {
    /// Before the beginning of a sound.
    pub fn new(detector: VoiceDetector) -> Self {
        let kind = match detector {
            VoiceDetector::Off => Kind::Off,
            VoiceDetector::Energy(rules) => {
                Kind::Energy { rules, energies: Energies::default(), follower: Follower::default() }
            }
            VoiceDetector::Network(rules) => Kind::Network {
                rules,
                network: Box::new(VoiceNetwork::new()),
                open: Open::default(),
                spans: Vec::new(),
            },
        };
        Self { kind, samples: 0 }
    }

    /// Takes further samples at 16 kHz.
    pub fn push(&mut self, samples: &[f32]) {
        self.samples += samples.len();
        match &mut self.kind {
            Kind::Off => {}
            Kind::Energy { rules, energies, follower } => {
                energies.push(samples);
                follower.push(rules, &energies.take_levels_db());
            }
            Kind::Network { rules, network, open, spans } => {
                let mut probabilities = Vec::new();
                network.push(samples, &mut probabilities);
                spans.extend(probabilities.iter().filter_map(|&probability| open.step(rules, probability)));
            }
        }
    }

    /// The spans of speech if the sound ended here, in samples from its beginning.
    pub fn spans(&self) -> Vec<Range<usize>> {
        match &self.kind {
            Kind::Off => (self.samples > 0).then_some(0..self.samples).into_iter().collect(),
            Kind::Energy { rules, follower, .. } => follower.spans(rules, self.samples),
            Kind::Network { rules, open, spans, .. } => {
                let all = spans.iter().cloned().chain(open.rest(rules, self.samples)).collect();
                rules.padded(all, self.samples)
            }
        }
    }

    /// Forgets spans that ended before a sample.
    pub fn forget(&mut self, before: usize) {
        match &mut self.kind {
            Kind::Off => {}
            Kind::Energy { follower, .. } => follower.forget(before),
            Kind::Network { spans, .. } => spans.retain(|span| span.end >= before),
        }
    }
}
