//! Threads that compute masks while a model's forward pass runs, shared by all models of the process.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Work for a thread of the pool. The owner does the work itself if no thread has begun.
pub struct Task<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

enum State<T> {
    Waiting(Box<dyn FnOnce() -> T + Send>),
    Running,
    Done(T),
    Taken,
}

trait Run: Send + Sync {
    fn run(&self);
}

struct Pool {
    queue: Mutex<VecDeque<Arc<dyn Run>>>,
    filled: Condvar,
    /// Number of threads that could be started.
    threads: usize,
}

/// The pool. Its threads live as long as the process.
static POOL: LazyLock<&'static Pool> = LazyLock::new(|| {
    let wanted = thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 8));
    let pool: &'static mut Pool =
        Box::leak(Box::new(Pool { queue: Mutex::default(), filled: Condvar::new(), threads: wanted }));
    let shared: &'static Pool = pool;
    for _ in 0..shared.threads {
        // Without threads, owners do the work themselves when they wait for it.
        let _ = thread::Builder::new().name("brasa-mask".into()).spawn(|| shared.work());
    }
    shared
});

impl<T: Send + 'static> Task<T> {
    /// Queues `work`, which must not panic.
    pub fn begin(work: impl FnOnce() -> T + Send + 'static) -> Arc<Self> {
        let task = Arc::new(Self { state: Mutex::new(State::Waiting(Box::new(work))), done: Condvar::new() });
        lock(&POOL.queue).push_back(Arc::clone(&task) as Arc<dyn Run>);
        POOL.filled.notify_one();
        task
    }

    /// Takes the result; computes it on this thread if no other thread has begun. `None` if it was taken before, or if the work
    /// panicked.
    pub fn take(&self) -> Option<T> {
        self.run();
        let mut state = lock(&self.state);
        while matches!(*state, State::Running) {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(result) => Some(result),
            _ => None,
        }
    }
}

impl<T: Send> Run for Task<T> {
    fn run(&self) {
        let work = {
            let mut state = lock(&self.state);
            if !matches!(*state, State::Waiting(_)) {
                return;
            }
            let State::Waiting(work) = std::mem::replace(&mut *state, State::Running) else { return };
            work
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        *lock(&self.state) = result.map_or(State::Taken, State::Done);
        self.done.notify_all();
    }
}

impl Pool {
    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let task = loop {
                if let Some(task) = queue.pop_front() {
                    break task;
                }
                queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            task.run();
        }
    }
}

/// Locks a mutex and ignores poison: the guarded data are consistent between any two operations.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
