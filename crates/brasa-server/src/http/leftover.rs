//! The unread bodies of requests that are answered early: refusals by path, method, key, origin or size.
//!
//! The unread rest of a body precedes the next request on its connection. A short rest is read and discarded. For a long one the
//! answer has `connection: close`, so that the client does not lose its next request.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};

use crate::http::connection::Hold;

/// Most bytes that are read and discarded.
const MOST_BYTES: u64 = 64 << 10;

/// Longest time for which an answer is delayed to read the rest of a body.
const PATIENCE: Duration = Duration::from_millis(500);

/// Reads or gives up the rest of a body before the connection is used again.
pub(crate) async fn check(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let waits_for_leave = parts.headers.contains_key(header::EXPECT);
    let connection = parts.extensions.get::<Hold>().cloned();
    let rest: Arc<Mutex<Rest>> = Arc::default();
    let lent = Lent { body: Some(body), rest: Arc::clone(&rest) };
    let mut response = next.run(Request::from_parts(parts, Body::new(lent))).await;
    let rest = std::mem::take(&mut *rest.lock().unwrap_or_else(PoisonError::into_inner));
    let is_read = match rest {
        Rest::Read => true,
        Rest::Lent => false,
        Rest::Unread(body) => !waits_for_leave && drain(body).await,
    };
    if !is_read {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        if let Some(connection) = connection {
            connection.leave_unread();
        }
    }
    response
}

/// Reads a body to its end; returns false if it is too long or too slow.
async fn drain(mut body: Body) -> bool {
    if body.size_hint().lower() > MOST_BYTES {
        return false;
    }
    let read = async {
        let mut bytes = 0;
        while bytes <= MOST_BYTES {
            match std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, |data| data.len() as u64),
            }
        }
        false
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap_or(false)
}

/// How far the body of a request was read.
#[derive(Default)]
enum Rest {
    /// A handler still holds the body.
    #[default]
    Lent,
    /// The body was read to its end.
    Read,
    /// The body was not read; its rest.
    Unread(Body),
}

/// A body that returns its unread rest when it is dropped before its end.
struct Lent {
    body: Option<Body>,
    rest: Arc<Mutex<Rest>>,
}

impl Lent {
    fn give_back(&self, rest: Rest) {
        *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = rest;
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = self.body.as_mut() else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) {
            self.body = None;
            self.give_back(Rest::Read);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            let rest = if body.is_end_stream() { Rest::Read } else { Rest::Unread(body) };
            self.give_back(rest);
        }
    }
}
