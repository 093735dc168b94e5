//! The time that all threads together take to meet.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::{Error, Team};

/// Meetings between two looks at the clock.
const MEETINGS: u32 = 2000;
/// Meetings between two looks at the clock, of threads that share processors: each meeting then switches threads.
const CROWDED_MEETINGS: u32 = 50;
/// Number of measurements; the best counts.
const ATTEMPTS: usize = 5;

/// Threads that only wait for each other, as after every operation.
#[derive(Debug)]
pub struct BarrierProbe {
    team: Team,
}

impl BarrierProbe {
    /// Starts `threads` threads.
    ///
    /// # Errors
    ///
    /// [`Error::ThreadStart`].
    pub fn new(threads: usize) -> Result<Self, Error> {
        Ok(Self { team: Team::new(threads)? })
    }

    /// Seconds from one barrier to the next, with no work between.
    ///
    /// # Errors
    ///
    /// [`Error::WorkerPanicked`].
    pub fn seconds_per_barrier(&self) -> Result<f64, Error> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let meetings = if self.team.threads() > processors { CROWDED_MEETINGS } else { MEETINGS };
        let best = Mutex::new(f64::INFINITY);
        for _ in 0..ATTEMPTS {
            self.team.run(|thread, barrier| {
                barrier.wait();
                let started = Instant::now();
                for _ in 0..meetings {
                    barrier.wait();
                }
                if thread == 0 {
                    let mut best = best.lock().unwrap_or_else(PoisonError::into_inner);
                    *best = best.min(started.elapsed().as_secs_f64() / f64::from(meetings));
                }
            })?;
        }
        Ok(best.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}
