//! Waiting of threads for other threads: spinning, yielding, sleeping.
//!
//! A thread looks for a moment whether it is done, since most waits of a team end within microseconds, and to be woken takes tens of
//! them. Then it yields its processor. A yield that takes long went to another program. Beside one that computes, a thread that yields comes
//! last and waits for milliseconds at every barrier, where one that sleeps is let in soon after it is woken: for the next waits, threads sleep.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A yield that took longer went to another program.
const LONG_YIELD: Duration = Duration::from_micros(200);
/// Waits in which threads sleep, behind a long yield.
const SLEEPS: u32 = 256;

/// A place where threads wait for each other.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Looks before a thread yields.
    patience: u32,
    /// True if threads may sleep.
    sleeps: bool,
    /// Waits in which threads are still to sleep in place of yielding.
    sleeps_left: AtomicU32,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Waiting {
    /// A place to wait. A thread looks `patience` times before it yields, and then `sleeps` if other programs want its processor.
    pub(crate) const fn new(patience: u32, sleeps: bool) -> Self {
        Self {
            patience,
            sleeps,
            sleeps_left: AtomicU32::new(0),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Waits until `ready` returns true. The thread that makes it true must call [`wake`](Self::wake) afterwards. Reads and writes
    /// of the condition use [`Ordering::SeqCst`].
    pub(crate) fn until(&self, ready: impl Fn() -> bool) {
        for _ in 0..self.patience {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        while !ready() {
            let left = self.sleeps_left.load(Ordering::Relaxed);
            if left > 0 {
                self.sleeps_left.store(left - 1, Ordering::Relaxed);
                return self.asleep_until(ready);
            }
            let before = Instant::now();
            std::thread::yield_now();
            if self.sleeps && before.elapsed() > LONG_YIELD {
                self.sleeps_left.store(SLEEPS, Ordering::Relaxed);
            }
        }
    }

    /// Sleeps until `ready` says so, as [`until`](Self::until) waits.
    pub(crate) fn asleep_until(&self, ready: impl Fn() -> bool) {
        let mut guard = self.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !ready() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes the sleeping threads, which check their condition again.
    pub(crate) fn wake(&self) {
        // A thread that is about to sleep has counted itself before it looked for the last time, or looks after this.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock());
            self.wake.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// A thread that yields, one that sleeps because a yield was long, and one that sleeps at once.
    #[test]
    fn whoever_waits_is_woken() {
        for (asleep, sleeps_left) in [(false, 0), (false, SLEEPS), (true, 0)] {
            let waiting = Waiting::new(3, true);
            waiting.sleeps_left.store(sleeps_left, Ordering::Relaxed);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let ready = || done.load(Ordering::SeqCst);
                let waits: Vec<_> = (0..3)
                    .map(|_| {
                        let waiting = &waiting;
                        scope.spawn(
                            move || if asleep { waiting.asleep_until(ready) } else { waiting.until(ready) },
                        )
                    })
                    .collect();
                if asleep || sleeps_left > 0 {
                    while waiting.sleepers.load(Ordering::SeqCst) < waits.len() {
                        std::thread::yield_now();
                    }
                }
                assert!(waits.iter().all(|thread| !thread.is_finished()), "nothing was done yet");
                done.store(true, Ordering::SeqCst);
                waiting.wake();
            });
            assert_eq!(waiting.sleepers.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn threads_yield_again_when_they_have_slept_often_enough() {
        // A long yield on a busy machine begins nothing anew here.
        let waiting = Waiting::new(0, false);
        waiting.sleeps_left.store(2, Ordering::Relaxed);
        for left in [1, 0, 0] {
            let looks = AtomicU32::new(0);
            // The first look begins the wait, the second ends it.
            waiting.until(|| looks.fetch_add(1, Ordering::SeqCst) > 0);
            assert_eq!(waiting.sleeps_left.load(Ordering::Relaxed), left);
        }
    }
}
