//! The access log: one JSON object for each request, without prompts and answers. Also request ids, and the record that handlers
//! fill.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use serde_json::{Map, Value, json};

use crate::http::budget::Held;
use crate::http::error::ApiError;
use crate::http::ids;
use crate::state::App;

/// The header with the id of a request.
const REQUEST_ID: &str = "x-request-id";

/// Longest request id that is accepted from a client, in bytes.
const LONGEST_ID: usize = 128;

/// Data about a request for its line in the log, besides path and status. Handlers fill this shared handle.
#[derive(Clone, Default)]
pub(crate) struct Record {
    entries: Arc<Mutex<Map<String, Value>>>,
    /// Keeps the account of the memory of the request's values.
    pub memory: Held,
}

impl Record {
    /// Adds or replaces an entry.
    pub fn set(&self, name: &str, value: impl Into<Value>) {
        self.lock().insert(name.to_owned(), value.into());
    }

    fn lock(&self) -> MutexGuard<'_, Map<String, Value>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The id of a request.
#[derive(Clone)]
pub(crate) struct RequestId(pub String);

/// Gives a request an id, counts it, refuses it while the server shuts down, and logs it when its answer has been sent.
pub(crate) async fn watch(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let record = Record::default();
    let mut entry = Entry {
        app: Arc::clone(&app),
        record: record.clone(),
        id: id.clone(),
        method: request.method().to_string(),
        path: request.uri().path().chars().take(LONGEST_ID).collect(),
        started: Instant::now(),
        status: None,
        bytes: 0,
        is_complete: false,
    };
    app.lifecycle.enter();
    request.extensions_mut().insert(record);
    request.extensions_mut().insert(RequestId(id.clone()));
    let is_anthropic = request.uri().path().starts_with("/v1/messages") || wants_anthropic(request.headers());
    let response = if app.lifecycle.is_draining() {
        ApiError::unavailable("shutting_down", "the server is shutting down").into_response()
    } else {
        next.run(request).await
    };
    let mut response = if is_anthropic { in_anthropic_form(response, &id) } else { response };
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    entry.status = Some(response.status());
    // Nobody asks for the body of an answer to HEAD, and some answers have none.
    entry.is_complete = entry.method == "HEAD" || response.body().is_end_stream();
    if let Some(error) = response.extensions().get::<ApiError>() {
        entry.record.set("error", error.code);
    }
    response.map(|body| Body::new(Watched { body, entry }))
}

/// True if a client uses Anthropic's form.
pub(crate) fn wants_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// Converts an error to the form of Anthropic's API; other answers are unchanged.
fn in_anthropic_form(response: Response, id: &str) -> Response {
    let Some(error) = response.extensions().get::<ApiError>().cloned() else { return response };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(error.anthropic_body(Some(id)).to_string()))
}

fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_plain = |id: &&str| {
        !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    given.filter(is_plain).map_or_else(|| ids::name("req_"), str::to_owned)
}

/// A line of the log that is being written. Dropping it writes the line.
struct Entry {
    app: App,
    record: Record,
    id: String,
    method: String,
    path: String,
    started: Instant,
    status: Option<StatusCode>,
    bytes: u64,
    is_complete: bool,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut line = Map::new();
        let status = self.status.map(|status| status.as_u16());
        line.insert("time".into(), ids::unix_seconds().into());
        line.insert("id".into(), self.id.as_str().into());
        line.insert("method".into(), self.method.as_str().into());
        line.insert("path".into(), self.path.as_str().into());
        line.insert("status".into(), json!(status));
        line.insert("ms".into(), json!((self.started.elapsed().as_secs_f64() * 1e4).round() / 10.0));
        line.insert("bytes".into(), self.bytes.into());
        if !self.is_complete {
            line.insert("client_gone".into(), true.into());
        }
        line.extend(std::mem::take(&mut *self.record.lock()));
        (self.app.options.log)(&Value::Object(line).to_string());
        self.app.metrics.saw_request(status);
        self.app.lifecycle.leave();
    }
}

/// A body that reports when it has been sent or its client has gone.
struct Watched {
    body: Body,
    entry: Entry,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                self.entry.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                self.entry.is_complete = self.body.is_end_stream();
            }
            Poll::Ready(None) => self.entry.is_complete = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
