//! Signals to give up compiling.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::CancellationHandle;

use crate::GrammarError;

thread_local! {
    static CURRENT: RefCell<Option<Stop>> = const { RefCell::new(None) };
}

/// A signal to give up compiling, from a thread that no longer waits for the grammars of another. Clones share one signal.
///
/// A compilation checks the signal between its steps, such as parsing a GBNF grammar and building the parser, and within masks.
/// The limits of grammars bound the time of one step.
///
/// ```
/// use brasa_grammar::Stop;
///
/// let stop = Stop::default();
/// let order = stop.clone();
/// std::thread::spawn(move || order.give());
/// stop.during(|| { /* grammars that are compiled here end with `GrammarError::Stopped` once the order is given */ });
/// ```
#[derive(Clone, Default)]
pub struct Stop(Arc<Order>);

#[derive(Default)]
struct Order {
    is_given: AtomicBool,
    /// Parsers that are cancelled when the signal is given while they compute a mask.
    parsers: Mutex<Vec<CancellationHandle>>,
}

impl Stop {
    /// Gives the signal, for good.
    pub fn give(&self) {
        self.0.is_given.store(true, Ordering::SeqCst);
        for parser in self.0.parsers.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            parser.cancel();
        }
    }

    /// True once the signal is given.
    pub fn is_given(&self) -> bool {
        self.0.is_given.load(Ordering::SeqCst)
    }

    /// Runs `work`. Grammars that this thread compiles within it check the signal.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Restore(Option<Stop>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        work()
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").field("is_given", &self.is_given()).finish()
    }
}

/// The signal that compilations of this thread check; if none was set, one that is never given.
pub fn current() -> Stop {
    CURRENT.with_borrow(Clone::clone).unwrap_or_default()
}

/// True once this thread's signal is given.
pub fn is_given() -> bool {
    CURRENT.with_borrow(|stop| stop.as_ref().is_some_and(Stop::is_given))
}

/// [`GrammarError::Stopped`] once this thread's signal is given.
pub fn check() -> Result<(), GrammarError> {
    if is_given() { Err(GrammarError::Stopped) } else { Ok(()) }
}

/// Cancels `parser` when this thread's signal is given.
pub fn obeyed_by(parser: &CancellationHandle) {
    let stop = current();
    stop.0.parsers.lock().unwrap_or_else(PoisonError::into_inner).push(parser.clone());
    // The order may have come before the parser was there.
    if stop.is_given() {
        parser.cancel();
    }
}
