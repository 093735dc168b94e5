//! Shared, immutable bytes: a window into a memory map or into an owned buffer.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A reference-counted window into immutable bytes.
///
/// Cloning and [slicing](Self::slice) are cheap and never copy; the underlying map or buffer lives as long as its last window.
/// The mapped file must not change while it is mapped.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn Owner>,
    range: Range<usize>,
}

/// The owner of bytes, which lives as long as its last window.
pub(crate) trait Owner: Send + Sync {
    fn bytes(&self) -> &[u8];

    /// Lets the system drop its cached copy of `range`, if the bytes can be had again.
    fn release_pages(&self, _range: Range<usize>) {}
}

struct Held<T>(T);

impl<T: AsRef<[u8]> + Send + Sync> Owner for Held<T> {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl Bytes {
    /// Shares everything that `owner` holds: a `Vec<u8>` or a `&'static [u8]`.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::owned_by(Arc::new(Held(owner)))
    }

    pub(crate) fn owned_by(owner: Arc<dyn Owner>) -> Self {
        let range = 0..owner.bytes().len();
        Self { owner, range }
    }

    /// The bytes of `range`, relative to this window; `None` if it reaches outside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (start <= end && end <= self.range.end)
            .then(|| Self { owner: Arc::clone(&self.owner), range: start..end })
    }

    /// Advises the system that these bytes will not be read again soon.
    ///
    /// The resident pages of a memory map are dropped, so that a weight that has been repacked costs memory
    /// only once; reading the bytes again fetches them from the file. No effect on bytes held in memory.
    pub fn release_pages(&self) {
        self.owner.release_pages(self.range.clone());
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.owner.bytes()[self.range.clone()]
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
