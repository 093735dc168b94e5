//! The sizes of an engine.

/// Sizes that an engine is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Positions that one text may have.
    pub context: usize,
    /// Requests served at once; further ones wait, first come first served.
    pub max_sequences: usize,
    /// Token ids of the model.
    pub vocab_size: usize,
    /// Most bytes of KV pages on the device, of running requests, sessions and kept prefixes together. The padding of the
    /// device's layout counts.
    ///
    /// When they are used up, kept prefixes give way first, then idle sessions, then paused requests; if nothing is left to
    /// give way, the youngest request fails with [`EngineError::CacheFull`](crate::EngineError::CacheFull).
    /// [`pages_bytes`](crate::pages_bytes) says what a text costs.
    pub cache_bytes: u64,
    /// Bytes of KV pages, among `cache_bytes`, that stay when a text ends, for later texts that begin alike; 0 for none.
    pub prefix_bytes: u64,
}
