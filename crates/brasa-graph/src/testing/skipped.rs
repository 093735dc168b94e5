//! How a test says that a machine cannot run it.

use std::io::Write as _;

/// Reports that the current test, or a part of it, needs something that this machine lacks.
///
/// Prints `skipped: test: needs …` to stderr, past the test harness, which would hide the output of a test that passes.
/// `cargo xtask ci` lists these lines.
pub fn skipped(needs: &str) {
    let thread = std::thread::current();
    // The harness names the thread of a test after the test.
    let test = thread.name().unwrap_or("a test");
    // One write, so that lines of several threads do not mix. Nothing can be done about a closed stderr.
    let _ = std::io::stderr().write_all(format!("skipped: {test}: needs {needs}\n").as_bytes());
}
