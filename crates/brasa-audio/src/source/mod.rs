//! Sound as it lies in a file or comes from a stream: one channel, at its own sample rate.

mod decoder;
mod pcm;
mod wav;

use std::io::{Read, Seek, SeekFrom};
use std::time::Duration;

use crate::{AudioError, Limits, MIN_SAMPLE_RATE, Result};

use decoder::Decoder;
pub(crate) use pcm::Pcm;
pub use pcm::SampleFormat;
use wav::{Header, Riff};

/// Blocks of samples, channels averaged.
pub(crate) trait Source: Send {
    /// The sample rate in Hz, within the limits.
    fn rate(&self) -> u32;

    /// The number of samples that a header claims.
    fn claimed(&self) -> Option<u64>;

    /// Appends the next samples; false at the end.
    fn next(&mut self, mono: &mut Vec<f32>) -> Result<bool>;
}

/// Bytes that can be read twice.
pub(crate) trait Seekable: Read + Seek + Send {}

impl<T: Read + Seek + Send> Seekable for T {}

/// Bytes that a source is made of.
pub(crate) enum Input {
    /// A file, or memory.
    Whole { bytes: Box<dyn Seekable>, len: u64 },
    /// A pipe or a connection.
    Stream(Box<dyn Read + Send>),
}

impl Read for Input {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Whole { bytes, .. } => bytes.read(to),
            Self::Stream(bytes) => bytes.read(to),
        }
    }
}

/// Finds out the format, and gives its source.
pub(crate) fn open(mut input: Input, name: &str, limits: &Limits) -> Result<Box<dyn Source>> {
    let read_failed = |source| AudioError::Read { name: name.to_owned(), at: Duration::ZERO, source };
    let (riff, head) = wav::read_header(&mut input, name)?;
    if let Riff::Pcm(Header { format, channels, rate, data_bytes }) = riff {
        return Ok(Box::new(Pcm::new(input, format, channels, rate, data_bytes, name, limits)?));
    }
    let input = match input {
        Input::Whole { mut bytes, len } => {
            bytes.seek(SeekFrom::Start(0)).map_err(read_failed)?;
            Input::Whole { bytes, len }
        }
        Input::Stream(bytes) => Input::Stream(Box::new(std::io::Cursor::new(head).chain(bytes))),
    };
    Ok(Box::new(Decoder::new(input, name, limits)?))
}

/// Refuses a sample rate or a number of channels that the limits forbid.
fn check(name: &str, rate_hz: u32, channels: usize, limits: &Limits) -> Result<()> {
    if !(MIN_SAMPLE_RATE..=limits.sample_rate).contains(&rate_hz) {
        return Err(AudioError::SampleRate { name: name.to_owned(), rate_hz, limit_hz: limits.sample_rate });
    }
    if !(1..=limits.channels).contains(&channels) {
        return Err(AudioError::Channels { name: name.to_owned(), channels, limit: limits.channels });
    }
    Ok(())
}

/// Appends the average of the channels of each frame.
fn mix(interleaved: &[f32], channels: usize, mono: &mut Vec<f32>) {
    if channels == 1 {
        mono.extend_from_slice(interleaved);
        return;
    }
    let share = 1.0 / channels as f32;
    mono.extend(interleaved.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() * share));
}

/// The duration of so many samples.
pub(crate) fn duration(samples: u64, rate: u32) -> Duration {
    let (seconds, rest) = (samples / u64::from(rate), samples % u64::from(rate));
    Duration::new(seconds, (rest * 1_000_000_000 / u64::from(rate)) as u32)
}
