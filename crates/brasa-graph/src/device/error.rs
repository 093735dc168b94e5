//! Errors of devices.

use crate::Weight;

/// How much a failed device has [lost](DeviceError::Lost), and so what has to be made again.
///
/// Variants are in ascending order: each one includes the losses before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LostPart {
    /// The call's own work: the program, if a step failed, else the upload or the copy of a page. The backend's
    /// weights, pools and other programs stay usable, except the pages that the call was writing.
    /// [Compile](super::Backend::compile) another program, or upload or copy again.
    Program,
    /// Everything that the backend made: weights, pools with their pages, and programs. Make another backend of the
    /// same device; then upload, reserve and compile again.
    Context,
    /// The device itself, for the rest of this process: no other backend of it can be made. A new process may be able
    /// to use it.
    Device,
}

/// Errors of a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device cannot be used here.
    #[error("device {device} is unavailable: {reason}")]
    Unavailable {
        /// Name of the device.
        device: String,
        /// The reason why it cannot be used.
        reason: String,
    },
    /// The device has no such operation, type or geometry.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// Name of the device.
        device: String,
        /// The operation, type or geometry that is not supported.
        what: String,
    },
    /// The device has too little memory.
    #[error("out of memory: {bytes} bytes for {what}")]
    OutOfMemory {
        /// Bytes that were requested.
        bytes: u64,
        /// Purpose of the bytes.
        what: String,
    },
    /// A step is larger than the program's limits.
    #[error("step has {found} {what}, at most {limit} fit")]
    StepTooLarge {
        /// Name of the quantity that is too large: rows, logit rows or sequences.
        what: &'static str,
        /// Number in the step.
        found: usize,
        /// Largest number that the program runs.
        limit: usize,
    },
    /// A step contradicts the program or the pool: a token outside the vocabulary, a missing page.
    #[error("step cannot run: {what}")]
    BadStep {
        /// The reason, as a sentence for people.
        what: String,
    },
    /// The pool has no cache group of this number.
    #[error("there is no cache group {group}: the KV pool has {groups}")]
    UnknownGroup {
        /// Number of the group.
        group: u32,
        /// Number of groups that the pool has.
        groups: usize,
    },
    /// The group has no such page.
    #[error("there is no KV page {page} in cache group {group}, which has {pages}")]
    UnknownPage {
        /// Number of the page's group.
        group: u32,
        /// Number of the page, counted from 0.
        page: usize,
        /// Number of pages that the group has.
        pages: usize,
    },
    /// The number of bytes for a page is not the size of a page.
    #[error("{found} bytes for a KV page of cache group {group}, expected {expected}")]
    PageBytes {
        /// Number of the group.
        group: u32,
        /// Number of bytes that were given.
        found: usize,
        /// Bytes of a page in the canonical layout.
        expected: usize,
    },
    /// The pool has no such state page.
    #[error("there is no state page {page}: the pool has {pages}")]
    UnknownStatePage {
        /// Number of the page, counted from 0.
        page: usize,
        /// Number of state pages that the pool has.
        pages: usize,
    },
    /// The number of bytes for a state page is not the size of a state page.
    #[error("{found} bytes for a state page, expected {expected}")]
    StatePageBytes {
        /// Number of bytes that were given.
        found: usize,
        /// Bytes of a state page.
        expected: usize,
    },
    /// The caller cancelled the operation.
    #[error("cancelled")]
    Cancelled,
    /// The device failed and does not recover. Every later call that needs a lost part fails with the same error.
    #[error("device {device} failed: {reason}")]
    Lost {
        /// Name of the device.
        device: String,
        /// How much is lost, and so what has to be made again.
        part: LostPart,
        /// A description by the device or its driver.
        reason: String,
    },
}

impl DeviceError {
    /// The error for a weight that was not added to the set.
    pub fn not_added(device: &str, weight: &Weight) -> Self {
        Self::Unsupported {
            device: device.into(),
            what: format!("{}, a weight that was not added to this set", weight.name),
        }
    }
}
