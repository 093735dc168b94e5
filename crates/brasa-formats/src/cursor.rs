//! A reader of untrusted bytes: it never reads past the end, and bounds every count before it is used.

use std::path::Path;

use crate::Bytes;
use crate::error::Fault;

/// The largest count of items that is believed.
const MOST_ITEMS: u64 = 1 << 30;

/// A position in a file. Reading past the end is an error that names what was being read.
pub(crate) struct Cursor<'a> {
    pub path: &'a Path,
    pub bytes: &'a Bytes,
    pub at: usize,
}

pub(crate) type Read<T> = std::result::Result<T, Fault>;

impl Cursor<'_> {
    pub fn fault(&self, problem: impl Into<String>) -> Fault {
        Fault::new(self.path, problem).at(self.at)
    }

    pub fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub fn take(&mut self, len: u64, what: &str) -> Read<&[u8]> {
        if len > self.remaining() {
            let problem =
                format!("the file ends inside {what}: {} bytes left, {len} needed", self.remaining());
            return Err(self.fault(problem).hint("the file is incomplete; download it again"));
        }
        let start = self.at;
        self.at += len as usize;
        Ok(&self.bytes[start..self.at])
    }

    pub fn array<const N: usize>(&mut self, what: &str) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub fn u32(&mut self, what: &str) -> Read<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &str) -> Read<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of items that take at least `item_bytes` each.
    pub fn count(&mut self, what: &str, item_bytes: u64) -> Read<usize> {
        let count_at = self.at;
        let count = self.u64(what)?;
        self.check_count(what, count, item_bytes, count_at)?;
        Ok(count as usize)
    }

    /// Refuses a count, read at `count_at`, that the rest of the file cannot hold.
    pub fn check_count(&self, what: &str, count: u64, item_bytes: u64, count_at: usize) -> Read<()> {
        let most = (self.remaining() / item_bytes).min(MOST_ITEMS);
        if count <= most {
            return Ok(());
        }
        let problem = format!("{count} {what}, but the {} bytes left hold at most {most}", self.remaining());
        Err(Fault::new(self.path, problem)
            .at(count_at)
            .hint("the file is damaged or incomplete; download it again"))
    }

    pub fn string_bytes(&mut self, what: &str, longest: u64) -> Read<&[u8]> {
        let start = self.at;
        let len = self.u64(what)?;
        if len > longest {
            let problem = format!("{what} of {len} bytes, expected at most {longest}");
            return Err(Fault::new(self.path, problem).at(start));
        }
        self.take(len, what)
    }

    pub fn text(&mut self, what: &str, longest: u64) -> Read<String> {
        let (start, path) = (self.at, self.path);
        let bytes = self.string_bytes(what, longest)?;
        str::from_utf8(bytes).map(str::to_owned).map_err(|error| {
            let shown = bytes[..bytes.len().min(32)].escape_ascii();
            let problem = format!("{what} is not UTF-8 from its byte {}: \"{shown}\"", error.valid_up_to());
            Fault::new(path, problem).at(start)
        })
    }
}
