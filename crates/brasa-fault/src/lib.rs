//! Turns panics of other crates, such as tokenizers and symphonia, into errors.
//!
//! Input that is known to make them panic is refused before they see it. This is for all other input: a file may hold
//! anything, and none of it may end the process or write to its terminal.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run`; a panic in it writes nothing.
///
/// # Errors
///
/// The message of the panic.
pub fn without_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
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
    result.map_err(|panic| format!("internal failure: {}", message(&*panic)))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::without_panic;

    #[test]
    fn panics_become_messages() {
        assert_eq!(without_panic(|| 7), Ok(7));
        let half = |number: u32| if number < 5 { number / 2 } else { panic!("{number} is large") };
        assert_eq!(without_panic(|| half(4)), Ok(2));
        assert_eq!(without_panic(|| half(7)), Err("internal failure: 7 is large".to_owned()));
    }
}
