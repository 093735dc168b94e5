//! Ctrl-C stops the answer; it stops the program only if no answer is being made. A program that is told to end leaves no
//! partial files.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use brasa::Canceller;
use brasa::formats::remove_partial_files;

use crate::failure::Failure;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// True if the command looks at [`INTERRUPTED`] now and then.
static HEEDED: AtomicBool = AtomicBool::new(false);
static STREAM: Mutex<Option<Canceller>> = Mutex::new(None);
static INSTALL: Once = Once::new();

/// From now on Ctrl-C sets a flag instead of ending the process; a second one, unheeded, ends it.
pub fn install() {
    HEEDED.store(true, Ordering::Relaxed);
    clean_up_when_killed();
}

/// From now on Ctrl-C, SIGTERM and SIGHUP remove partial files before they end the process.
pub fn clean_up_when_killed() {
    INSTALL.call_once(|| {
        let handler = || {
            if INTERRUPTED.swap(true, Ordering::Relaxed) || !HEEDED.load(Ordering::Relaxed) {
                remove_partial_files();
                std::process::exit(130);
            }
            if let Some(stream) = &*STREAM.lock().unwrap_or_else(PoisonError::into_inner) {
                stream.cancel();
            }
        };
        // Without a handler, Ctrl-C keeps its ordinary meaning.
        let _ = ctrlc::set_handler(handler);
    });
}

/// Makes Ctrl-C cancel this stream until the guard is dropped.
pub fn cancels(stream: &brasa::TokenStream) -> Guard {
    *STREAM.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream.canceller());
    Guard(())
}

/// Ends the effect of [`cancels`] when dropped.
pub struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        *STREAM.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// True once after each Ctrl-C.
pub fn take() -> bool {
    INTERRUPTED.swap(false, Ordering::Relaxed)
}

/// Fails if Ctrl-C was pressed.
pub fn check() -> Result<(), Failure> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
}
