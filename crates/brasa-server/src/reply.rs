//! Answers that are one JSON object.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::Value;

/// A JSON answer.
pub(crate) fn json(status: StatusCode, value: &Value) -> Response {
    with_type(status, "application/json", value.to_string())
}

/// A JSON answer of status 200.
pub(crate) fn ok(value: &Value) -> Response {
    json(StatusCode::OK, value)
}

/// An answer of a given content type.
pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
