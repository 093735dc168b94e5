//! Reports of skipped tests.

use std::collections::BTreeSet;
use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Reports that `what` was not tested, and why: one line on standard error, once per process.
///
/// The test harness swallows what passing tests print. So the line is written to the process's standard error directly. If
/// the environment variable `BRASA_SKIPPED` names a file, the line is also appended there; `cargo xtask ci` collects these
/// lines and repeats them at its end.
pub fn skipped(what: &str, why: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = format!("skipped: {what}: {why}\n");
    if !SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
        return;
    }
    // A line that cannot be written must not fail a test.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = env::var_os("BRASA_SKIPPED") {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Whether long sweeps run; reports `what` as skipped if they do not.
///
/// `cargo xtask ci` asks for them with `BRASA_SWEEPS=1`.
pub fn sweeps(what: &str) -> bool {
    let asked = sweep_times() > 0;
    if !asked {
        skipped(what, "a long sweep, run by `cargo xtask ci` or with BRASA_SWEEPS=1");
    }
    asked
}

/// Number of repetitions of random sweeps: `BRASA_SWEEPS`, 1 if it is not a number, 0 if it is not set.
pub fn sweep_times() -> u64 {
    env::var("BRASA_SWEEPS").map_or(0, |times| times.parse().unwrap_or(1))
}
