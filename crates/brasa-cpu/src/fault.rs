//! Mistakes of a step that are found while it runs: numbers outside the table that they index.

use std::sync::{Mutex, PoisonError};

use brasa_graph::device::DeviceError;

/// The first mistake of a run, if any.
#[derive(Debug, Default)]
pub(crate) struct Fault(Mutex<Option<String>>);

impl Fault {
    /// Returns `number` as an index below `limit`. A larger number is recorded as a mistake, and the result is 0, so that the run
    /// can end.
    pub(crate) fn index(&self, number: u32, limit: usize) -> usize {
        if (number as usize) < limit {
            return number as usize;
        }
        self.report(|| format!("a computed number is {number}, expected below {limit}"));
        0
    }

    /// Records a mistake, unless there was one before.
    pub(crate) fn report(&self, what: impl FnOnce() -> String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(what);
    }

    /// Returns the recorded mistake as an error, and clears it.
    pub(crate) fn take(&self) -> Result<(), DeviceError> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => Ok(()),
            Some(what) => Err(DeviceError::BadStep { what }),
        }
    }
}
