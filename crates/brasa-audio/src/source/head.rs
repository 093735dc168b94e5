//! Headers of uncompressed files: the bytes in front of the samples.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use crate::{AudioError, Result};

use super::pcm::Coding;

/// Most bytes before the samples that are examined.
const MOST_HEADER_BYTES: usize = 1 << 20;
/// Least length of 32 bits that is a placeholder, of writers that do not have the length yet.
const UNKNOWN_BYTES: u64 = 0x7fff_0000;

/// The kind of a file, by its first bytes.
pub(super) enum Kind {
    /// The file has uncompressed samples, which begin at [`Header::start`].
    Plain(Header),
    /// The file has another format, which symphonia reads.
    Other(Option<Mended>),
}

/// First bytes that replace a file's own, whose lengths are placeholders.
pub(super) struct Mended {
    pub(super) bytes: Vec<u8>,
    /// The length of the file by its own first bytes.
    pub(super) length: Length,
}

/// The header of uncompressed samples.
pub(super) struct Header {
    pub(super) coding: Coding,
    pub(super) channels: usize,
    pub(super) rate: u32,
    pub(super) length: Length,
    /// The length of the header: bytes before the first sample.
    pub(super) start: usize,
}

/// The number of bytes of samples, as a header states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// The header states the number of bytes.
    Known(u64),
    /// The header has a placeholder for "until the end", which writers into pipes use.
    Open,
    /// The header has the placeholder 0 though bytes follow: the writer did not return to fill in the length.
    Unfinished,
}

impl Length {
    /// The meaning of a length of 32 bits. `left_bytes` are the bytes that follow, if that is known.
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
    /// The number of bytes of the whole file; `None` for a stream.
    file_bytes: Option<u64>,
    /// The bytes that were read so far.
    pub(super) bytes: Vec<u8>,
    /// The number of bytes that were consumed; the bytes after them were only peeked at.
    pub(super) at: usize,
}

impl<'a> Head<'a> {
    pub(super) fn new(reader: &'a mut dyn Read, name: &'a str, file_bytes: Option<u64>) -> Self {
        Self { reader, name, file_bytes, bytes: Vec::new(), at: 0 }
    }

    /// Consumes the next bytes; `None` if there are fewer, or if they exceed the most bytes of a header.
    pub(super) fn take(&mut self, count: usize) -> Result<Option<&[u8]>> {
        if !self.look(count)? {
            return Ok(None);
        }
        let start = self.at;
        self.at += count;
        Ok(Some(&self.bytes[start..self.at]))
    }

    /// Reads ahead without consuming; false if there are fewer bytes, or if they exceed the most bytes of a header.
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

    /// The bytes that were read but not consumed.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// The number of bytes of the file that have not been consumed; `None` for a stream.
    pub(super) fn left_bytes(&self) -> Option<u64> {
        self.file_bytes.map(|all| all.saturating_sub(self.at as u64))
    }

    /// The length of samples that begin here, whose header has the length `length`. Samples of no length are
    /// [`Length::Unfinished`] if bytes follow that are no `chunk`.
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
