use std::io::Read;
use std::path::Path;
use std::time::Duration;

use crate::resample::Resampler;
use crate::source::duration;
use crate::{AudioError, AudioReader, LARGEST_SAMPLE, Limits, MIN_SAMPLE_RATE, Result, SAMPLE_RATE};

/// A whole sound in memory: 16 kHz, one channel, f32 within about ±1. Takes 3.8 MB a minute.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    samples: Vec<f32>,
}

impl Audio {
    /// Reads a file of any format that is known.
    ///
    /// # Errors
    ///
    /// Any [`AudioError`]: of opening the file, of its content, of a limit.
    pub fn open(path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        Self::from_reader(AudioReader::open(path.as_ref(), limits)?)
    }

    /// Reads a sound file from a stream. `name` appears in errors; its extension helps to find the format.
    ///
    /// # Errors
    ///
    /// Any [`AudioError`]: of reading, of the content, of a limit.
    pub fn read(stream: impl Read + Send + 'static, name: &str, limits: &Limits) -> Result<Self> {
        Self::from_reader(AudioReader::from_stream(stream, name, limits)?)
    }

    /// Collects all remaining samples of a reader.
    ///
    /// # Errors
    ///
    /// The reader's first error.
    pub fn from_reader(reader: AudioReader) -> Result<Self> {
        let mut samples = Vec::new();
        for chunk in reader {
            samples.extend_from_slice(&chunk?);
        }
        Ok(Self { samples })
    }

    /// Takes samples of one channel at any rate.
    ///
    /// # Errors
    ///
    /// The errors of [`resample`].
    pub fn from_samples(samples: &[f32], sample_rate: u32) -> Result<Self> {
        Ok(Self { samples: resample(samples, sample_rate)? })
    }

    /// All samples.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    /// All samples, without a copy.
    pub fn into_samples(self) -> Vec<f32> {
        self.samples
    }

    /// The length of the sound.
    pub fn duration(&self) -> Duration {
        duration(self.samples.len() as u64, SAMPLE_RATE)
    }
}

/// Samples of one channel at 16 kHz, from those at `sample_rate` Hz. Windowed sinc, delay compensated; as long as before, to the sample.
///
/// # Errors
///
/// [`AudioError::SampleRate`] for a rate outside 1 to 768 kHz, [`AudioError::NotFinite`] for a sample that is no number.
pub fn resample(samples: &[f32], sample_rate: u32) -> Result<Vec<f32>> {
    let limit_hz = Limits::default().sample_rate;
    if !(MIN_SAMPLE_RATE..=limit_hz).contains(&sample_rate) {
        return Err(AudioError::SampleRate { name: "samples".to_owned(), rate_hz: sample_rate, limit_hz });
    }
    check_finite(samples, 0)?;
    if sample_rate == SAMPLE_RATE {
        return Ok(samples.to_vec());
    }
    let mut resampler = Resampler::new(sample_rate);
    let mut resampled = Vec::new();
    for chunk in samples.chunks(1 << 16) {
        resampler.push(chunk, &mut resampled);
    }
    resampler.finish(&mut resampled);
    Ok(resampled)
}

/// Refuses the first sample that is no number or absurdly large; `first` is the index of the first one.
pub(crate) fn check_finite(samples: &[f32], first: u64) -> Result<()> {
    let is_good = |sample: &f32| sample.abs() <= LARGEST_SAMPLE;
    // All of a piece at once: a search looks at one after the other.
    let pieces = samples.chunks(1024);
    let good =
        pieces.take_while(|piece| piece.iter().fold(true, |good, sample| good & is_good(sample))).count();
    let rest = samples.get(good * 1024..).unwrap_or_default();
    match rest.iter().position(|sample| !is_good(sample)).map(|at| good * 1024 + at) {
        Some(at) => Err(AudioError::NotFinite { index: first + at as u64, value: samples[at] }),
        None => Ok(()),
    }
}
