//! Remembers names, to act only on the first occurrence of each.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Most names that are remembered, so that a client cannot fill the memory with invented ones.
const MOST_SEEN: usize = 256;

/// Longest name that is remembered, in bytes.
const LONGEST_NAME: usize = 128;

/// A bounded set of names that were seen.
#[derive(Default)]
pub(crate) struct SeenOnce(Mutex<HashSet<String>>);

impl SeenOnce {
    /// True for the first call with `name`. Always false once the set is full.
    pub fn is_first(&self, name: &str) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.len() < MOST_SEEN && name.len() <= LONGEST_NAME && seen.insert(name.to_owned())
    }
}
