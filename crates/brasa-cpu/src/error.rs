//! What can go wrong on the CPU device.

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
    /// The instruction set exists, this processor lacks it.
    #[error(
        "instruction set `{name}` is not available on this processor, which has {available}\nhint: unset BRASA_ISA"
    )]
    IsaUnavailable {
        /// The name as given.
        name: String,
        /// The names that this processor has.
        available: String,
    },
    /// A thread of the team panicked; the operation's results are undefined, the team stays usable.
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
        /// What the operating system said.
        reason: String,
    },
    /// Memory for repacked weights could not be had.
    #[error("{bytes} bytes for repacked weights could not be allocated: {reason}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// What the operating system said.
        reason: String,
    },
    /// A weight whose description contradicts itself.
    #[error("{name}: {found}, expected {expected}")]
    BadWeight {
        /// The tensor's name.
        name: String,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
}
