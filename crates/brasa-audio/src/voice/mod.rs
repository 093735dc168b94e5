//! Detects speech in a sound, by energy or with a small network.

mod energy;
mod follower;
mod network;
mod spans;
mod spectrum;
mod weights;

pub use energy::VoiceActivity;
pub use follower::VoiceFollower;
pub use network::VoiceNetwork;
pub use spans::VoiceSpans;

/// Detector of speech and pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum VoiceDetector {
    /// By energy above a noise floor: cheap, but anything loud counts as speech.
    Energy(VoiceActivity),
    /// By Silero's network, which tells voices from other sounds. Takes 0.15 % of the sound's duration.
    Network(VoiceSpans),
    /// Not at all: everything is speech.
    #[default]
    Off,
}

impl VoiceDetector {
    /// The detector of this name, `model`, `energy` or `off`, with its usual thresholds.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "model" => Some(Self::Network(VoiceSpans::default())),
            "energy" => Some(Self::Energy(VoiceActivity::default())),
            "off" => Some(Self::Off),
            _ => None,
        }
    }
}
