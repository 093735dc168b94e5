//! Decoded sound of a file or stream: one channel, at its own sample rate.

mod aiff;
mod au;
mod caf;
mod decoder;
mod head;
mod opus;
mod pcm;
mod wav;

use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::time::Duration;

use crate::{AudioError, Limits, MIN_SAMPLE_RATE, Result};

use decoder::Decoder;
use head::{Head, Header, Kind, Length, Mended};
use pcm::Form;
pub(crate) use pcm::Pcm;
pub use pcm::SampleFormat;

/// The longest piece that may be missing at the end of a sound that counts as whole, if it is short beside the sound: writers count
/// whole buffers, and their own headers.
const MOST_MISSING: Duration = Duration::from_millis(500);
/// The divisor that gives the largest part of a sound that may be missing at its end: a tenth.
const MISSING_PART: u64 = 10;
/// The longest sound that bytes after the samples may amount to without a warning.
const MOST_BEHIND: Duration = Duration::from_millis(100);

/// A source of samples in blocks, with channels averaged.
pub(crate) trait Source: Send {
    /// The sample rate in Hz, which is within the limits.
    fn rate(&self) -> u32;

    /// The number of samples that a header claims.
    fn claimed(&self) -> Option<u64>;

    /// Warnings about the sound that was read so far.
    fn warnings(&self) -> &[String];

    /// Appends the next samples; false at the end.
    fn next(&mut self, mono: &mut Vec<f32>) -> Result<bool>;
}

/// A reader of bytes that can go back.
pub(crate) trait Seekable: Read + Seek + Send {}

impl<T: Read + Seek + Send> Seekable for T {}

/// The bytes from which a source is made.
pub(crate) enum Input {
    /// A file, or bytes in memory.
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

/// A file whose first bytes are replaced.
struct Overlaid {
    head: Vec<u8>,
    file: Box<dyn Seekable>,
    at: u64,
}

impl Read for Overlaid {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = match usize::try_from(self.at).ok().and_then(|at| self.head.get(at..)) {
            Some(mut rest) if !rest.is_empty() => rest.read(to)?,
            _ => {
                self.file.seek(SeekFrom::Start(self.at))?;
                self.file.read(to)?
            }
        };
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Overlaid {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Current(by) => SeekFrom::Start(self.at.saturating_add_signed(by)),
            to => to,
        };
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }
}

/// Detects the format, and makes its source.
pub(crate) fn open(mut input: Input, name: &str, limits: &Limits) -> Result<Box<dyn Source>> {
    let read_failed = |source| AudioError::Read { name: name.to_owned(), at: Duration::ZERO, source };
    let file_bytes = match &input {
        Input::Whole { len, .. } => Some(*len),
        Input::Stream(_) => None,
    };
    let mut head = Head::new(&mut input, name, file_bytes);
    let kind = kind(&mut head, name)?;
    let mut head = head.bytes;
    match kind {
        Kind::Plain(Header { coding, channels, rate, length, start }) => {
            let form = Form { coding, channels, rate, length, header_bytes: start };
            let mut warnings = Vec::from_iter(unfinished(name, length));
            let ahead = Cursor::new(head.split_off(start));
            if let (Input::Whole { bytes, len }, Length::Known(data_bytes)) = (&mut input, length) {
                let place = bytes.stream_position().map_err(read_failed)?;
                let end = start as u64 + data_bytes.min(*len);
                warnings.extend(behind(name, bytes, *len, end, &form).map_err(read_failed)?);
                bytes.seek(SeekFrom::Start(place)).map_err(read_failed)?;
            }
            Ok(Box::new(Pcm::new(ahead.chain(input), form, name, limits, warnings)?))
        }
        Kind::Other(mended) => {
            let warning = mended.as_ref().and_then(|mended| unfinished(name, mended.length));
            let mended = mended.map(|Mended { bytes, .. }| bytes);
            let input = match (input, mended) {
                (Input::Whole { mut bytes, len }, None) => {
                    bytes.seek(SeekFrom::Start(0)).map_err(read_failed)?;
                    Input::Whole { bytes, len }
                }
                (Input::Whole { bytes: file, len }, Some(head)) => {
                    Input::Whole { bytes: Box::new(Overlaid { head, file, at: 0 }), len }
                }
                (Input::Stream(bytes), mended) => {
                    if let Some(mended) = mended {
                        head.splice(..mended.len(), mended);
                    }
                    Input::Stream(Box::new(Cursor::new(head).chain(bytes)))
                }
            };
            Ok(Box::new(Decoder::new(input, name, limits, Vec::from_iter(warning))?))
        }
    }
}

/// The kind of a file by its first bytes.
fn kind(head: &mut Head<'_>, name: &str) -> Result<Kind> {
    let found = match wav::read(head)? {
        None => {
            head.at = 0;
            aiff::read(head)?
        }
        found => found,
    };
    let found = match found {
        None => {
            head.at = 0;
            caf::read(head)?
        }
        found => found,
    };
    let found = match found {
        None => {
            head.at = 0;
            au::read(head, name)?
        }
        found => found,
    };
    Ok(found.unwrap_or(Kind::Other(None)))
}

/// The warning about a header that its writer did not finish.
fn unfinished(name: &str, length: Length) -> Option<String> {
    (length == Length::Unfinished).then(|| {
        format!(
            "{name}: the header gives the length 0, as a recording has that was not ended well; read to the end of the file"
        )
    })
}

/// The warning for a file with bytes after the `end` of its sound that are neither zeros nor a named chunk.
fn behind(
    name: &str,
    file: &mut dyn Seekable,
    file_bytes: u64,
    end: u64,
    form: &Form,
) -> io::Result<Option<String>> {
    let frame_bytes = (form.coding.bytes() * form.channels).max(1) as u64;
    let frames = file_bytes.saturating_sub(end) / frame_bytes;
    if form.rate == 0 || duration(frames, form.rate) < MOST_BEHIND {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(end))?;
    let mut first = Vec::new();
    file.take(8).read_to_end(&mut first)?;
    // A chunk may begin a byte later.
    let is_name = |at: usize| first[at..at + 4].iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    if first.len() < 8
        || first.starts_with(b"TAG")
        || is_name(0)
        || is_name(1)
        || first.iter().all(|byte| *byte == 0)
    {
        return Ok(None);
    }
    Ok(Some(format!(
        "{name}: {} bytes behind the sound ({:.2} s, if they are sound) do not belong to it by the header's length; they are left out",
        file_bytes - end,
        duration(frames, form.rate).as_secs_f64()
    )))
}

/// Compares the `frames` of a sound with the number that its header claims. Returns nothing if they agree, a warning if few are
/// missing, else an error.
///
/// # Errors
///
/// [`AudioError::CutOff`] if more is missing. A header may count its own bytes, which correspond to `header_frames` frames.
fn shortfall(name: &str, frames: u64, claimed: u64, rate: u32, header_frames: u64) -> Result<Option<String>> {
    let Some(missing) = claimed.checked_sub(frames).filter(|missing| *missing > 0) else { return Ok(None) };
    let is_short = duration(missing, rate) <= MOST_MISSING && missing <= claimed / MISSING_PART;
    if frames > 0 && (is_short || missing <= header_frames) {
        return Ok(Some(format!(
            "{name}: the sound ends {:.3} ms before the end that its header claims",
            missing as f64 / f64::from(rate) * 1e3
        )));
    }
    Err(AudioError::CutOff {
        name: name.to_owned(),
        at: duration(frames, rate),
        claimed: duration(claimed, rate),
    })
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

/// The duration of a number of samples.
pub(crate) fn duration(samples: u64, rate: u32) -> Duration {
    let (seconds, rest) = (samples / u64::from(rate), samples % u64::from(rate));
    Duration::new(seconds, (rest * 1_000_000_000 / u64::from(rate)) as u32)
}
