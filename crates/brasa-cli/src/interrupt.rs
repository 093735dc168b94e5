//! Ctrl-C stops the answer that is being generated; without one, it stops the program. A program that is killed by a signal
//! leaves no partial files.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use brasa::Canceller;
use brasa::formats::remove_partial_files;
use brasa_server::ServerHandle;

use crate::failure::Failure;
use crate::terminal;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// True if the command checks [`INTERRUPTED`] regularly.
static HEEDED: AtomicBool = AtomicBool::new(false);
/// True while the command cannot check for signals: the user is typing, or one long computation runs.
static ENDS_AT_ONCE: AtomicBool = AtomicBool::new(false);
static STREAM: Mutex<Option<Canceller>> = Mutex::new(None);
static INSTALL: Once = Once::new();
static SERVER: Mutex<Option<ServerHandle>> = Mutex::new(None);

/// Makes Ctrl-C set a flag instead of ending the process. A second Ctrl-C ends the process if the first was not handled.
pub fn install() {
    HEEDED.store(true, Ordering::Relaxed);
    clean_up_when_killed();
}

/// Makes Ctrl-C, SIGTERM and SIGHUP remove partial files before they end the process.
pub fn clean_up_when_killed() {
    INSTALL.call_once(|| {
        let handler = || {
            let ends = ENDS_AT_ONCE.load(Ordering::Relaxed);
            let heeded = HEEDED.load(Ordering::Relaxed) && !ends;
            if INTERRUPTED.swap(true, Ordering::Relaxed) || !heeded {
                remove_partial_files();
                if ends {
                    terminal::restore();
                }
                std::process::exit(130);
            }
            if let Some(stream) = &*STREAM.lock().unwrap_or_else(PoisonError::into_inner) {
                stream.cancel();
            }
            if let Some(server) = &*SERVER.lock().unwrap_or_else(PoisonError::into_inner) {
                server.shut_down();
            }
        };
        // Without a handler, Ctrl-C keeps its ordinary meaning.
        let _ = ctrlc::set_handler(handler);
    });
}

/// Makes signals end the process until the guard is dropped, while the program waits for the user.
pub fn at_prompt() -> EndsAtOnce {
    // A signal that came while the last answer was written has been heeded.
    take();
    ends_at_once()
}

/// Makes signals end the process until the guard is dropped, while the command cannot check for signals.
pub fn ends_at_once() -> EndsAtOnce {
    ENDS_AT_ONCE.store(true, Ordering::Relaxed);
    EndsAtOnce(())
}

/// Ends the effect of [`ends_at_once`] when dropped.
pub struct EndsAtOnce(());

impl Drop for EndsAtOnce {
    fn drop(&mut self) {
        ENDS_AT_ONCE.store(false, Ordering::Relaxed);
    }
}

/// Makes Ctrl-C cancel `stream` until the guard is dropped.
pub fn cancels(stream: &brasa::TokenStream) -> Guard {
    *STREAM.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream.canceller());
    // A signal that came before, behind loading, means this answer too.
    if INTERRUPTED.load(Ordering::Relaxed) {
        stream.canceller().cancel();
    }
    Guard(())
}

/// Makes Ctrl-C end `server` once its running requests have finished. A second Ctrl-C ends the process.
pub fn shuts_down(server: ServerHandle) {
    install();
    *SERVER.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
}

/// Ends the effect of [`cancels`] when dropped.
pub struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        *STREAM.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Returns true once after each Ctrl-C.
pub fn take() -> bool {
    INTERRUPTED.swap(false, Ordering::Relaxed)
}

/// Fails if Ctrl-C was pressed.
pub fn check() -> Result<(), Failure> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
}
