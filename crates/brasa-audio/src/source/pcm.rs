//! Samples without a code: raw streams, and the data of WAV files.

use std::io::{ErrorKind, Read};

use crate::{AudioError, Limits, Result};

use super::head::Length;
use super::{Source, check, duration, mix, shortfall};

/// Most bytes that are read at once.
const BLOCK_BYTES: usize = 1 << 16;

/// The form of one sample, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleFormat {
    /// Unsigned 8 bits; 128 is silence.
    U8,
    /// Signed 16-bit integers, as `arecord -f S16_LE` and `ffmpeg -f s16le` write them.
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

/// The format in which samples are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// The bytes of a number are in the order last to first (little endian).
    Little(SampleFormat),
    /// The bytes of a number are in the order first to last (big endian).
    Big(SampleFormat),
    /// Signed 8 bits.
    S8,
    /// Logarithms of 8 bits (ITU-T G.711, µ-law).
    MuLaw,
    /// Logarithms of 8 bits (ITU-T G.711, A-law).
    ALaw,
}

impl Coding {
    /// Bytes of one sample.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Little(format) | Self::Big(format) => format.bytes(),
            Self::S8 | Self::MuLaw | Self::ALaw => 1,
        }
    }

    /// Appends samples within ±1. The bytes may be reversed in place.
    fn decode(self, bytes: &mut [u8], to: &mut Vec<f32>) {
        match self {
            Self::Little(format) => format.decode(bytes, to),
            Self::Big(format) => {
                bytes.chunks_exact_mut(format.bytes()).for_each(<[u8]>::reverse);
                format.decode(bytes, to);
            }
            Self::S8 => to.extend(bytes.iter().map(|&byte| f32::from(byte.cast_signed()) / 128.0)),
            Self::MuLaw => to.extend(bytes.iter().map(|&byte| f32::from(mu_law(byte)) / 32_768.0)),
            Self::ALaw => to.extend(bytes.iter().map(|&byte| f32::from(a_law(byte)) / 32_768.0)),
        }
    }
}

fn mu_law(byte: u8) -> i16 {
    const BIAS: i16 = 0x84;
    let byte = !byte;
    let magnitude = ((i16::from(byte & 0xf) << 3) + BIAS) << (byte >> 4 & 7);
    if byte & 0x80 == 0 { magnitude - BIAS } else { BIAS - magnitude }
}

fn a_law(byte: u8) -> i16 {
    let byte = byte ^ 0x55;
    let step = i16::from(byte & 0xf) << 4;
    let magnitude = match byte >> 4 & 7 {
        0 => step + 8,
        segment => (step + 0x108) << (segment - 1),
    };
    if byte & 0x80 == 0 { -magnitude } else { magnitude }
}

fn each<const N: usize>(bytes: &[u8], to: &mut Vec<f32>, sample: impl Fn([u8; N]) -> f32) {
    to.extend(bytes.as_chunks::<N>().0.iter().map(|&bytes| sample(bytes)));
}

/// Samples that are read from a stream as they arrive.
pub(crate) struct Pcm<R> {
    reader: R,
    form: Form,
    /// Bytes that the header states and that have not been read.
    left: Option<u64>,
    claimed: Option<u64>,
    frames: u64,
    /// Bytes that were read; an incomplete frame stays here until the rest arrives.
    bytes: Vec<u8>,
    interleaved: Vec<f32>,
    name: String,
    warnings: Vec<String>,
}

/// The format of samples, and the length that a header states.
pub(super) struct Form {
    pub(super) coding: Coding,
    pub(super) channels: usize,
    pub(super) rate: u32,
    pub(super) length: Length,
    /// The number of bytes before the samples.
    pub(super) header_bytes: usize,
}

impl Form {
    fn frame_bytes(&self) -> usize {
        self.coding.bytes() * self.channels
    }
}

impl<R: Read> Pcm<R> {
    /// Samples of one channel without a header.
    pub(crate) fn raw(
        reader: R,
        format: SampleFormat,
        rate: u32,
        name: &str,
        limits: &Limits,
    ) -> Result<Self> {
        let coding = Coding::Little(format);
        let form = Form { coding, channels: 1, rate, length: Length::Open, header_bytes: 0 };
        Self::new(reader, form, name, limits, Vec::new())
    }

    pub(super) fn new(
        reader: R,
        form: Form,
        name: &str,
        limits: &Limits,
        warnings: Vec<String>,
    ) -> Result<Self> {
        check(name, form.rate, form.channels, limits)?;
        let known = match form.length {
            Length::Known(bytes) => Some(bytes),
            Length::Open | Length::Unfinished => None,
        };
        Ok(Self {
            reader,
            left: known,
            claimed: known.map(|bytes| bytes / form.frame_bytes() as u64),
            form,
            frames: 0,
            bytes: Vec::new(),
            interleaved: Vec::new(),
            name: name.to_owned(),
            warnings,
        })
    }

    /// Reads once, up to the free space of the buffer; returns false at the end of the input.
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
                        at: duration(self.frames, self.form.rate),
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
        self.form.rate
    }

    fn claimed(&self) -> Option<u64> {
        self.claimed
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn next(&mut self, mono: &mut Vec<f32>) -> Result<bool> {
        let frame_bytes = self.form.frame_bytes();
        loop {
            if !self.fill()? {
                if let Some(claimed) = self.claimed {
                    let header_frames = (self.form.header_bytes / frame_bytes) as u64;
                    let warning = shortfall(&self.name, self.frames, claimed, self.form.rate, header_frames)?;
                    self.warnings.extend(warning);
                }
                return Ok(false);
            }
            let whole = self.bytes.len() / frame_bytes;
            if whole > 0 {
                self.interleaved.clear();
                self.form.coding.decode(&mut self.bytes[..whole * frame_bytes], &mut self.interleaved);
                self.bytes.drain(..whole * frame_bytes);
                mix(&self.interleaved, self.form.channels, mono);
                self.frames += whole as u64;
                return Ok(true);
            }
        }
    }
}
