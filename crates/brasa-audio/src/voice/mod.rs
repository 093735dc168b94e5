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
    /// Speech is detected by energy above a noise floor: cheap, but any loud sound counts as speech.
    Energy(VoiceActivity),
    /// Speech is detected by Silero's network, which separates voices from other sounds. Takes 0.15 % of the sound's duration.
    Network(VoiceSpans),
    /// Speech is not detected: the whole sound counts as speech.
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
