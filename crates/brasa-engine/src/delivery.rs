//! The way of a generation's text to its reader: a queue between the engine's thread and a stream.
//!
//! The engine never waits for a reader. A generation whose reader is [behind](Delivery::is_behind) is parked, and goes on
//! when the reader has taken half of what lies in the queue. So a queue is bounded, and a reader who stops reading stops
//! the work as well.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::{EngineError, FinishReason, Fragment, Metrics};

/// An entry of the queue.
pub(crate) enum Event {
    Fragment(Fragment),
    Done(FinishReason, Metrics),
    Failed(EngineError, Metrics),
}

/// Wakes the engine's thread.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    cancelled: AtomicBool,
    run_ahead: usize,
    wake: Wake,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    /// A task that waits for the next event.
    waiting: Option<Waker>,
    /// True from the moment the queue is full until the reader has taken half of it.
    behind: bool,
    /// True once the engine's end is gone.
    closed: bool,
}

/// A queue whose generation is parked when `run_ahead` fragments lie in it: the engine's end and the reader's.
pub(crate) fn delivery(run_ahead: usize, wake: Wake) -> (Delivery, Inbox) {
    let shared = Arc::new(Shared {
        queue: Mutex::default(),
        arrived: Condvar::new(),
        cancelled: AtomicBool::new(false),
        run_ahead,
        wake,
    });
    (Delivery(Arc::clone(&shared)), Inbox(shared))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the lock is held, so a poisoned queue is whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, mut queue: MutexGuard<'_, Queue>) {
        let waiting = queue.waiting.take();
        drop(queue);
        self.arrived.notify_one();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

/// The engine's end. Dropping it tells the reader that nothing more comes.
pub(crate) struct Delivery(Arc<Shared>);

impl Delivery {
    /// Puts a fragment into the queue.
    pub(crate) fn send(&self, fragment: Fragment) {
        let mut queue = self.0.lock();
        queue.events.push_back(Event::Fragment(fragment));
        queue.behind |= queue.events.len() >= self.0.run_ahead;
        self.0.notify(queue);
    }

    /// Puts the last event into the queue.
    pub(crate) fn end(&self, event: Event) {
        let mut queue = self.0.lock();
        queue.events.push_back(event);
        self.0.notify(queue);
    }

    /// True if the generation must wait for its reader. The reader wakes the engine when this changes.
    pub(crate) fn is_behind(&self) -> bool {
        self.0.lock().behind
    }

    /// True if the reader is gone or wants no more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.closed = true;
        self.0.notify(queue);
    }
}

/// The reader's end.
#[derive(Clone)]
pub(crate) struct Inbox(Arc<Shared>);

impl Inbox {
    /// The next event, waited for; `None` if the engine's end is gone.
    pub(crate) fn receive(&self) -> Option<Event> {
        let mut queue = self.0.lock();
        loop {
            if let Some(event) = queue.events.pop_front() {
                self.caught_up(queue);
                return Some(event);
            }
            if queue.closed {
                return None;
            }
            queue = self.0.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next event if there is one, otherwise `Pending`; the task of `context` is then woken by the next event.
    pub(crate) fn poll(&self, context: Option<&Context<'_>>) -> Poll<Option<Event>> {
        let mut queue = self.0.lock();
        if let Some(event) = queue.events.pop_front() {
            self.caught_up(queue);
            return Poll::Ready(Some(event));
        }
        if queue.closed {
            return Poll::Ready(None);
        }
        queue.waiting = context.map(|context| context.waker().clone());
        Poll::Pending
    }

    /// Lets a parked generation go on if half of the queue has been read.
    fn caught_up(&self, mut queue: MutexGuard<'_, Queue>) {
        if queue.behind && queue.events.len() <= self.0.run_ahead / 2 {
            queue.behind = false;
            drop(queue);
            (self.0.wake)();
        }
    }

    /// Asks the generation to end, a parked one too.
    pub(crate) fn cancel(&self) {
        if !self.0.cancelled.swap(true, Ordering::Relaxed) {
            (self.0.wake)();
        }
    }
}
