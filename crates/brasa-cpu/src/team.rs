//! Threads that walk a program together.
//!
//! A program is a table of operations; all threads of a team walk it side by side, each doing its share of
//! every operation, with one barrier between two operations. The caller is thread 0. Between two runs the
//! workers spin for a moment, since the next token follows soon, and then sleep. If there are more threads than
//! processors, a waiting thread soon yields instead of spinning: the thread that it waits for may need its processor.
//! `waiting` says what it does beside other programs.
#![expect(unsafe_code, reason = "hands a borrowed closure to threads that outlive the borrow")]

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;
use crate::waiting::Waiting;

/// Time that an idle worker spins before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(200);
/// Spins between two looks at the clock.
const SPINS: u32 = 256;
/// Spins of a waiting thread before it yields its processor.
const PATIENCE: u32 = 1024;
/// Spins of a waiting thread before it yields, if the team has more threads than there are processors.
const CROWDED_PATIENCE: u32 = 16;

thread_local! {
    static INSIDE_TEAM: Cell<bool> = const { Cell::new(false) };
}

/// Most threads of a team. A system that runs out of memory maps ends the process instead of refusing a thread.
pub const MOST_THREADS: usize = 4096;

/// A fixed number of threads that run closures together.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a run: runs of several callers follow each other.
    turn: Mutex<()>,
}

/// The point at which all threads of a team meet between two operations.
#[derive(Debug)]
pub struct Barrier {
    threads: u32,
    waiting: Waiting,
    arrived: AtomicU32,
    generation: AtomicU32,
    poisoned: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    barrier: Barrier,
    /// Number of runs; a worker that sees it grow has work.
    epoch: AtomicU32,
    /// The closure of the run; valid from the growth of `epoch` until every worker is `done`.
    job: Mutex<Option<Job>>,
    done: AtomicUsize,
    stopping: AtomicBool,
    /// Workers without work sleep here.
    idle: Waiting,
    failure: Mutex<Option<(usize, String)>>,
}

type Work<'a> = dyn Fn(usize, &Barrier) + Sync + 'a;

#[derive(Clone, Copy, Debug)]
struct Job(*const Work<'static>);

// SAFETY: the closure is `Sync`; `Team::run` keeps it alive until every worker has finished with it.
unsafe impl Send for Job {}

/// The payload with which threads unwind from a barrier that a panicking thread will never reach.
struct Abandoned;

impl Team {
    /// A team of `threads` threads, the caller among them; 0 counts as 1.
    ///
    /// # Errors
    ///
    /// [`Error::ThreadStart`]: the operating system refused; those already started are ended again. [`Error::TooManyThreads`]: more
    /// than [`MOST_THREADS`].
    pub fn new(threads: usize) -> Result<Self, Error> {
        let threads = threads.max(1);
        if threads > MOST_THREADS {
            return Err(Error::TooManyThreads { threads, most: MOST_THREADS });
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded = threads > processors;
        let waiting = || Waiting::new(if crowded { CROWDED_PATIENCE } else { PATIENCE }, !crowded);
        let shared = Arc::new(Shared {
            barrier: Barrier {
                threads: threads as u32,
                waiting: waiting(),
                arrived: AtomicU32::new(0),
                generation: AtomicU32::new(0),
                poisoned: AtomicBool::new(false),
            },
            epoch: AtomicU32::new(0),
            job: Mutex::new(None),
            done: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            idle: waiting(),
            failure: Mutex::new(None),
        });
        let mut team = Self { shared, workers: Vec::with_capacity(threads - 1), turn: Mutex::new(()) };
        for thread in 1..threads {
            let shared = Arc::clone(&team.shared);
            let started = std::thread::Builder::new()
                .name(format!("brasa-{thread}"))
                .spawn(move || shared.work(thread))
                .map_err(|error| Error::ThreadStart { thread, reason: error.to_string() })?;
            team.workers.push(started);
        }
        Ok(team)
    }

    /// The number of threads that this process may use, by its CPU affinity and its control group's quota.
    ///
    /// The hyper-threads of a core count once, since they share its vector units.
    pub fn default_threads() -> usize {
        let allowed = std::thread::available_parallelism().map_or(1, usize::from);
        physical_cores().map_or(allowed, |cores| cores.clamp(1, allowed))
    }

    /// Number of threads, with the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Number of barriers that all threads have passed together since they were started, modulo 2³². A team of one thread
    /// passes none.
    pub fn barriers(&self) -> u32 {
        self.shared.barrier.generation.load(Ordering::Acquire)
    }

    /// Runs `work(thread, barrier)` on every thread and returns when all have finished.
    ///
    /// Every thread must wait at the barrier equally often. Runs of several callers follow each other.
    ///
    /// # Errors
    ///
    /// [`Error::WorkerPanicked`]: a thread panicked. The others were released from the barrier; their results are
    /// undefined. [`Error::NestedTeam`]: called from inside a run; nothing was done.
    pub fn run(&self, work: impl Fn(usize, &Barrier) + Sync) -> Result<(), Error> {
        if INSIDE_TEAM.get() {
            return Err(Error::NestedTeam);
        }
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        if !self.workers.is_empty() {
            // SAFETY: only the lifetime changes. The closure is used until `done` reaches the number of
            // workers, which is awaited below before `work` can be dropped, also where it panics.
            let job = Job(unsafe { std::mem::transmute::<&Work<'_>, &Work<'static>>(&work) });
            *lock(&shared.job) = Some(job);
            shared.done.store(0, Ordering::Relaxed);
            shared.epoch.fetch_add(1, Ordering::SeqCst);
            shared.idle.wake();
        }
        shared.call(0, &work);
        shared.barrier.waiting.until(|| shared.done.load(Ordering::SeqCst) == self.workers.len());

        let failure = lock(&shared.failure).take();
        failure.map_or(Ok(()), |(thread, message)| {
            shared.barrier.reset();
            Err(Error::WorkerPanicked { thread, message })
        })
    }

    /// The share of `items` that belongs to `thread`.
    ///
    /// Shares are contiguous, in the order of threads. All but the last end at a multiple of `granularity`, and they differ
    /// by at most one multiple.
    pub fn split(items: usize, granularity: usize, threads: usize, thread: usize) -> Range<usize> {
        let granularity = granularity.max(1);
        let grains = items.div_ceil(granularity);
        let bound = |thread: usize| (grains * thread / threads * granularity).min(items);
        bound(thread)..bound(thread + 1)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.shared.idle.wake();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of the closures that it runs.
            let _ = worker.join();
        }
    }
}

impl Barrier {
    /// Waits until every thread of the team is here.
    ///
    /// Afterwards every thread sees what any thread wrote before. If another thread panicked, the wait ends by unwinding,
    /// which [`Team::run`] catches.
    pub fn wait(&self) {
        if self.threads == 1 {
            return;
        }
        let generation = self.generation.load(Ordering::SeqCst);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
            self.waiting.wake();
        } else {
            self.waiting.until(|| {
                self.generation.load(Ordering::SeqCst) != generation || self.poisoned.load(Ordering::SeqCst)
            });
        }
        if self.poisoned.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Abandoned));
        }
    }

    /// Number of threads that meet here.
    pub const fn threads(&self) -> usize {
        self.threads as usize
    }

    /// Makes a poisoned barrier usable again, once every thread has left it.
    fn reset(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.poisoned.store(false, Ordering::Release);
    }
}

impl Shared {
    fn work(&self, thread: usize) {
        let mut seen = 0;
        loop {
            self.await_epoch(seen);
            seen = seen.wrapping_add(1);
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            let job = *lock(&self.job);
            if let Some(job) = job {
                // SAFETY: `Team::run` keeps the closure alive until `done` is counted below.
                self.call(thread, unsafe { &*job.0 });
            }
            self.done.fetch_add(1, Ordering::SeqCst);
            self.barrier.waiting.wake();
        }
    }

    /// Spins for a moment, then sleeps, until a run after `seen` begins.
    fn await_epoch(&self, seen: u32) {
        let ready = || self.epoch.load(Ordering::SeqCst) != seen;
        let start = Instant::now();
        while start.elapsed() < SPIN_TIME {
            for _ in 0..SPINS {
                if ready() {
                    return;
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
        self.idle.asleep_until(ready);
    }

    /// Runs the closure on this thread; a panic poisons the barrier and is kept for the caller.
    fn call(&self, thread: usize, work: &Work<'_>) {
        INSIDE_TEAM.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| work(thread, &self.barrier)));
        INSIDE_TEAM.set(false);
        if let Err(payload) = result
            && !payload.is::<Abandoned>()
        {
            lock(&self.failure).get_or_insert((thread, message(payload.as_ref())));
            self.barrier.poisoned.store(true, Ordering::SeqCst);
            self.barrier.waiting.wake();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Number of cores among the processors that this process may run on; `None` if Linux does not say.
fn physical_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = std::collections::BTreeSet::new();
    for processor in processor_list(allowed)? {
        let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
        cores.insert(std::fs::read_to_string(path).ok()?);
    }
    Some(cores.len())
}

/// Parses a list such as `0-3,8`; `None` for anything else, or for more than 4,096 numbers.
fn processor_list(list: &str) -> Option<Vec<usize>> {
    let mut processors = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        processors.extend((first..=last).take(4096));
    }
    (processors.len() <= 4096).then_some(processors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_thread_sees_what_all_wrote_before_the_barrier() {
        for threads in [1, 2, 3, 8] {
            let team = Team::new(threads).unwrap();
            let counts: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
            for _ in 0..50 {
                team.run(|thread, barrier| {
                    for round in 1..20 {
                        counts[thread].fetch_add(1, Ordering::Relaxed);
                        barrier.wait();
                        let count = |thread: usize| counts[thread].load(Ordering::Relaxed);
                        assert!((0..threads).all(|other| count(other) == count(thread)), "round {round}");
                        barrier.wait();
                    }
                })
                .unwrap();
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 950));
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_team_goes_on() {
        let team = Team::new(3).unwrap();
        for victim in 0..3 {
            let error = team
                .run(|thread, barrier| {
                    barrier.wait();
                    assert!(thread != victim, "thread gives up");
                    barrier.wait();
                })
                .unwrap_err();
            assert_eq!(error, Error::WorkerPanicked { thread: victim, message: "thread gives up".into() });
            team.run(|_, barrier| barrier.wait()).unwrap();
        }
    }

    #[test]
    fn a_nested_run_is_refused() {
        let team = Team::new(2).unwrap();
        let refused = AtomicUsize::new(0);
        team.run(|_, _| {
            if team.run(|_, _| ()) == Err(Error::NestedTeam) {
                refused.fetch_add(1, Ordering::Relaxed);
            }
        })
        .unwrap();
        assert_eq!(refused.into_inner(), 2);
    }

    #[test]
    fn sleeping_workers_wake() {
        let team = Team::new(4).unwrap();
        for _ in 0..5 {
            std::thread::sleep(SPIN_TIME * 5);
            let ran = AtomicUsize::new(0);
            team.run(|_, _| {
                ran.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(ran.into_inner(), 4);
        }
    }

    #[test]
    fn shares_cover_everything_once_and_evenly() {
        for (items, granularity, threads) in
            [(0_usize, 4, 3), (1, 16, 4), (100, 16, 3), (64, 1, 64), (7, 2, 2), (1000, 1, 64), (3072, 64, 64)]
        {
            let mut next = 0;
            let even = items.div_ceil(granularity) / threads;
            for thread in 0..threads {
                let share = Team::split(items, granularity, threads, thread);
                assert_eq!(share.start, next);
                assert!((even..=even + 1).contains(&share.len().div_ceil(granularity)), "{share:?}");
                next = share.end;
            }
            assert_eq!(next, items);
        }
    }

    #[test]
    fn more_threads_than_a_system_starts_are_refused() {
        let most = MOST_THREADS;
        assert_eq!(Team::new(100_000).err(), Some(Error::TooManyThreads { threads: 100_000, most }));
    }

    #[test]
    fn processor_lists_are_read_as_linux_writes_them() {
        assert_eq!(processor_list("\t0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(processor_list("nonsense"), None);
        assert!((1..=4096).contains(&Team::default_threads()));
    }
}
