//! What an operation does with a cache.

use crate::CacheId;

/// The cache or memory that an operation uses, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The cache, or the cache that is a memory.
    pub cache: CacheId,
    /// How it is used.
    pub access: Access,
}

/// How an operation uses a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads positions that were written before.
    Read,
    /// It writes the positions of the step's rows.
    Write,
}
