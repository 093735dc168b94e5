//! Turns sound into the features that a speech model reads.
//!
//! [`Audio`] reads files, streams and memory and gives 16 kHz mono samples, whole or chunk by chunk ([`AudioReader`]).
//! [`LogMel`] makes Whisper's features of them. [`VoiceActivity`] finds speech by its energy, [`VoiceNetwork`] by a network that is
//! part of the library, and [`batch_windows`] cuts long sounds at its pauses.
//! A [`Recording`] has features and samples of a [`Sound`] of any length in a few megabytes.
//!
//! [`transcript`] has the forms in which what was said is written: subtitles, tables, JSON.
//!
//! This crate knows neither models of speech nor tokens nor devices.
//!
//! ```
//! use brasa_audio::{Audio, LogMel, MelFilters};
//!
//! let hum: Vec<f32> = (0..44_100).map(|n| (n as f32 * 0.01).sin()).collect();
//! let audio = Audio::from_samples(&hum, 44_100)?;
//! assert_eq!(audio.samples().len(), 16_000);
//! let features = LogMel::new(MelFilters::slaney(80)?).window(audio.samples())?;
//! assert_eq!(features.values().len(), 3000 * 80);
//! # Ok::<(), brasa_audio::AudioError>(())
//! ```
//!
//! Decoding is [symphonia](https://docs.rs/symphonia)'s, except for WAV files of plain samples; resampling is
//! [rubato](https://docs.rs/rubato)'s. Both are pure Rust.
#![forbid(unsafe_code)]

mod audio;
mod energies;
mod error;
mod mel;
mod reader;
mod recording;
mod resample;
mod sound;
mod source;
mod spool;
pub mod transcript;
mod voice;
mod windows;

pub use audio::{Audio, resample};
pub use energies::Energies;
pub use error::{AudioError, Result};
pub use mel::{FeatureWindows, Features, LogMel, MelFilters, WINDOW_FRAMES};
pub use reader::{AudioReader, Limits};
pub use recording::{Excerpts, Heard, Recording};
pub use sound::Sound;
pub use source::SampleFormat;
pub use voice::{VoiceActivity, VoiceDetector, VoiceFollower, VoiceNetwork, VoiceSpans};
pub use windows::{batch_windows, seek_window, speech_clips};

/// The sample rate of all features, in Hz.
pub const SAMPLE_RATE: u32 = 16_000;
/// Samples of one window of Whisper: 30 s.
pub const WINDOW_SAMPLES: usize = 30 * SAMPLE_RATE as usize;
/// The lowest sample rate that is accepted, in Hz.
pub const MIN_SAMPLE_RATE: u32 = 1000;
/// The largest magnitude of a sample that is accepted. Usual sounds are within about ±1.
pub const LARGEST_SAMPLE: f32 = 1e9;
