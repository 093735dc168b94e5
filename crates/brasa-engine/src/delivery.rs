//! The queue that carries a generation's text from the text's thread to the reader's stream.
//!
//! Nothing waits for a reader. The engine's thread never touches the queue: a [`Gate`] counts the fragments that the reader
//! has taken, and the engine's thread pauses a generation whose reader is too far behind. So a queue is bounded, and a
//! reader who stops reading stops the work as well.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::gate::{Gate, Wake};
use crate::{EngineError, FinishReason, Fragment, Metrics, Token};

/// An entry of the queue.
pub(crate) enum Event {
    /// A fragment, and the metrics up to it.
    Fragment(Fragment, Metrics),
    Row(Vec<f32>),
    /// The end, with the token that ended the text without being a part of it.
    Done(FinishReason, Option<Token>, Metrics),
    Failed(EngineError, Metrics),
}

struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    reader: Reader,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    /// A task that waits for the next event.
    waiting: Option<Waker>,
    /// True once the sender's end is gone.
    closed: bool,
}

/// The part of a reader's state that the engine's thread uses.
#[derive(Clone)]
pub(crate) struct Reader(Arc<ReaderState>);

struct ReaderState {
    /// Fragments that the reader has taken.
    taken: Gate,
    cancelled: AtomicBool,
}

impl Reader {
    /// Counts the fragments that the reader has taken.
    pub(crate) fn taken(&self) -> &Gate {
        &self.0.taken
    }

    /// True if the reader's stream was dropped or cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed)
    }
}

/// An empty queue: the sender's end and the reader's. `wake` wakes the engine's thread.
pub(crate) fn delivery(wake: Wake) -> (Delivery, Inbox) {
    let state = ReaderState { taken: Gate::new(wake), cancelled: AtomicBool::new(false) };
    let reader = Reader(Arc::new(state));
    let shared = Arc::new(Shared { queue: Mutex::default(), arrived: Condvar::new(), reader });
    (Delivery(Arc::clone(&shared)), Inbox(shared))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the lock is held, so a poisoned queue is whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the queue and wakes the reader.
    fn notify(&self, mut queue: MutexGuard<'_, Queue>) {
        let waiting = queue.waiting.take();
        drop(queue);
        self.arrived.notify_one();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

/// The sender's end. Dropping it ends the reader's stream.
pub(crate) struct Delivery(Arc<Shared>);

impl Delivery {
    /// Puts an event into the queue. A reader who waits is not woken.
    pub(crate) fn put(&self, event: Event) {
        self.0.lock().events.push_back(event);
    }

    /// Wakes a reader who waits.
    pub(crate) fn notify(&self) {
        self.0.notify(self.0.lock());
    }

    /// The state of the reader.
    pub(crate) fn reader(&self) -> Reader {
        self.0.reader.clone()
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
    /// The next event, after waiting for it; `None` if the sender's end is gone.
    pub(crate) fn receive(&self) -> Option<Event> {
        let mut queue = self.0.lock();
        loop {
            if let Some(event) = queue.events.pop_front() {
                drop(queue);
                return Some(self.take(event));
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
            drop(queue);
            return Poll::Ready(Some(self.take(event)));
        }
        if queue.closed {
            return Poll::Ready(None);
        }
        queue.waiting = context.map(|context| context.waker().clone());
        Poll::Pending
    }

    /// Counts an event that the reader takes.
    fn take(&self, event: Event) -> Event {
        if let Event::Fragment(Fragment { token: Some(_), .. }, _) | Event::Row(_) = &event {
            self.0.reader.0.taken.raise();
        }
        event
    }

    /// Requests the end of the generation, also of a paused one.
    pub(crate) fn cancel(&self) {
        let reader = &self.0.reader.0;
        if !reader.cancelled.swap(true, Ordering::Relaxed) {
            reader.taken.wake();
        }
    }
}
