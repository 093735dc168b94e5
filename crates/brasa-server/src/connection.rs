//! Connections that cannot be held for nothing: a client that sends no first byte, or reads nothing, is dropped.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A connection with a bound on silence at its beginning and on every write that does not proceed.
///
/// Pauses between the first byte and the end of a request's head are bounded by the HTTP parser, pauses in a body by its
/// reader.
pub(crate) struct TimedStream<S> {
    stream: S,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
    heard: bool,
    is_stuck: bool,
}

impl<S> TimedStream<S> {
    /// A connection that has just been accepted.
    pub fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, timer: Box::pin(sleep(patience)), heard: false, is_stuck: false }
    }

    /// The outcome of a write; one that makes no progress for too long fails.
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

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
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
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(outcome, context)
    }
}
