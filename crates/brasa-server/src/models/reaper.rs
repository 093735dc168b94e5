//! A thread that drops large values, such as models.
//!
//! Freeing a model takes long and may wait for its device. So its last owner passes it to a thread that only drops values. The
//! thread also returns memory to the system that large requests have freed.

use std::any::Any;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::models::presence::Presence;

/// Pause before freed memory is returned to the system, so that many requests share one search of the heap.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest time before freed memory is returned while more is freed.
const LONGEST: Duration = Duration::from_secs(1);

/// The value to drop; `None` to only return free memory.
type Job = Option<Box<dyn Any + Send>>;

/// Channel to the thread; `None` if the system refused the thread. Values are then dropped in place.
static REAPER: LazyLock<Option<Sender<Job>>> = LazyLock::new(|| {
    let (sender, jobs) = channel();
    let thread = std::thread::Builder::new().name("brasa-reaper".into()).spawn(move || reap(&jobs));
    thread.ok().map(|_| sender)
});

/// Drops `thing` on the reaper's thread.
fn bury(thing: impl Any + Send) {
    if let Some(reaper) = &*REAPER {
        // A thing that the thread no longer takes is dropped here.
        let _ = reaper.send(Some(Box::new(thing)));
    }
}

/// Has free memory returned to the system soon.
pub(crate) fn tidy() {
    if let Some(reaper) = &*REAPER {
        let _ = reaper.send(None);
    }
}

fn reap(jobs: &Receiver<Job>) {
    let end = |job: Job| {
        // The panic hook has reported where.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(job)));
    };
    while let Ok(job) = jobs.recv() {
        end(job);
        let started = Instant::now();
        while started.elapsed() < LONGEST
            && let Ok(job) = jobs.recv_timeout(PAUSE)
        {
            end(job);
        }
        brasa::give_back_free_memory();
    }
}

/// A model that is dropped on the reaper's thread. Its presence is dropped after the model.
pub(crate) struct Reaped<T: Any + Send>(Option<(T, Arc<Presence>)>);

impl<T: Any + Send> Reaped<T> {
    /// Wraps `model`.
    pub fn new(model: T, presence: &Arc<Presence>) -> Self {
        Self(Some((model, Arc::clone(presence))))
    }
}

impl<T: Any + Send> Deref for Reaped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.as_ref().expect("it is taken by drop alone").0
    }
}

impl<T: Any + Send> Drop for Reaped<T> {
    fn drop(&mut self) {
        if let Some(model) = self.0.take() {
            bury(model);
        }
    }
}
