//! Threads that compile grammars, shared by all models of the process.
//!
//! A compilation with a result that is no longer awaited ends between two of its steps, or within a mask. Other steps are ended
//! by the limits of the parser alone, so the number of threads is bounded. Threads end when nothing was to be compiled for a
//! while.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::GrammarError;
use crate::limits::{COMPILE_STACK_BYTES, COMPILE_THREADS, COMPILE_TIME, WAITING_GRAMMARS};
use crate::stop::{self, Stop};

/// Time without work after which a thread ends.
const IDLE: Duration = Duration::from_secs(5);

/// Longest time until a waiting thread notices a signal to stop.
const LOOK: Duration = Duration::from_millis(20);

/// The niceness of the threads beyond that of the process. With a higher value, a schema would take too long while an engine uses
/// all processors.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

struct Job {
    work: Box<dyn FnOnce() + Send>,
    /// The signal to stop, given when the result is no longer awaited.
    stop: Stop,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
    idle_threads: usize,
}

static STATE: Mutex<State> = Mutex::new(State { waiting: VecDeque::new(), threads: 0, idle_threads: 0 });
static FILLED: Condvar = Condvar::new();

/// Runs `work` on a thread with a large stack, and waits for a limited time. `work` must check its thread's signal to stop
/// between its steps.
///
/// # Errors
///
/// [`GrammarError::TooSlow`] if the work did not end in time, [`GrammarError::Busy`] if it did not begin,
/// [`GrammarError::Stopped`] if the calling thread's signal to stop is given.
pub fn run<T: Send + 'static>(
    kind: &'static str,
    work: impl FnOnce() -> Result<T, GrammarError> + Send + 'static,
) -> Result<T, GrammarError> {
    stop::check()?;
    let (sender, result) = sync_channel(1);
    let (has_begun, begun) = sync_channel(1);
    let order = Stop::default();
    let job = Job {
        work: Box::new(move || {
            // Nobody listens any more if it took too long.
            let _ = has_begun.send(());
            let _ = sender.send(work());
        }),
        stop: order.clone(),
    };
    enqueue(job)?;
    let ordered = stop::current();
    let ended = match wait(&begun, &ordered) {
        Err(Ended::Timeout) => GrammarError::Busy,
        Err(Ended::Stopped) => GrammarError::Stopped,
        Ok(()) | Err(Ended::Disconnected) => match wait(&result, &ordered) {
            Ok(result) => return result,
            Err(Ended::Timeout) => GrammarError::TooSlow { kind, seconds: COMPILE_TIME.as_secs() },
            Err(Ended::Stopped) => GrammarError::Stopped,
            Err(Ended::Disconnected) => GrammarError::Grammar { kind, what: "the parser failed".into() },
        },
    };
    order.give();
    Err(ended)
}

/// The reason why a wait ended without a result.
enum Ended {
    Timeout,
    Stopped,
    Disconnected,
}

/// Waits for a result, up to the time limit of compiling or until the signal to stop is given.
fn wait<T>(come: &Receiver<T>, ordered: &Stop) -> Result<T, Ended> {
    let deadline = Instant::now() + COMPILE_TIME;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match come.recv_timeout(left.min(LOOK)) {
            Ok(come) => return Ok(come),
            Err(RecvTimeoutError::Disconnected) => return Err(Ended::Disconnected),
            Err(RecvTimeoutError::Timeout) if ordered.is_given() => return Err(Ended::Stopped),
            Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(Ended::Timeout),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn enqueue(job: Job) -> Result<(), GrammarError> {
    let mut state = lock();
    state.waiting.retain(|job| !job.stop.is_given());
    if state.waiting.len() >= WAITING_GRAMMARS {
        return Err(GrammarError::Busy);
    }
    state.waiting.push_back(job);
    if state.idle_threads >= state.waiting.len() || state.threads >= COMPILE_THREADS {
        FILLED.notify_one();
        return Ok(());
    }
    let thread =
        thread::Builder::new().name("brasa-grammar".into()).stack_size(COMPILE_STACK_BYTES).spawn(compile);
    match thread {
        Ok(_) => state.threads += 1,
        // Another thread will come to it.
        Err(_) if state.threads > 0 => FILLED.notify_one(),
        Err(error) => {
            state.waiting.pop_back();
            return Err(GrammarError::NoThread(error.to_string()));
        }
    }
    Ok(())
}

/// Compiles grammars from the queue until there are none for [`IDLE`]: the main function of a thread.
fn compile() {
    // Where a thread cannot be nicer it works as it is.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICENESS);
    let mut state = lock();
    loop {
        if let Some(job) = state.waiting.pop_front() {
            drop(state);
            if !job.stop.is_given() {
                // A panic is an error of its own grammar.
                let work = std::panic::AssertUnwindSafe(|| job.stop.during(job.work));
                let _ = std::panic::catch_unwind(work);
            }
            state = lock();
            continue;
        }
        state.idle_threads += 1;
        let (next, timeout) = FILLED.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
        state = next;
        state.idle_threads -= 1;
        if timeout.timed_out() && state.waiting.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}

/// Locks the state. Poison is ignored, since the state is consistent between any two operations.
fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
