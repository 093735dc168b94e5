//! The budget of the current thread's rendering. Every operation that costs more than a few words pays before it works.

use std::cell::Cell;
use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind};

/// Most bytes that one rendering may build: texts, lists, maps, captured output. Freed memory is not subtracted.
pub const MEMORY_BYTES: u64 = 128 << 20;
/// Most bytes that one rendering may read. Walks over values count by [`Weight::steps`](super::values::Weight::steps).
pub const WORK: u64 = 1 << 30;
/// Most bytes that one rendering may write.
pub const OUTPUT_BYTES: u64 = 64 << 20;
/// Longest time of one rendering.
pub const TIME: Duration = Duration::from_secs(10);

/// Marks an error of the budget among the template engine's errors. The name of the limit follows.
pub const LIMIT: &str = "\u{2}";

/// Number of payments between two checks of the time.
const BETWEEN_LOOKS: u32 = 256;

#[derive(Clone, Copy)]
struct Left {
    memory: u64,
    work: u64,
    until: Option<Instant>,
    payments: u32,
}

thread_local! {
    static LEFT: Cell<Left> = const { Cell::new(Left { memory: 0, work: 0, until: None, payments: 0 }) };
}

/// Starts the budget of one rendering on this thread.
pub fn begin() {
    LEFT.set(Left { memory: MEMORY_BYTES, work: WORK, until: Some(Instant::now() + TIME), payments: 0 });
}

/// Pays for `bytes` that are about to be built.
pub fn memory(bytes: u64) -> Result<(), Error> {
    let mut left = LEFT.get();
    left.memory = left.memory.checked_sub(bytes).ok_or_else(|| exceeded("memory"))?;
    LEFT.set(left);
    work(bytes)
}

/// Pays for `steps` bytes or items that are about to be read.
pub fn work(steps: u64) -> Result<(), Error> {
    let mut left = LEFT.get();
    left.work = left.work.checked_sub(steps.max(1)).ok_or_else(|| exceeded("amount of work"))?;
    left.payments += 1;
    if left.payments == BETWEEN_LOOKS {
        left.payments = 0;
        if left.until.is_none_or(|until| Instant::now() > until) {
            return Err(exceeded("time"));
        }
    }
    LEFT.set(left);
    Ok(())
}

/// The error for exceeding `limit`.
pub fn exceeded(limit: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{LIMIT}{limit}"))
}

/// The limit that an error reports; `None` for other errors.
pub fn limit_of(error: &Error) -> Option<&'static str> {
    let name = error.detail()?.strip_prefix(LIMIT)?;
    ["memory", "amount of work", "time", "depth of values", "length of text"]
        .into_iter()
        .find(|limit| *limit == name)
}
