//! The use of a cache or a recurrent state by an operation.

use crate::{CacheId, StateId};

/// A cache or recurrent state that an operation uses besides its operands, and how the operation uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAccess {
    /// The cache or the recurrent state.
    pub memory: SequenceMemory,
    /// How the operation uses it.
    pub kind: AccessKind,
}

/// Contents of a pool that outlive a step: a cache or a recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceMemory {
    /// A KV cache. A [memory](crate::MemoryId) is given by the cache that holds it.
    Cache(CacheId),
    /// A recurrent state.
    State(StateId),
}

/// How an operation uses a cache or a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// The operation reads positions that were written before.
    Read,
    /// The operation writes the positions of the step's rows.
    Write,
    /// The operation reads the state before the step's rows and writes the states after them. At most one operation of a graph
    /// advances a state.
    Advance,
}

impl AccessKind {
    /// True if the operation writes to the cache or the state.
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}
