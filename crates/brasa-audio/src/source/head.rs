//! Headers of uncompressed files: the bytes in front of the samples.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use crate::{AudioError, Result};

use super::pcm::Coding;

/// Bytes in front of the samples that are looked at, at most.
const MOST_HEADER_BYTES: usize = 1 << 20;
/// Lengths of 32 bits from here on are placeholders of writers that do not know the length.
const UNKNOWN_BYTES: u64 = 0x7fff_0000;

/// A file by its first bytes.
pub(super) enum Kind {
    /// Samples without a code, which begin at [`Header::start`].
    Plain(Header),
    /// Another format, which symphonia reads.
    Other(Option<Mended>),
}

/// First bytes that stand for a file's own, whose lengths are placeholders.
pub(super) struct Mended {
    pub(super) bytes: Vec<u8>,
    /// The length that the file's own bytes give.
    pub(super) length: Length,
}

/// The header of samples without a code.
pub(super) struct Header {
    pub(super) coding: Coding,
    pub(super) channels: usize,
    pub(super) rate: u32,
    pub(super) length: Length,
    /// The bytes in front of the first sample.
    pub(super) start: usize,
}

/// The bytes of samples as a header gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// The number of bytes.
    Known(u64),
    /// A placeholder for "until the end", as writers into pipes use it.
    Open,
    /// A placeholder of a writer that meant to come back and did not: 0, though bytes follow.
    Unfinished,
}

impl Length {
    /// The meaning of a length of 32 bits. `left_bytes` are the bytes that follow, where that is known.
    pub(super) fn of_u32(bytes: u32, left_bytes: Option<u64>) -> Self {
        match u64::from(bytes) {
            // A file of more than 2 GiB may well have such a length.
            bytes if bytes >= UNKNOWN_BYTES && left_bytes.is_none_or(|left| bytes > left) => Self::Open,
            bytes => Self::Known(bytes),
        }
    }
}

/// The beginning of a file. Keeps all bytes that were read.
pub(super) struct Head<'a> {
    reader: &'a mut dyn Read,
    name: &'a str,
    /// The bytes of the whole file, if it is no stream.
    file_bytes: Option<u64>,
    /// The bytes that were read.
    pub(super) bytes: Vec<u8>,
    /// The bytes that were taken; bytes behind them were only looked at.
    pub(super) at: usize,
}

impl<'a> Head<'a> {
    pub(super) fn new(reader: &'a mut dyn Read, name: &'a str, file_bytes: Option<u64>) -> Self {
        Self { reader, name, file_bytes, bytes: Vec::new(), at: 0 }
    }

    /// The next bytes; None if there are fewer, or if they would be too many.
    pub(super) fn take(&mut self, count: usize) -> Result<Option<&[u8]>> {
        if !self.look(count)? {
            return Ok(None);
        }
        let start = self.at;
        self.at += count;
        Ok(Some(&self.bytes[start..self.at]))
    }

    /// Reads ahead; false if there are fewer bytes, or if they would be too many.
    pub(super) fn look(&mut self, count: usize) -> Result<bool> {
        let Some(end) = self.at.checked_add(count).filter(|end| *end <= MOST_HEADER_BYTES) else {
            return Ok(false);
        };
        let missing = end.saturating_sub(self.bytes.len());
        match self.reader.take(missing as u64).read_to_end(&mut self.bytes) {
            Ok(_) => Ok(self.bytes.len() >= end),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(source) => Err(AudioError::Read { name: self.name.to_owned(), at: Duration::ZERO, source }),
        }
    }

    /// The bytes that were looked at and not taken.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// The bytes of the file that have not been taken, if it is no stream.
    pub(super) fn left_bytes(&self) -> Option<u64> {
        self.file_bytes.map(|all| all.saturating_sub(self.at as u64))
    }

    /// The length of samples that begin here, where the header says `length`. Samples of no length are [`Length::Unfinished`] if bytes
    /// follow that are no `chunk`.
    pub(super) fn length(&mut self, length: Length, chunk: impl FnOnce(&[u8]) -> bool) -> Result<Length> {
        if length != Length::Known(0) {
            return Ok(length);
        }
        let is_whole = self.look(8)?;
        let ahead = self.ahead();
        let nothing = ahead.is_empty() || (is_whole && chunk(&ahead[..8]));
        Ok(if nothing { length } else { Length::Unfinished })
    }
}
