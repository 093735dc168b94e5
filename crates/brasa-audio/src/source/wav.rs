//! Headers of WAV files (Microsoft & IBM 1991, "Multimedia Programming Interface and Data Specifications 1.0"; RF64 of EBU
//! Tech 3306 for files beyond 4 GiB; RIFX, whose numbers have their first byte first).
//!
//! Files of plain samples are read here and not by symphonia, which loses the last packet of a file that is cut off or was
//! written into a pipe, where the writer cannot come back to put lengths into the header.
//!
//! The length of the outermost chunk is not read at all: recorders leave 0 there, and pipes whatever they like.

use crate::Result;

use super::head::{Head, Header, Kind, Length, Mended};
use super::pcm::{Coding, SampleFormat};

/// Names of chunks that may follow samples. Bytes that follow samples and begin with another name are no chunk.
const NAMES: [&[u8; 4]; 30] = [
    b"data", b"fmt ", b"LIST", b"list", b"INFO", b"id3 ", b"ID3 ", b"bext", b"iXML", b"fact", b"cue ",
    b"smpl", b"inst", b"plst", b"PEAK", b"JUNK", b"junk", b"Junk", b"PAD ", b"FLLR", b"afsp", b"_PMX",
    b"axml", b"chna", b"DISP", b"acid", b"cart", b"umid", b"levl", b"wavl",
];
/// The format tag of extensible headers, where the first bytes of a GUID are the actual tag.
const EXTENSIBLE: u16 = 0xfffe;

/// Reads numbers in the byte order of the file.
#[derive(Clone, Copy)]
struct Order {
    is_big: bool,
}

impl Order {
    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let bytes = [bytes[at], bytes[at + 1]];
        if self.is_big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if self.is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }
}

/// The format of samples, as `fmt ` describes it.
#[derive(Clone, Copy)]
struct Form {
    /// The codec of the samples; `None` for plain PCM.
    coding: Option<Coding>,
    channels: usize,
    rate: u32,
    /// Bytes of one frame, or of one block of compressed samples.
    block_bytes: u64,
}

/// Reads up to the first sample. `None` for a file that is no WAV file, or whose header does not end.
pub(super) fn read(head: &mut Head<'_>) -> Result<Option<Kind>> {
    let Some(start) = head.take(12)? else { return Ok(None) };
    if !matches!(&start[..4], b"RIFF" | b"RF64" | b"BW64" | b"RIFX") || &start[8..] != b"WAVE" {
        return Ok(None);
    }
    let order = Order { is_big: &start[..4] == b"RIFX" };
    let (mut form, mut long_bytes, mut is_empty) = (None, None, false);
    loop {
        let Some(chunk) = head.take(8)? else {
            let empty = form.filter(|_| is_empty);
            return Ok(empty.map(|form| found(head, &form, Length::Known(0))));
        };
        let name = [chunk[0], chunk[1], chunk[2], chunk[3]];
        let chunk_bytes = order.u32(chunk, 4);
        if &name == b"data" {
            let Some(form) = form else { return Ok(None) };
            let length = match long_bytes {
                Some(bytes) if chunk_bytes == u32::MAX || chunk_bytes == 0 => {
                    if bytes == u64::MAX {
                        Length::Open
                    } else {
                        Length::Known(bytes)
                    }
                }
                _ => Length::of_u32(chunk_bytes, head.left_bytes()),
            };
            let left_bytes = head.left_bytes().map(|left| left.saturating_sub(8));
            let is_chunk = |ahead: &[u8]| {
                NAMES.iter().any(|name| ahead.starts_with(*name))
                    && left_bytes.is_none_or(|left| u64::from(order.u32(ahead, 4)) <= left)
            };
            let length = head.length(length, is_chunk)?;
            if length == Length::Known(0) && !head.ahead().is_empty() {
                // Sound may be in another chunk of data.
                is_empty = true;
                continue;
            }
            return Ok(Some(found(head, &form, length)));
        }
        let Some(body) = head.take(chunk_bytes as usize)? else { return Ok(None) };
        match &name {
            b"fmt " if body.len() >= 14 => form = Some(form_of(body, order)),
            b"ds64" if body.len() >= 16 => {
                long_bytes = Some(u64::from(order.u32(body, 8)) | u64::from(order.u32(body, 12)) << 32);
            }
            _ => {}
        }
        if chunk_bytes % 2 == 1 {
            pass_padding(head)?;
        }
    }
}

/// Chunks begin at even bytes; some writers do not follow this rule.
fn pass_padding(head: &mut Head<'_>) -> Result<()> {
    if head.look(4)? && NAMES.iter().any(|name| head.ahead().starts_with(*name)) {
        return Ok(());
    }
    head.take(1)?;
    Ok(())
}

/// The file whose samples begin here.
fn found(head: &Head<'_>, form: &Form, length: Length) -> Kind {
    if let Some(coding) = form.coding {
        let (channels, rate) = (form.channels, form.rate);
        return Kind::Plain(Header { coding, channels, rate, length, start: head.at });
    }
    if matches!(length, Length::Known(_)) {
        return Kind::Other(None);
    }
    // symphonia knows one placeholder, and passes over the last packet of a file that it stands in.
    let whole_blocks = |left: u64| left.checked_div(form.block_bytes).map(|blocks| blocks * form.block_bytes);
    let data_bytes = head.left_bytes().and_then(whole_blocks).and_then(|bytes| u32::try_from(bytes).ok());
    let mut bytes = head.bytes[..head.at].to_vec();
    bytes[4..8].fill(0xff);
    let place = head.at - 4;
    bytes[place..].copy_from_slice(&data_bytes.unwrap_or(u32::MAX).to_le_bytes());
    Kind::Other(Some(Mended { bytes, length }))
}

/// The samples that a `fmt ` chunk of 14 bytes or more describes.
fn form_of(chunk: &[u8], order: Order) -> Form {
    const PCM: u16 = 1;
    const FLOAT: u16 = 3;
    const A_LAW: u16 = 6;
    const MU_LAW: u16 = 7;
    let tag = match order.u16(chunk, 0) {
        // The first two bytes of the subformat's GUID are a tag of the short form.
        EXTENSIBLE if chunk.len() >= 26 => order.u16(chunk, 24),
        tag => tag,
    };
    let channels = usize::from(order.u16(chunk, 2));
    let frame_bytes = usize::from(order.u16(chunk, 12));
    // The oldest form has no bits.
    let bits = if chunk.len() >= 16 { order.u16(chunk, 14) } else { 0 };
    // Samples of 12 or 20 bits lie at the top of 2 or 3 bytes, so the container's width is enough.
    let sample_bytes = match usize::from(bits.div_ceil(8)) {
        0 => frame_bytes.checked_div(channels).unwrap_or(0),
        bytes => bytes,
    };
    let format = match (tag, sample_bytes) {
        (PCM, 1) => Some(SampleFormat::U8),
        (PCM, 2) => Some(SampleFormat::S16),
        (PCM, 3) if frame_bytes == 4 * channels => Some(SampleFormat::S32),
        (PCM, 3) => Some(SampleFormat::S24),
        (PCM, 4) => Some(SampleFormat::S32),
        (FLOAT, 4) => Some(SampleFormat::F32),
        (FLOAT, 8) => Some(SampleFormat::F64),
        _ => None,
    };
    let coding = match (tag, format) {
        (A_LAW, _) => Some(Coding::ALaw),
        (MU_LAW, _) => Some(Coding::MuLaw),
        (_, Some(format)) if order.is_big => Some(Coding::Big(format)),
        (_, format) => format.map(Coding::Little),
    };
    Form { coding, channels, rate: order.u32(chunk, 4), block_bytes: frame_bytes as u64 }
}
