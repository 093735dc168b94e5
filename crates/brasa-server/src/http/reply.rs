//! Answers that are one JSON object.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use brasa::tokenizer::exact_json;
use serde_json::Value;

/// An answer with a JSON body.
pub(crate) fn json(status: StatusCode, value: &Value) -> Response {
    with_type(status, "application/json", value.to_string())
}

/// An answer of status 200 with a JSON body.
pub(crate) fn ok(value: &Value) -> Response {
    json(StatusCode::OK, value)
}

/// An answer of status 200 with a JSON body, in which numbers keep all the digits that [`exact_value`] kept.
///
/// [`exact_value`]: brasa::tokenizer::exact_value
pub(crate) fn exact(value: &Value) -> Response {
    with_type(StatusCode::OK, "application/json", exact_json(value))
}

/// An answer with a body of the given content type.
pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
