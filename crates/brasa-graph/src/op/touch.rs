//! The use of a cache or a recurrent state by an operation.

use crate::{CacheId, StateId};

/// The memory that an operation uses besides its operands, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The memory.
    pub kept: Kept,
    /// How the operation uses it.
    pub access: Access,
}

/// Memory that outlives a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A cache; for a memory, the cache that holds it.
    Cache(CacheId),
    /// A recurrent state.
    State(StateId),
}

/// How an operation uses a cache or a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The operation reads positions that were written before.
    Read,
    /// The operation writes the positions of the step's rows.
    Write,
    /// The operation reads the state before the step's rows and writes the states after them. At most one operation of a graph
    /// advances a state.
    Advance,
}

impl Access {
    /// True if later steps find what the operation writes.
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}
