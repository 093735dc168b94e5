//! Headers of AU files (Sun 1991, `audio/filehdr.h`).

use crate::{AudioError, Result};

use super::head::{Head, Header, Kind, Length};
use super::pcm::{Coding, SampleFormat};

/// Reads up to the first sample. `None` for a file that is no AU file.
pub(super) fn read(head: &mut Head<'_>, name: &str) -> Result<Option<Kind>> {
    if !head.look(24)? || !head.ahead().starts_with(b".snd") {
        return Ok(None);
    }
    let numbers = head.take(24)?.unwrap_or_default();
    let [offset_bytes, data_bytes, encoding, rate, channels] = std::array::from_fn(|at| {
        let at = 4 + 4 * at;
        u32::from_be_bytes([numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]])
    });
    let coding = match encoding {
        1 => Coding::MuLaw,
        2 => Coding::S8,
        3 => Coding::Big(SampleFormat::S16),
        4 => Coding::Big(SampleFormat::S24),
        5 => Coding::Big(SampleFormat::S32),
        6 => Coding::Big(SampleFormat::F32),
        7 => Coding::Big(SampleFormat::F64),
        27 => Coding::ALaw,
        other => {
            let what = format!("encoding {other} of the AU file");
            return Err(AudioError::Unsupported { name: name.to_owned(), what });
        }
    };
    let Some(note_bytes) = (offset_bytes as usize).checked_sub(24) else { return Ok(None) };
    if head.take(note_bytes)?.is_none() {
        return Ok(None);
    }
    let length = Length::of_u32(data_bytes, head.left_bytes());
    let length = head.length(length, |_| false)?;
    Ok(Some(Kind::Plain(Header { coding, channels: channels as usize, rate, length, start: head.at })))
}
