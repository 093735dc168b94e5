//! Threads that compile grammars, shared by all models of the process.
//!
//! Nothing ends a compilation from outside, so that their number is bounded: a grammar that takes too long keeps one thread until the
//! limits of the parser end it. Threads end when nothing was to be compiled for a while.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::GrammarError;
use crate::limits::{COMPILE_STACK_BYTES, COMPILE_THREADS, COMPILE_TIME, WAITING_GRAMMARS};

/// A thread without work ends behind this time.
const IDLE: Duration = Duration::from_secs(5);

struct Job {
    work: Box<dyn FnOnce() + Send>,
    /// True if the result is no longer awaited.
    is_dropped: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
    idle_threads: usize,
}

static STATE: Mutex<State> = Mutex::new(State { waiting: VecDeque::new(), threads: 0, idle_threads: 0 });
static FILLED: Condvar = Condvar::new();

/// Runs `work` on a thread with a large stack, and waits for a limited time.
///
/// # Errors
///
/// [`GrammarError::TooSlow`] if the work did not end in time, [`GrammarError::Busy`] if it did not begin.
pub fn run<T: Send + 'static>(
    kind: &'static str,
    work: impl FnOnce() -> Result<T, GrammarError> + Send + 'static,
) -> Result<T, GrammarError> {
    let deadline = Instant::now() + COMPILE_TIME;
    let (sender, result) = mpsc::sync_channel(1);
    let (has_begun, begun) = mpsc::sync_channel(1);
    let is_dropped = Arc::new(AtomicBool::new(false));
    let job = Job {
        work: Box::new(move || {
            // Nobody listens any more if it took too long.
            let _ = has_begun.send(());
            let _ = sender.send(work());
        }),
        is_dropped: Arc::clone(&is_dropped),
    };
    enqueue(job)?;
    let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
    if begun.recv_timeout(left(deadline)) == Err(mpsc::RecvTimeoutError::Timeout) {
        is_dropped.store(true, Ordering::Relaxed);
        return Err(GrammarError::Busy);
    }
    match result.recv_timeout(COMPILE_TIME) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            Err(GrammarError::TooSlow { kind, seconds: COMPILE_TIME.as_secs() })
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(GrammarError::Grammar { kind, what: "the parser failed".into() })
        }
    }
}

fn enqueue(job: Job) -> Result<(), GrammarError> {
    let mut state = lock();
    state.waiting.retain(|job| !job.is_dropped.load(Ordering::Relaxed));
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

/// The work of one thread.
fn compile() {
    let mut state = lock();
    loop {
        if let Some(job) = state.waiting.pop_front() {
            drop(state);
            if !job.is_dropped.load(Ordering::Relaxed) {
                // A panic is an error of its own grammar.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job.work));
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

/// Locks the state. The state is whole between any two operations, so a panic of another holder does not matter.
fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
