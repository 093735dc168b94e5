//! The sizes of an engine.

use crate::EngineError;

/// Most positions of a text.
const MOST_POSITIONS: usize = 1 << 31;

/// Sizes that an engine is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Most positions of one text.
    pub context: usize,
    /// Most requests served at once; further ones wait. Higher priorities go first, then earlier requests. A request with a
    /// cached prompt goes before others, but no request is overtaken more than eight times.
    pub max_sequences: usize,
    /// Most requests that wait, at least 1. A request waits from its arrival until it is first served.
    pub max_waiting: usize,
    /// Most prompt tokens of a step in which other requests decode, at least 1. The other requests wait for the step, so the engine
    /// takes as many as make the step at most three times as long as without them, by the times of past steps, but at least a
    /// sixteenth of this number.
    pub mixed_prompt_rows: usize,
    /// Number of token ids: the width of the logits.
    pub vocab_size: usize,
    /// Most bytes of KV pages on the device, of running requests, sessions and kept prefixes together. The padding of the
    /// device's layout counts.
    ///
    /// When they are used up, kept prefixes give way first, then idle sessions, then paused and waiting requests, then the
    /// youngest running request: it waits, and its keys and values are computed again. A request that alone
    /// does not fit fails with [`EngineError::CacheFull`](crate::EngineError::CacheFull).
    /// [`pages_bytes`](crate::pages_bytes) says what a text costs.
    pub cache_bytes: u64,
    /// Bytes of KV pages, among `cache_bytes`, that stay when a text ends, for later texts that begin alike; 0 for none.
    pub prefix_bytes: u64,
    /// Bytes of free KV pages, within `cache_bytes`, whose memory the engine fetches ahead: while idle, and after steps if active
    /// texts have little of it left. 0 fetches none. At most the bytes of `max_sequences` full contexts are fetched. Without
    /// this, a step that first writes a page waits until the system has found and cleared its memory.
    pub prefault_bytes: u64,
}

impl EngineConfig {
    /// Refuses sizes with which no request can be served.
    pub(crate) fn validate(&self) -> Result<(), EngineError> {
        let sizes = [
            ("max_sequences", self.max_sequences),
            ("max_waiting", self.max_waiting),
            ("mixed_prompt_rows", self.mixed_prompt_rows),
        ];
        // Positions are numbers of 32 bits, and a window or a chunk lies behind the last one.
        if self.context > MOST_POSITIONS {
            return Err(EngineError::Options(format!(
                "a context of {} positions, at most {MOST_POSITIONS} are possible",
                self.context
            )));
        }
        match sizes.iter().find(|(_, size)| *size == 0) {
            Some((name, _)) => {
                Err(EngineError::Options(format!("{name} is 0: no request could ever be served")))
            }
            None => Ok(()),
        }
    }
}
