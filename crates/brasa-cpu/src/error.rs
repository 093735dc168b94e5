//! Errors of the CPU device.

/// The device's name, as errors and reports give it.
pub(crate) const DEVICE: &str = "cpu";

/// An error of the CPU device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `BRASA_ISA` (or a caller) names an instruction set that Brasa has no kernels for.
    #[error("unknown instruction set `{name}`, expected one of {known}")]
    UnknownIsa {
        /// The name as given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// This processor lacks the instruction set.
    #[error(
        "instruction set `{name}` is not available on this processor, which has {available}\nhint: unset BRASA_ISA"
    )]
    IsaUnavailable {
        /// The name as given.
        name: String,
        /// The names that this processor has.
        available: String,
    },
    /// A thread of the team panicked. The results of the operation are undefined; the team stays usable.
    #[error("thread {thread} of the CPU team panicked: {message}")]
    WorkerPanicked {
        /// Index of the thread; 0 is the caller.
        thread: usize,
        /// The panic's message.
        message: String,
    },
    /// `Team::run` was called from inside `Team::run`.
    #[error("a CPU team was asked to run from inside one of its own threads")]
    NestedTeam,
    /// The operating system refused to start a thread.
    #[error("thread {thread} of the CPU team could not be started: {reason}")]
    ThreadStart {
        /// Index of the thread.
        thread: usize,
        /// The message of the operating system.
        reason: String,
    },
    /// More threads than a team may have.
    #[error("{threads} threads, at most {most} are possible")]
    TooManyThreads {
        /// Threads that were asked for.
        threads: usize,
        /// The most that are possible.
        most: usize,
    },
    /// Memory for repacked weights could not be allocated.
    #[error("{bytes} bytes for repacked weights could not be allocated: {reason}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// The message of the operating system.
        reason: String,
    },
    /// The description of a weight contradicts itself.
    #[error("{name}: {found}, expected {expected}")]
    BadWeight {
        /// The tensor's name.
        name: String,
        /// The contradiction.
        found: String,
        /// The expectation.
        expected: String,
    },
}
