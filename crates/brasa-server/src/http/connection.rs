//! Connections with limits: a client that sends no first byte, or reads nothing, is dropped.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

/// Longest wait for the rest of an unread body before its connection closes.
const LINGERING: Duration = Duration::from_secs(2);

/// Instructions of a request to its connection: an extension of each request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hold(Arc<Said>);

#[derive(Debug, Default)]
struct Said {
    unread: AtomicBool,
    cut: Notify,
}

impl Hold {
    /// Records that a part of a body stays unread. The server then reads the data that still arrives before it closes the
    /// connection: closing with unread bytes may destroy the answer on its way.
    pub fn leave_unread(&self) {
        self.0.unread.store(true, Ordering::Relaxed);
    }

    fn is_unread(&self) -> bool {
        self.0.unread.load(Ordering::Relaxed)
    }

    /// Ends the connection at once.
    pub fn cut(&self) {
        self.0.cut.notify_one();
    }

    /// Waits until [`cut`](Self::cut) is called.
    pub async fn cut_off(&self) {
        self.0.cut.notified().await;
    }
}

/// A connection with time limits for its first byte and for writes that make no progress.
///
/// Pauses between the first byte and the end of a request's head are bounded by the HTTP parser, pauses in a body by the body's
/// reader.
pub(crate) struct TimedStream<S> {
    stream: S,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
    heard: bool,
    is_stuck: bool,
    hold: Hold,
    /// True once the server has closed its sending side.
    is_shut: bool,
}

impl<S> TimedStream<S> {
    /// A connection that has just been accepted.
    pub fn new(stream: S, patience: Duration, hold: Hold) -> Self {
        let timer = Box::pin(sleep(patience));
        Self { stream, patience, timer, heard: false, is_stuck: false, hold, is_shut: false }
    }

    /// The outcome of a write. A write without progress for too long becomes an error.
    fn bounded<T>(&mut self, outcome: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.is_stuck = false;
            return outcome;
        }
        if !self.is_stuck {
            self.is_stuck = true;
            self.timer.as_mut().reset(Instant::now() + self.patience);
        }
        self.timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> TimedStream<S> {
    /// Reads and discards arriving data until the client closes its side, or for a limited time.
    fn forget_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [0; 8192];
        while self.timer.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.heard {
            return outcome;
        }
        if outcome.is_ready() {
            self.heard = true;
            return outcome;
        }
        self.timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.bounded(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(outcome, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut {
            let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
            let outcome = self.bounded(outcome, context);
            if !matches!(outcome, Poll::Ready(Ok(()))) || !self.hold.is_unread() {
                return outcome;
            }
            self.is_shut = true;
            let patience = self.patience.min(LINGERING);
            self.timer.as_mut().reset(Instant::now() + patience);
        }
        self.forget_rest(context).map(Ok)
    }
}
