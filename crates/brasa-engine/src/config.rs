//! The sizes of an engine.

use crate::EngineError;

/// Most positions of a text.
const MOST_POSITIONS: usize = 1 << 31;

/// Sizes that an engine is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Positions that one text may have.
    pub context: usize,
    /// Requests served at once; further ones wait: higher priorities first, then first come, first served, but those whose
    /// prompt is cached before others, and nobody overtaken more than eight times.
    pub max_sequences: usize,
    /// Most requests that wait, at least 1. Those count that have arrived and have not been served yet.
    pub max_waiting: usize,
    /// Most prompt tokens of a step in which other requests decode, at least 1. They wait for the step, so the engine takes
    /// fewer: as many as make the step at most three times as long as without them, by the times of past steps, but at least a
    /// sixteenth of this number.
    pub mixed_prompt_rows: usize,
    /// Token ids of the model.
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
    /// Bytes of KV pages without a text, among `cache_bytes`, whose memory is fetched while the engine has nothing to do, and behind
    /// steps once there is less of it than active texts may soon want; 0 for none, at most what `max_sequences` full contexts take.
    /// Elsewhere a step that writes a page for the first time waits until the system has found its memory and cleared it.
    pub prefault_bytes: u64,
}

impl EngineConfig {
    /// Refuses sizes with which no request could ever be served.
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
