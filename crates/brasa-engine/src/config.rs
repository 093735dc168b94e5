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
    /// Bytes of KV pages kept of texts that have ended, for later ones that begin alike; 0 for none. They give way to
    /// running requests.
    pub prefix_bytes: u64,
}
