//! Errors of choosing a backend, and of those that are not native.

use std::time::Duration;

/// The reason why a backend cannot run here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("backend {backend} is not available: {reason}")]
pub struct Unavailable {
    /// Name of the backend.
    pub backend: String,
    /// The reason why the backend cannot run here.
    pub reason: String,
}

impl Unavailable {
    /// The error that `backend` cannot run here, for a `reason`.
    pub fn new(backend: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { backend: backend.into(), reason: reason.into() }
    }
}

/// The reason why a backend could not be chosen, or could not do its work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The backend cannot run here.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// No backend can run here.
    #[error("no backend is available{}", listed(.0))]
    NoneAvailable(Vec<Unavailable>),
    /// No backend has this name.
    #[error("no backend is named `{name}`\nhint: the names are {}", known.join(", "))]
    Unknown {
        /// Name that was asked for.
        name: String,
        /// Names of all backends.
        known: Vec<String>,
    },
    /// The backend cannot honour an option, or has no such operation.
    #[error("{backend} does not support {what}\nhint: {hint}")]
    Unsupported {
        /// Name of the backend.
        backend: &'static str,
        /// The option and its value, or the operation.
        what: String,
        /// Remedy for the caller.
        hint: &'static str,
    },
    /// The backend runs one text at a time, and one still runs.
    #[error(
        "{backend} generates one text at a time, and one still runs\nhint: read its stream to the end, or drop it"
    )]
    Busy {
        /// Name of the backend.
        backend: &'static str,
    },
    /// The backend's process reported an error; the process can take the next request.
    #[error("{backend}: {message}")]
    Failed {
        /// Name of the backend.
        backend: &'static str,
        /// The message of the process.
        message: String,
    },
    /// The backend's process ended by itself. The model is lost.
    #[error("{backend}: the process ended ({status}){}", quoted(stderr))]
    Died {
        /// Name of the backend.
        backend: &'static str,
        /// Exit status of the process, or the signal that ended it.
        status: String,
        /// The last 2,048 bytes, at most, of the process's standard error.
        stderr: String,
    },
    /// The backend's process did not answer in time and was killed. The model is lost.
    #[error("{backend}: no reply to `{command}` within {limit:?}; the process was killed{}", quoted(stderr))]
    TimedOut {
        /// Name of the backend.
        backend: &'static str,
        /// The command that the process did not answer.
        command: &'static str,
        /// The time limit of the command.
        limit: Duration,
        /// The last 2,048 bytes, at most, of the process's standard error.
        stderr: String,
    },
    /// The backend's process wrote something that is no reply and was killed. The model is lost.
    #[error("{backend}: the process wrote {what}, and was killed")]
    Protocol {
        /// Name of the backend.
        backend: &'static str,
        /// Line that the process wrote.
        what: String,
    },
}

fn listed(reasons: &[Unavailable]) -> String {
    let lines: Vec<_> =
        reasons.iter().map(|Unavailable { backend, reason }| format!("\n  {backend}: {reason}")).collect();
    lines.concat()
}

fn quoted(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; its standard error ends with:\n{stderr}") }
}
