//! Headers of AIFF and AIFF-C files (Apple 1989 and 1991, "Audio Interchange File Format").

use crate::Result;

use super::head::{Head, Header, Kind, Length};
use super::pcm::{Coding, SampleFormat};

/// Chunks that follow samples.
const NAMES: [&[u8; 4]; 14] = [
    b"SSND", b"COMM", b"MARK", b"INST", b"MIDI", b"AESD", b"APPL", b"COMT", b"NAME", b"AUTH", b"(c) ",
    b"ANNO", b"ID3 ", b"CHAN",
];

/// Reads up to the first sample. `None` for a file that is no AIFF file of plain samples, or whose sound comes before its form.
pub(super) fn read(head: &mut Head<'_>) -> Result<Option<Kind>> {
    let Some(start) = head.take(12)? else { return Ok(None) };
    if &start[..4] != b"FORM" || !matches!(&start[8..], b"AIFF" | b"AIFC") {
        return Ok(None);
    }
    let mut form = None;
    loop {
        let Some(chunk) = head.take(8)? else { return Ok(None) };
        let name = [chunk[0], chunk[1], chunk[2], chunk[3]];
        let chunk_bytes = u32_at(chunk, 4);
        if &name != b"SSND" {
            let Some(body) = head.take(chunk_bytes as usize)? else { return Ok(None) };
            if &name == b"COMM" {
                form = form_of(body);
            }
            if chunk_bytes % 2 == 1 {
                head.take(1)?;
            }
            continue;
        }
        let Some(Form { coding, channels, rate, frames }) = form else { return Ok(None) };
        let Some(body) = head.take(8)? else { return Ok(None) };
        let offset_bytes = u32_at(body, 0);
        if head.take(offset_bytes as usize)?.is_none() {
            return Ok(None);
        }
        // The two numbers in front of the samples count too.
        let before = 8_u32.saturating_add(offset_bytes);
        let length = match Length::of_u32(chunk_bytes, head.left_bytes()) {
            Length::Known(_) => match u64::from(chunk_bytes.saturating_sub(before)) {
                0 => Length::Known(u64::from(frames) * (coding.bytes() * channels) as u64),
                bytes => Length::Known(bytes),
            },
            other => other,
        };
        let length = head.length(length, |ahead| NAMES.iter().any(|name| ahead.starts_with(*name)))?;
        return Ok(Some(Kind::Plain(Header { coding, channels, rate, length, start: head.at })));
    }
}

#[derive(Clone, Copy)]
struct Form {
    coding: Coding,
    channels: usize,
    rate: u32,
    frames: u32,
}

/// The samples that a `COMM` chunk describes; `None` for compressed samples.
fn form_of(chunk: &[u8]) -> Option<Form> {
    if chunk.len() < 18 {
        return None;
    }
    let channels = usize::from(u16::from_be_bytes([chunk[0], chunk[1]]));
    let sample_bytes = u16::from_be_bytes([chunk[6], chunk[7]]).div_ceil(8);
    let plain = match sample_bytes {
        2 => Some(SampleFormat::S16),
        3 => Some(SampleFormat::S24),
        4 => Some(SampleFormat::S32),
        _ => None,
    };
    let coding = match (chunk.get(18..22), sample_bytes) {
        (None | Some(b"NONE" | b"twos" | b"sowt"), 1) => Some(Coding::S8),
        (None | Some(b"NONE" | b"twos"), _) => plain.map(Coding::Big),
        (Some(b"sowt"), _) => plain.map(Coding::Little),
        (Some(b"raw "), 1) => Some(Coding::Little(SampleFormat::U8)),
        (Some(b"in24"), _) => Some(Coding::Big(SampleFormat::S24)),
        (Some(b"in32"), _) => Some(Coding::Big(SampleFormat::S32)),
        (Some(b"fl32" | b"FL32"), _) => Some(Coding::Big(SampleFormat::F32)),
        (Some(b"fl64" | b"FL64"), _) => Some(Coding::Big(SampleFormat::F64)),
        (Some(b"ulaw" | b"ULAW"), _) => Some(Coding::MuLaw),
        (Some(b"alaw" | b"ALAW"), _) => Some(Coding::ALaw),
        _ => None,
    }?;
    Some(Form { coding, channels, rate: rate(&chunk[8..18]), frames: u32_at(chunk, 2) })
}

/// The sample rate from the 80 bits of IEEE 754's extended precision; 0 for a rate that no file has.
fn rate(bytes: &[u8]) -> u32 {
    let exponent = u16::from_be_bytes([bytes[0], bytes[1]]);
    let mantissa = u64::from(u32_at(bytes, 2)) << 32 | u64::from(u32_at(bytes, 6));
    // Of 1 to 2^32 − 1.
    match exponent.checked_sub(16_383) {
        Some(power @ 0..=31) => (mantissa >> (63 - power)) as u32,
        _ => 0,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
