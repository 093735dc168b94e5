//! The thread that writes the log.
//!
//! The reader of the log may stop reading, and then a write waits for ever. So lines are queued for one thread that does
//! nothing else. Lines that find the queue full are dropped and counted, and the next line that is written is preceded by one
//! that tells their number.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::json;

use crate::options::Log;

/// Lines that may wait for the writer.
const WAITING: usize = 4096;

/// Longest wait for the last lines when the server ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// Lines that were dropped because the log was not read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dropped(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Since the start.
    total: AtomicU64,
    /// Since the last line that told of them.
    untold: AtomicU64,
}

impl Dropped {
    /// Lines that were dropped since the start.
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
    /// Asks for an acknowledgement once everything before it has been written.
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
    /// The system's, if it refuses a thread.
    pub fn start(log: Log) -> std::io::Result<Self> {
        let (queue, lines) = sync_channel(WAITING);
        let dropped = Dropped::default();
        let told = dropped.clone();
        std::thread::Builder::new().name("brasa-log".into()).spawn(move || write(&lines, &*log, &told))?;
        Ok(Self { queue, dropped })
    }

    /// Takes lines without ever waiting.
    pub fn log(&self) -> Log {
        let (queue, dropped) = (self.queue.clone(), self.dropped.clone());
        Arc::new(move |line| {
            if queue.try_send(Message::Line(line.to_owned())).is_err() {
                dropped.add();
            }
        })
    }

    /// The lines that were dropped.
    pub fn dropped(&self) -> Dropped {
        self.dropped.clone()
    }

    /// Waits until the lines so far have been written, but not for long.
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
