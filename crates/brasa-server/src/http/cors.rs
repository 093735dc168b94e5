//! Requests from web pages of other origins.
//!
//! A browser sends some requests to any server without a preflight, so a page on the internet could use a server on the loopback
//! interface. Every request that a page of another origin makes is therefore refused, unless its origin is allowed.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::http::error::ApiError;
use crate::state::App;

/// Answers preflights, refuses pages of origins that are not allowed, and adds CORS headers to answers for allowed ones.
pub(crate) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(origin) = request.headers().get(header::ORIGIN).cloned() else { return next.run(request).await };
    if is_own(&origin, request.headers()) {
        return next.run(request).await;
    }
    let allowed = &app.options.cors_origins;
    if !allowed.iter().any(|known| known == "*" || known.as_bytes() == origin.as_bytes()) {
        let message = "pages of other origins may not use this server; --cors-origin allows one";
        return ApiError::forbidden("origin_not_allowed", message).into_response();
    }
    let asks_first = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if asks_first {
        let wanted = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        preflight(wanted)
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id"));
    response
}

fn preflight(wanted: Option<HeaderValue>) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    if let Some(wanted) = wanted {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted);
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

/// True for the server's own page: `origin` is the host to which the request is sent.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    matches!(
        (host, origin),
        (Some(host), Some(("http" | "https", origin))) if host.eq_ignore_ascii_case(origin)
    )
}
