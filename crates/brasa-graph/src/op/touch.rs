//! The use of a cache by an operation.

use crate::CacheId;

/// The cache or memory that an operation uses, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The cache; for a memory, the cache that holds it.
    pub cache: CacheId,
    /// Whether the cache is read or written.
    pub access: Access,
}

/// How an operation uses a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The operation reads positions that were written before.
    Read,
    /// The operation writes the positions of the step's rows.
    Write,
}
