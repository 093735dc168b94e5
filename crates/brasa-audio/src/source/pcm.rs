//! Samples without a code: raw streams, and the data of WAV files.

use std::io::{ErrorKind, Read};

use crate::{AudioError, Limits, Result};

use super::{Source, check, duration, mix};

/// Bytes that are read at once, at most.
const BLOCK_BYTES: usize = 1 << 16;

/// The form of one sample, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleFormat {
    /// Unsigned 8 bits; 128 is silence.
    U8,
    /// Signed 16 bits: what `arecord -f S16_LE` and `ffmpeg -f s16le` write.
    S16,
    /// Signed 24 bits in 3 bytes.
    S24,
    /// Signed 32 bits.
    S32,
    /// Floats within ±1.
    F32,
    /// Floats of double precision within ±1.
    F64,
}

impl SampleFormat {
    /// Bytes of one sample.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::S16 => 2,
            Self::S24 => 3,
            Self::S32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Appends samples within ±1.
    fn decode(self, bytes: &[u8], to: &mut Vec<f32>) {
        match self {
            Self::U8 => to.extend(bytes.iter().map(|&byte| (f32::from(byte) - 128.0) / 128.0)),
            Self::S16 => each(bytes, to, |b| f32::from(i16::from_le_bytes(b)) / 32_768.0),
            Self::S24 => each(bytes, to, |[a, b, c]: [u8; 3]| {
                (i32::from_le_bytes([0, a, b, c]) >> 8) as f32 / 8_388_608.0
            }),
            Self::S32 => each(bytes, to, |b| i32::from_le_bytes(b) as f32 / 2_147_483_648.0),
            Self::F32 => each(bytes, to, f32::from_le_bytes),
            Self::F64 => each(bytes, to, |b| f64::from_le_bytes(b) as f32),
        }
    }
}

fn each<const N: usize>(bytes: &[u8], to: &mut Vec<f32>, sample: impl Fn([u8; N]) -> f32) {
    to.extend(bytes.as_chunks::<N>().0.iter().map(|&bytes| sample(bytes)));
}

/// Samples read from a stream as they come.
pub(crate) struct Pcm<R> {
    reader: R,
    format: SampleFormat,
    channels: usize,
    rate: u32,
    /// Bytes that the header claims and that have not been read.
    left: Option<u64>,
    claimed: Option<u64>,
    frames: u64,
    /// Bytes read; an incomplete frame stays here until its rest comes.
    bytes: Vec<u8>,
    interleaved: Vec<f32>,
    name: String,
}

impl<R: Read> Pcm<R> {
    pub(crate) fn new(
        reader: R,
        format: SampleFormat,
        channels: usize,
        rate: u32,
        data_bytes: Option<u64>,
        name: &str,
        limits: &Limits,
    ) -> Result<Self> {
        check(name, rate, channels, limits)?;
        Ok(Self {
            reader,
            format,
            channels,
            rate,
            left: data_bytes,
            claimed: data_bytes.map(|bytes| bytes / (format.bytes() * channels) as u64),
            frames: 0,
            bytes: Vec::new(),
            interleaved: Vec::new(),
            name: name.to_owned(),
        })
    }

    /// Reads once, as much as there is; false at the end.
    fn fill(&mut self) -> Result<bool> {
        let most = self.left.map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES as u64) as usize);
        let kept = self.bytes.len();
        self.bytes.resize(kept + most, 0);
        let read = loop {
            match self.reader.read(&mut self.bytes[kept..]) {
                Ok(read) => break read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(AudioError::Read {
                        name: self.name.clone(),
                        at: duration(self.frames, self.rate),
                        source,
                    });
                }
            }
        };
        self.bytes.truncate(kept + read);
        if let Some(left) = &mut self.left {
            *left -= read as u64;
        }
        Ok(read > 0)
    }
}

impl<R: Read + Send> Source for Pcm<R> {
    fn rate(&self) -> u32 {
        self.rate
    }

    fn claimed(&self) -> Option<u64> {
        self.claimed
    }

    fn next(&mut self, mono: &mut Vec<f32>) -> Result<bool> {
        let frame_bytes = self.format.bytes() * self.channels;
        loop {
            if !self.fill()? {
                return match self.claimed {
                    Some(claimed) if claimed > self.frames => Err(AudioError::CutOff {
                        name: self.name.clone(),
                        at: duration(self.frames, self.rate),
                        claimed: duration(claimed, self.rate),
                    }),
                    _ => Ok(false),
                };
            }
            let whole = self.bytes.len() / frame_bytes;
            if whole > 0 {
                self.interleaved.clear();
                self.format.decode(&self.bytes[..whole * frame_bytes], &mut self.interleaved);
                self.bytes.drain(..whole * frame_bytes);
                mix(&self.interleaved, self.channels, mono);
                self.frames += whole as u64;
                return Ok(true);
            }
        }
    }
}
