//! Streams of server-sent events.
//!
//! A task writes events into a bounded channel; the body of the answer is the channel's other end. A client that goes away
//! drops the body, and then [`Events::send`] fails, so the task ends and its generation is cancelled.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use http_body::Frame;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Interval;

use crate::error::ApiError;
use crate::reply;

/// Events that may wait for a client. More would only hide that it is slow: the engine buffers too.
const WAITING: usize = 16;

/// The signs of life of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pings {
    /// A comment, which clients ignore.
    Comment,
    /// Anthropic's event.
    Anthropic,
}

/// The writing end of a stream.
pub(crate) struct Events(mpsc::Sender<Bytes>);

/// The client has gone.
#[derive(Debug)]
pub(crate) struct Gone;

impl Events {
    /// Sends a JSON value as `data:`.
    pub async fn send(&self, value: &Value) -> Result<(), Gone> {
        self.write(format!("data: {value}\n\n")).await
    }

    /// Sends a JSON value with the name of its event.
    pub async fn send_named(&self, event: &str, value: &Value) -> Result<(), Gone> {
        self.write(format!("event: {event}\ndata: {value}\n\n")).await
    }

    /// Sends the end mark of OpenAI's streams.
    pub async fn done(&self) -> Result<(), Gone> {
        self.write("data: [DONE]\n\n".to_owned()).await
    }

    /// Waits until the client has gone.
    pub async fn gone(&self) {
        self.0.closed().await;
    }

    async fn write(&self, text: String) -> Result<(), Gone> {
        self.0.send(Bytes::from(text)).await.map_err(|_| Gone)
    }
}

/// A stream as an answer, and the end where its events are written.
pub(crate) fn stream(pings: Pings, every: Duration) -> (Events, Response) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let mut timer = tokio::time::interval(every);
    timer.reset();
    let body = Body::new(EventBody { receiver, pings, timer });
    let mut response = reply::with_type(StatusCode::OK, "text/event-stream", body);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx would keep events until a buffer is full.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    (Events(sender), response)
}

struct EventBody {
    receiver: mpsc::Receiver<Bytes>,
    pings: Pings,
    timer: Interval,
}

impl HttpBody for EventBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(event) = self.receiver.poll_recv(context) {
            self.timer.reset();
            return Poll::Ready(event.map(|event| Ok(Frame::data(event))));
        }
        self.timer.poll_tick(context).map(|_| {
            let ping: &'static [u8] = match self.pings {
                Pings::Comment => b": ping\n\n",
                Pings::Anthropic => b"event: ping\ndata: {\"type\": \"ping\"}\n\n",
            };
            Some(Ok(Frame::data(Bytes::from_static(ping))))
        })
    }
}

/// Writes a stream by a task of its own. If the task panics, the client gets an error at the stream's end.
pub(crate) fn spawn<F>(events: Events, work: impl FnOnce(Arc<Events>) -> F)
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let events = Arc::new(events);
    let task = tokio::spawn(work(Arc::clone(&events)));
    tokio::spawn(async move {
        if let Err(error) = task.await {
            // The client may have gone too.
            let _ = events.send(&ApiError::from(error).body()).await;
        }
    });
}

/// The next thing that a generation does; ends at once if the client goes away, also while nothing happens.
pub(crate) async fn unless_gone<T>(events: &Events, next: impl Future<Output = T>) -> Result<T, Gone> {
    tokio::select! {
        biased;
        () = events.gone() => Err(Gone),
        next = next => Ok(next),
    }
}
