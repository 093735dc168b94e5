//! Streams of server-sent events.
//!
//! A task writes events into a bounded channel; the body of the answer is the channel's other end. A client that goes away
//! drops the body, and then [`Events::send`] fails, so the task ends and its generation is cancelled.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use brasa::tokenizer::exact_json;
use http_body::Frame;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Interval, timeout};

use crate::http::pool::Scope;
use crate::http::reply;

/// Most events that wait for a client. More would only hide a slow client, since the engine has a buffer too.
const WAITING: usize = 16;

/// The form of the pings that keep a stream alive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pings {
    /// A comment, which clients ignore.
    Comment,
    /// A `ping` event, as in Anthropic's API.
    Anthropic,
}

/// The writing end of a stream of events.
pub(crate) struct Events {
    sender: mpsc::Sender<Bytes>,
    /// Dropped with the body: when the stream has been sent or its client has gone.
    body: Weak<()>,
}

/// The error for a client that has gone.
#[derive(Debug)]
pub(crate) struct Gone;

impl Events {
    /// Sends a JSON value as `data:`.
    pub async fn send(&self, value: &Value) -> Result<(), Gone> {
        self.write(format!("data: {value}\n\n")).await
    }

    /// Sends a JSON value with the name of its event. Numbers keep all the digits that
    /// [`exact_value`](brasa::tokenizer::exact_value) kept.
    pub async fn send_named(&self, event: &str, value: &Value) -> Result<(), Gone> {
        self.write(format!("event: {event}\ndata: {}\n\n", exact_json(value))).await
    }

    /// Sends the end mark of OpenAI's streams.
    pub async fn done(&self) -> Result<(), Gone> {
        self.write("data: [DONE]\n\n".to_owned()).await
    }

    /// Waits until the client has gone.
    pub async fn gone(&self) {
        self.sender.closed().await;
    }

    async fn write(&self, text: String) -> Result<(), Gone> {
        self.sender.send(Bytes::from(text)).await.map_err(|_| Gone)
    }
}

/// A stream as an answer, and its writing end. A ping is sent `every` so often if no event is.
pub(crate) fn stream(pings: Pings, every: Duration) -> (Events, Response) {
    let (sender, receiver) = mpsc::channel(WAITING);
    // Handlers may be busy when the timer rings; the threads that answer are not.
    let scope = Scope::current();
    let _answering = scope.as_ref().map(|scope| scope.answering.enter());
    let mut timer = tokio::time::interval(every);
    timer.reset();
    let token = Arc::new(());
    let events = Events { sender, body: Arc::downgrade(&token) };
    let body = Body::new(EventBody { receiver, pings, timer, _token: token });
    let mut response = reply::with_type(StatusCode::OK, "text/event-stream", body);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx would keep events until a buffer is full.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    (events, response)
}

struct EventBody {
    receiver: mpsc::Receiver<Bytes>,
    pings: Pings,
    timer: Interval,
    _token: Arc<()>,
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

/// Time in which a client may read the last events of a stream that had to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Writes a stream in a task of its own. If the task panics or has to end, the stream ends with an error event.
pub(crate) fn spawn<F>(events: Events, work: impl FnOnce(Arc<Events>) -> F)
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let events = Arc::new(events);
    let work = work(Arc::clone(&events));
    let Some(scope) = Scope::current() else {
        tokio::spawn(work);
        return;
    };
    let mut task = scope.spawn(work);
    let end = scope.clone();
    scope.spawn(async move {
        let error = tokio::select! {
            outcome = &mut task => match outcome {
                Ok(_) => return,
                Err(error) => error.into(),
            },
            error = end.ended() => error,
        };
        task.abort();
        // The client may have gone too, or read slowly.
        let _ = timeout(FAREWELL, events.send(&error.body())).await;
        let body = events.body.clone();
        drop(events);
        tokio::time::sleep(FAREWELL).await;
        if body.strong_count() > 0 {
            end.connection.cut();
        }
    });
}

/// Waits for `next`, or fails as soon as the client has gone.
pub(crate) async fn unless_gone<T>(events: &Events, next: impl Future<Output = T>) -> Result<T, Gone> {
    tokio::select! {
        biased;
        () = events.gone() => Err(Gone),
        next = next => Ok(next),
    }
}
