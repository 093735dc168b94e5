//! Panics of symphonia as values.
//!
//! symphonia is memory safe, and panics all the same on some files: its arithmetic on headers overflows in builds that check it. A file
//! may hold anything, and none of it may end the process or write to its terminal.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run`; None if it panics, of which nothing is written.
pub(crate) fn without_panic<T>(run: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                previous(info);
            }
        }));
    });
    let was_quiet = QUIET.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    QUIET.set(was_quiet);
    result.ok()
}
