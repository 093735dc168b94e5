//! Work of a thread: its processor time, which stands still while other programs have the processor.

use std::time::Duration;

/// The processor time that this thread has taken.
#[cfg(unix)]
pub(crate) fn of_thread() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(Duration::ZERO, Duration::from)
}

/// The time since this function was called first: other systems do not tell a thread's own without `unsafe`.
#[cfg(not(unix))]
pub(crate) fn of_thread() -> Duration {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    FIRST.get_or_init(std::time::Instant::now).elapsed()
}
