//! Shared, immutable bytes: a window into a memory map or into an owned buffer.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A reference-counted window into immutable bytes.
///
/// Cloning and [slicing](Self::slice) are cheap and never copy; the underlying map or buffer lives as long
/// as its last window. The file behind a map must not change while it is mapped.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl Bytes {
    /// Shares everything that `owner` holds: a `Vec<u8>`, a memory map, a `&'static [u8]`.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        Self { owner: Arc::new(owner), range }
    }

    /// The bytes of `range`, relative to this window; `None` where it reaches outside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (start <= end && end <= self.range.end)
            .then(|| Self { owner: Arc::clone(&self.owner), range: start..end })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.range.len())
    }
}
