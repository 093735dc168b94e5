//! Files as [`Bytes`], by memory map.
//!
//! A mapped file must not be changed or truncated by anyone while it is mapped: what was checked at open
//! would no longer hold, and reading past a new end stops the process ([`exit_on_shrunk_files`](crate::exit_on_shrunk_files)
//! makes it say why). Replacing a file by a rename, as every writer here does, is safe, because the map keeps the old file
//! alive.
#![expect(unsafe_code, reason = "a memory map is only as immutable as its file")]

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::bytes::Owner;
use crate::{Bytes, FormatError, Result, input_file};

/// Maps a whole file, read only. The file must not change while the bytes are in use.
///
/// # Errors
///
/// [`FormatError::Io`] if there is no such regular file or the system refuses to map it.
pub fn map_file(path: &Path) -> Result<Bytes> {
    let map = || -> io::Result<Bytes> {
        let file = input_file::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Bytes::from(Vec::new()));
        }
        // SAFETY: the map is private to `Mapped` and only lent out as `&[u8]`; that the file stays as it is
        // while mapped is the documented condition of this module.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Bytes::owned_by(Arc::new(Mapped {
            #[cfg(unix)]
            _watched: crate::shrunk::Watched::new(path, &map),
            map,
        })))
    };
    map().map_err(|source| FormatError::io(path, source))
}

struct Mapped {
    /// Dropped before the map is.
    #[cfg(unix)]
    _watched: crate::shrunk::Watched,
    map: Mmap,
}

impl Owner for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.map
    }

    #[cfg(unix)]
    fn release_pages(&self, range: Range<usize>) {
        // Only pages that lie wholly inside: the neighbours may still be wanted. The map starts on a page,
        // and no page in use anywhere is larger than this.
        const PAGE: usize = 65536;
        let start = range.start.next_multiple_of(PAGE);
        let end = if range.end == self.map.len() { range.end } else { range.end / PAGE * PAGE };
        if start < end {
            // SAFETY: the map is a read-only view of a file, so dropped pages come back with the same
            // contents; slices into it stay valid. A refusal changes nothing, so the result is of no interest.
            let _ = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
        }
    }
}
