//! A count that one thread raises and the engine's thread waits for, without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Wakes the engine's thread.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// A count, and the value at which the engine's thread is woken.
pub(crate) struct Gate {
    count: AtomicUsize,
    /// The count at which to wake the waiter; `usize::MAX` while no request waits.
    wanted: AtomicUsize,
    wake: Wake,
}

impl Gate {
    /// A count of 0. `wake` wakes the waiter.
    pub(crate) fn new(wake: Wake) -> Self {
        Self { count: AtomicUsize::new(0), wanted: AtomicUsize::new(usize::MAX), wake }
    }

    /// Raises the count by one.
    pub(crate) fn raise(&self) {
        // Sequentially consistent, so that either this thread sees what is wanted or the waiter sees the new count.
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        self.wake_if(count);
    }

    /// Sets the count above every value that can be waited for.
    pub(crate) fn open(&self) {
        self.count.store(usize::MAX, Ordering::SeqCst);
        self.wake_if(usize::MAX);
    }

    fn wake_if(&self, count: usize) {
        let wanted = self.wanted.load(Ordering::SeqCst);
        if wanted != usize::MAX
            && wanted <= count
            && self.wanted.swap(usize::MAX, Ordering::SeqCst) != usize::MAX
        {
            (self.wake)();
        }
    }

    /// The count so far.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// True once the gate was [opened](Self::open).
    pub(crate) fn is_open(&self) -> bool {
        self.count() == usize::MAX
    }

    /// Wakes the waiter when the count reaches `wanted`, at once if it already has.
    pub(crate) fn want(&self, wanted: usize) {
        self.wanted.store(wanted, Ordering::SeqCst);
        if self.count() >= wanted {
            self.wanted.store(usize::MAX, Ordering::SeqCst);
        }
    }

    /// Wakes the waiter when the gate is [opened](Self::open).
    pub(crate) fn want_open(&self) {
        self.want(usize::MAX - 1);
    }

    /// Wakes the waiter at any count.
    pub(crate) fn wake(&self) {
        (self.wake)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_waiter_is_woken_once_when_the_count_is_reached() {
        let woken = Arc::new(AtomicUsize::new(0));
        let gate = Gate::new(Arc::new({
            let woken = Arc::clone(&woken);
            move || {
                woken.fetch_add(1, Ordering::SeqCst);
            }
        }));
        let woken = || woken.load(Ordering::SeqCst);
        gate.raise();
        gate.want(1);
        gate.raise();
        assert_eq!((gate.count(), woken()), (2, 0), "nobody waited");
        gate.want(4);
        gate.raise();
        assert_eq!(woken(), 0);
        gate.raise();
        gate.raise();
        assert_eq!((gate.count(), woken()), (5, 1));
        gate.want_open();
        gate.open();
        assert_eq!((gate.is_open(), woken()), (true, 2));
    }
}
