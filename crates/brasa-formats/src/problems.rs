//! Collects all problems of a file instead of stopping at the first one.

use crate::{FormatError, Result};

/// Faults in the order in which they were found. Only the first few are kept.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    kept: Vec<FormatError>,
    total: usize,
}

impl Problems {
    /// Most mistakes that are kept. A file with a thousand tensors of one unsupported type is explained by the first few.
    const MOST: usize = 20;

    pub fn push(&mut self, error: FormatError) {
        self.total += 1;
        if self.kept.len() < Self::MOST {
            self.kept.push(error);
        }
    }

    /// Puts a problem first, if it explains the others.
    pub fn push_first(&mut self, error: FormatError) {
        self.total += 1;
        self.kept.truncate(Self::MOST - 1);
        self.kept.insert(0, error);
    }

    /// The value, or `None` after noting the error.
    pub fn take<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// The number of mistakes, whether kept or not.
    pub fn total(&self) -> usize {
        self.total
    }

    pub fn kept(&self) -> &[FormatError] {
        &self.kept
    }

    pub fn into_first(self) -> Option<FormatError> {
        self.kept.into_iter().next()
    }
}
