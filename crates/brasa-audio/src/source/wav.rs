//! Headers of WAV files (Microsoft & IBM 1991, "Multimedia Programming Interface and Data Specifications 1.0"; RF64 of EBU
//! Tech 3306 for files beyond 4 GiB).
//!
//! Files of plain samples are read here and not by symphonia, which loses the last packet of a file that is cut off or was
//! written into a pipe, where the writer cannot come back to put lengths into the header.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use crate::{AudioError, Result};

use super::SampleFormat;

/// Bytes in front of the samples that are looked at, at most.
const MOST_HEADER_BYTES: usize = 1 << 20;
/// Lengths from here on are those of writers that do not know the length.
const UNKNOWN_BYTES: u32 = 0x7fff_0000;

/// The kind of a file by its first bytes.
pub(super) enum Riff {
    /// A WAV file of plain samples, which begin at the next byte.
    Pcm(Header),
    /// Anything else.
    Other,
}

pub(super) struct Header {
    pub(super) format: SampleFormat,
    pub(super) channels: usize,
    pub(super) rate: u32,
    /// The bytes of samples, if the header knows them.
    pub(super) data_bytes: Option<u64>,
}

/// Reads as far as the first sample of a WAV file; also returns the bytes that were read.
pub(super) fn read_header(reader: &mut impl Read, name: &str) -> Result<(Riff, Vec<u8>)> {
    let mut head = Head { reader, name, bytes: Vec::new() };
    let riff = head.riff()?.unwrap_or(Riff::Other);
    Ok((riff, head.bytes))
}

struct Head<'a, R> {
    reader: &'a mut R,
    name: &'a str,
    bytes: Vec<u8>,
}

impl<R: Read> Head<'_, R> {
    /// None at the end of the file, or where the header becomes too long.
    fn riff(&mut self) -> Result<Option<Riff>> {
        let Some(start) = self.take(12)? else { return Ok(None) };
        if !matches!(&start[..4], b"RIFF" | b"RF64" | b"BW64") || &start[8..] != b"WAVE" {
            return Ok(Some(Riff::Other));
        }
        let mut samples = None;
        let mut long_data_bytes = None;
        loop {
            let Some(chunk) = self.take(8)? else { return Ok(None) };
            let chunk_bytes = u32_at(&chunk, 4);
            match (&chunk[..4], samples) {
                (b"data", Some((format, channels, rate))) => {
                    let data_bytes = match chunk_bytes {
                        u32::MAX if long_data_bytes.is_some() => long_data_bytes,
                        UNKNOWN_BYTES.. => None,
                        known => Some(u64::from(known)),
                    };
                    return Ok(Some(Riff::Pcm(Header { format, channels, rate, data_bytes })));
                }
                (b"data", None) => return Ok(Some(Riff::Other)),
                _ => {}
            }
            // Chunks begin at even bytes.
            let Some(body) = self.take(chunk_bytes as usize + chunk_bytes as usize % 2)? else {
                return Ok(None);
            };
            match &chunk[..4] {
                b"fmt " if body.len() >= 16 => match plain_samples(&body) {
                    Some(found) => samples = Some(found),
                    None => return Ok(Some(Riff::Other)),
                },
                b"ds64" if body.len() >= 16 => {
                    long_data_bytes = Some(u64::from(u32_at(&body, 8)) | u64::from(u32_at(&body, 12)) << 32);
                }
                _ => {}
            }
        }
    }

    /// The next bytes; None if there are fewer, or if they would be too many.
    fn take(&mut self, count: usize) -> Result<Option<Vec<u8>>> {
        let start = self.bytes.len();
        if start + count > MOST_HEADER_BYTES {
            return Ok(None);
        }
        let read = self.reader.by_ref().take(count as u64).read_to_end(&mut self.bytes);
        match read {
            Ok(read) => Ok((read == count).then(|| self.bytes[start..].to_vec())),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(source) => Err(AudioError::Read { name: self.name.to_owned(), at: Duration::ZERO, source }),
        }
    }
}

/// Format, channels and rate of a `fmt ` chunk; None for a code.
fn plain_samples(chunk: &[u8]) -> Option<(SampleFormat, usize, u32)> {
    const PCM: u16 = 1;
    const FLOAT: u16 = 3;
    const EXTENSIBLE: u16 = 0xfffe;
    let tag = match u16_at(chunk, 0) {
        // The first two bytes of the subformat's GUID are a tag of the short form.
        EXTENSIBLE if chunk.len() >= 26 => u16_at(chunk, 24),
        tag => tag,
    };
    let channels = usize::from(u16_at(chunk, 2));
    let rate = u32_at(chunk, 4);
    let frame_bytes = usize::from(u16_at(chunk, 12));
    // Samples of 12 or 20 bits lie at the top of 2 or 3 bytes, so the container's width is enough.
    let format = match (tag, u16_at(chunk, 14).div_ceil(8)) {
        (PCM, 1) => SampleFormat::U8,
        (PCM, 2) => SampleFormat::S16,
        (PCM, 3) if frame_bytes == 4 * channels => SampleFormat::S32,
        (PCM, 3) => SampleFormat::S24,
        (PCM, 4) => SampleFormat::S32,
        (FLOAT, 4) => SampleFormat::F32,
        (FLOAT, 8) => SampleFormat::F64,
        _ => return None,
    };
    Some((format, channels, rate))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
