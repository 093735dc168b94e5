//! Headers of CAF files (Apple 2011, "Core Audio Format Specification").

use crate::Result;

use super::head::{Head, Header, Kind, Length};
use super::pcm::{Coding, SampleFormat};

/// Reads up to the first sample. `None` for a file that is no CAF file of plain samples.
pub(super) fn read(head: &mut Head<'_>) -> Result<Option<Kind>> {
    let Some(start) = head.take(8)? else { return Ok(None) };
    if !start.starts_with(b"caff") {
        return Ok(None);
    }
    let mut form = None;
    loop {
        let Some(chunk) = head.take(12)? else { return Ok(None) };
        let name = [chunk[0], chunk[1], chunk[2], chunk[3]];
        let chunk_bytes = i64::from_be_bytes(std::array::from_fn(|at| chunk[4 + at]));
        if &name != b"data" {
            let Ok(chunk_bytes) = usize::try_from(chunk_bytes) else { return Ok(None) };
            let Some(body) = head.take(chunk_bytes)? else { return Ok(None) };
            if &name == b"desc" {
                form = form_of(body);
            }
            continue;
        }
        let Some((coding, channels, rate)) = form else { return Ok(None) };
        // The number of edits counts too.
        if head.take(4)?.is_none() {
            return Ok(None);
        }
        let length = match u64::try_from(chunk_bytes) {
            Ok(bytes) => Length::Known(bytes.saturating_sub(4)),
            Err(_) => Length::Open,
        };
        let length = head.length(length, |_| false)?;
        return Ok(Some(Kind::Plain(Header { coding, channels, rate, length, start: head.at })));
    }
}

/// Coding, channels and rate of a `desc` chunk; `None` for compressed samples.
fn form_of(chunk: &[u8]) -> Option<(Coding, usize, u32)> {
    let word =
        |at: usize| -> Option<u32> { Some(u32::from_be_bytes(chunk.get(at..at + 4)?.try_into().ok()?)) };
    let rate = f64::from_be_bytes(chunk.get(..8)?.try_into().ok()?) as u32;
    let (flags, frame_bytes, channels, bits) = (word(12)?, word(16)?, word(24)?, word(28)?);
    let coding = match (chunk.get(8..12)?, flags & 1 == 1, bits) {
        (b"ulaw", ..) => return Some((Coding::MuLaw, channels as usize, rate)),
        (b"alaw", ..) => return Some((Coding::ALaw, channels as usize, rate)),
        (b"lpcm", false, 8) => return Some((Coding::S8, channels as usize, rate)),
        (b"lpcm", false, 16) => SampleFormat::S16,
        (b"lpcm", false, 24) => SampleFormat::S24,
        (b"lpcm", false, 32) => SampleFormat::S32,
        (b"lpcm", true, 32) => SampleFormat::F32,
        (b"lpcm", true, 64) => SampleFormat::F64,
        _ => return None,
    };
    // Samples that are wider than their bits are symphonia's.
    if u64::from(frame_bytes) != u64::from(channels) * coding.bytes() as u64 {
        return None;
    }
    let coding = if flags & 2 == 2 { Coding::Little(coding) } else { Coding::Big(coding) };
    Some((coding, channels as usize, rate))
}
