//! Names that were met before.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Most names of fields that are remembered; a client cannot fill the memory with made-up ones.
const MOST_SEEN: usize = 256;

/// Longest name that is kept, in bytes.
const LONGEST_NAME: usize = 128;

/// Remembers what has been seen, within bounds.
#[derive(Default)]
pub(crate) struct SeenOnce(Mutex<HashSet<String>>);

impl SeenOnce {
    /// True for the first call with `name`.
    pub fn is_first(&self, name: &str) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.len() < MOST_SEEN && name.len() <= LONGEST_NAME && seen.insert(name.to_owned())
    }
}
