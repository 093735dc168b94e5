//! A child process that answers lines with lines.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::protocol::{Event, MOST_LINE_BYTES, NAME, Reply};
use crate::BackendError;

/// The program that the child runs.
const SCRIPT: &str = include_str!("child.py");

/// Most lines of the child that wait to be read. If more come, the child blocks, as it may be far faster than its reader.
const MOST_UNREAD: usize = 64;

/// Bytes that are kept of the end of the child's standard error.
const STDERR_BYTES: usize = 2048;

/// Time for a child to end by itself after it was asked to, or after it closed its standard output.
const GRACE: Duration = Duration::from_secs(2);

/// A running child and the lines to and from it. One owner at a time sends requests. A reply belongs to the current request or to
/// an earlier one that was given up.
pub(super) struct Process {
    requests: Requests,
    replies: Receiver<Result<Reply, String>>,
    child: Arc<Guard>,
    stderr: Arc<StderrTail>,
    next_id: u64,
}

/// Sends lines to the child's standard input; sending never blocks.
#[derive(Clone)]
pub(super) struct Requests(Sender<String>);

/// The child, killed when its last owner lets go of it.
pub(super) struct Guard(Mutex<Child>);

/// The end of what the child wrote to its standard error.
struct StderrTail {
    bytes: Mutex<Vec<u8>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Process {
    /// Starts `python` (program and arguments) with the script.
    ///
    /// # Errors
    ///
    /// The system's error if there is no such program.
    pub(super) fn start(python: &[OsString]) -> io::Result<Self> {
        let [program, arguments @ ..] = python else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no Python program is named"));
        };
        let mut child = Command::new(program)
            .args(arguments)
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let child = Arc::new(Guard(Mutex::new(child)));
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            unreachable!("all three streams of the child are pipes")
        };
        let (requests, lines) = channel();
        let (sender, replies) = sync_channel(MOST_UNREAD);
        spawn("brasa-mlx-lm-in", move || write_lines(stdin, &lines))?;
        spawn("brasa-mlx-lm-out", move || read_replies(stdout, &sender))?;
        let stderr = StderrTail::listen(stderr)?;
        Ok(Self { requests: Requests(requests), replies, child, stderr, next_id: 1 })
    }

    /// Sends a command; returns its id.
    pub(super) fn send(&mut self, command: &str, fields: Map<String, Value>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.requests.send(id, command, fields);
        id
    }

    /// Sends a command and waits for its results.
    ///
    /// # Errors
    ///
    /// The errors of [`receive`](Self::receive), and [`BackendError::Failed`].
    pub(super) fn ask(
        &mut self,
        command: &'static str,
        fields: Map<String, Value>,
        limit: Duration,
    ) -> Result<Map<String, Value>, BackendError> {
        let id = self.send(command, fields);
        match self.receive(id, limit)? {
            Some(Event::Done(results)) => Ok(results),
            Some(Event::Failed(message)) => Err(BackendError::Failed { backend: NAME, message }),
            Some(other) => Err(self.broken(format!("{other:?} in reply to `{command}`"))),
            None => Err(self.late(command, limit)),
        }
    }

    /// The next message of request `id`; `None` if it does not come within `limit`. Replies to earlier requests are skipped.
    ///
    /// # Errors
    ///
    /// [`BackendError::Died`], [`BackendError::Protocol`]: the child is gone.
    pub(super) fn receive(&self, id: u64, limit: Duration) -> Result<Option<Event>, BackendError> {
        let deadline = Instant::now() + limit;
        loop {
            match self.replies.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Ok(reply)) => match reply.id {
                    Some(of) if of == id => return Ok(Some(reply.event)),
                    Some(of) if of < id => {}
                    of => {
                        let of = of.map_or("no request".into(), |of| format!("request {of}"));
                        return Err(self.broken(format!("a reply to {of}, not to {id}: {:?}", reply.event)));
                    }
                },
                Ok(Err(what)) => return Err(self.broken(what)),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(self.death()),
            }
        }
    }

    /// Kills a child that has not answered in time.
    pub(super) fn late(&self, command: &'static str, limit: Duration) -> BackendError {
        self.child.kill();
        BackendError::TimedOut { backend: NAME, command, limit, stderr: self.stderr.read() }
    }

    /// Kills a child that has sent a command's `results` in the middle of a text.
    pub(super) fn confused(&self, results: &Map<String, Value>) -> BackendError {
        self.broken(format!("{results:?} within a text"))
    }

    /// Kills a child that has broken the protocol; `what` describes the mistake.
    fn broken(&self, what: String) -> BackendError {
        self.child.kill();
        BackendError::Protocol { backend: NAME, what }
    }

    /// Describes the end of a child that has closed its standard output.
    fn death(&self) -> BackendError {
        let status = if let Some(status) = self.child.wait(GRACE) {
            status.to_string()
        } else {
            self.child.kill();
            "it closed its standard output, and was killed".into()
        };
        BackendError::Died { backend: NAME, status, stderr: self.stderr.read() }
    }

    /// Asks the child to end, and kills it if it does not.
    pub(super) fn quit(mut self) {
        self.send("quit", Map::new());
        // A child that waits for its reader would not see the request.
        drop(self.replies);
        self.child.wait(GRACE);
        self.child.kill();
    }

    pub(super) fn requests(&self) -> &Requests {
        &self.requests
    }

    pub(super) fn child(&self) -> &Arc<Guard> {
        &self.child
    }
}

impl Requests {
    fn send(&self, id: u64, command: &str, fields: Map<String, Value>) {
        let mut request = Map::new();
        request.insert("id".into(), id.into());
        request.insert("command".into(), command.into());
        request.extend(fields);
        // A child that is gone reads nothing; its death is reported where a reply is waited for.
        let _ = self.0.send(format!("{}\n", Value::Object(request)));
    }

    /// Cancels request `id`, which may have ended.
    pub(super) fn cancel(&self, id: u64) {
        self.send(id, "cancel", Map::new());
    }
}

impl Guard {
    /// The child's status, if it ends within `limit`.
    fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.0.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
            match status {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
                _ => return None,
            }
        }
    }

    /// Ends the child, if it runs.
    pub(super) fn kill(&self) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A child that has ended cannot be killed, and both are what is wanted.
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.kill();
    }
}

impl StderrTail {
    fn listen(mut stderr: ChildStderr) -> io::Result<Arc<Self>> {
        let tail = Arc::new(Self { bytes: Mutex::default(), thread: Mutex::default() });
        let kept = Arc::clone(&tail);
        let thread = spawn("brasa-mlx-lm-err", move || {
            let mut part = [0; 1024];
            while let Ok(count @ 1..) = stderr.read(&mut part) {
                let mut bytes = kept.bytes.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.extend_from_slice(&part[..count]);
                let excess = bytes.len().saturating_sub(STDERR_BYTES);
                bytes.drain(..excess);
            }
        })?;
        *tail.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(tail)
    }

    /// The end of the standard error of a child that has ended, from the first whole line that is kept.
    fn read(&self) -> String {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let deadline = Instant::now() + GRACE;
        // A grandchild may hold the pipe open, and is not waited for.
        while thread.as_ref().is_some_and(|it| !it.is_finished()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&bytes);
        let cut = bytes.len() == STDERR_BYTES;
        let lines = text.split_once('\n').filter(|_| cut).map_or(&*text, |(_, lines)| lines);
        lines.trim().to_owned()
    }
}

fn write_lines(mut stdin: ChildStdin, lines: &Receiver<String>) {
    // When the last sender is gone the pipe closes, which ends the child.
    while let Ok(line) = lines.recv() {
        if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn read_replies(stdout: ChildStdout, replies: &SyncSender<Result<Reply, String>>) {
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut stdout).take(MOST_LINE_BYTES as u64);
        match limited.read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        let reply = match line.strip_suffix(b"\n") {
            Some(line) => Reply::read(line),
            None if line.len() == MOST_LINE_BYTES => {
                Err(format!("a line of more than {MOST_LINE_BYTES} bytes"))
            }
            // The child died within a line.
            None => return,
        };
        let last = reply.is_err();
        if replies.send(reply).is_err() || last {
            return;
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(work)
}
