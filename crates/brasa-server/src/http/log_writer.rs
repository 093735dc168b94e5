//! The thread that writes the log.
//!
//! The reader of the log may stop reading, and then a write blocks for ever. So lines are queued for one thread that only writes.
//! If the queue is full, lines are dropped and counted; a line with their number precedes the next line that is written.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::json;

use crate::options::Log;

/// Most lines that wait for the writer.
const WAITING: usize = 4096;

/// Longest wait for the last lines when the server ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// The number of lines that were dropped because the log was not read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dropped(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Dropped lines since the start.
    total: AtomicU64,
    /// Dropped lines since the last line that reported them.
    untold: AtomicU64,
}

impl Dropped {
    /// Number of lines dropped since the start.
    pub fn total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.total.fetch_add(1, Ordering::Relaxed);
        self.0.untold.fetch_add(1, Ordering::Relaxed);
    }
}

enum Message {
    Line(String),
    /// Requests an acknowledgement after all earlier lines have been written.
    Flush(SyncSender<()>),
}

/// The writing thread of a log.
pub(crate) struct LogWriter {
    queue: SyncSender<Message>,
    dropped: Dropped,
}

impl LogWriter {
    /// Starts a thread that passes lines to `log`, one after the other.
    ///
    /// # Errors
    ///
    /// The system's error if it provides no thread.
    pub fn start(log: Log) -> std::io::Result<Self> {
        let (queue, lines) = sync_channel(WAITING);
        let dropped = Dropped::default();
        let told = dropped.clone();
        std::thread::Builder::new().name("brasa-log".into()).spawn(move || write(&lines, &*log, &told))?;
        Ok(Self { queue, dropped })
    }

    /// A log that takes lines without blocking.
    pub fn log(&self) -> Log {
        let (queue, dropped) = (self.queue.clone(), self.dropped.clone());
        Arc::new(move |line| {
            if queue.try_send(Message::Line(line.to_owned())).is_err() {
                dropped.add();
            }
        })
    }

    /// The count of dropped lines.
    pub fn dropped(&self) -> Dropped {
        self.dropped.clone()
    }

    /// Waits until all lines so far have been written, or for [`FAREWELL`].
    pub fn flush(&self) {
        let (sender, written) = sync_channel(0);
        if self.queue.try_send(Message::Flush(sender)).is_ok() {
            // A writer that stands still is left behind.
            let _ = written.recv_timeout(FAREWELL);
        }
    }
}

fn write(lines: &Receiver<Message>, log: &(dyn Fn(&str) + Send + Sync), dropped: &Dropped) {
    for message in lines {
        let line = match message {
            Message::Line(line) => line,
            Message::Flush(written) => {
                // Whoever asked may wait no longer.
                let _ = written.send(());
                continue;
            }
        };
        let untold = dropped.0.untold.swap(0, Ordering::Relaxed);
        // A line that cannot be written costs that line alone; the panic hook has reported where.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if untold > 0 {
                log(&json!({"log_lines_dropped": untold}).to_string());
            }
            log(&line);
        }));
    }
}
