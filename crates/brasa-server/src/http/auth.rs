//! Authorisation: the keys of requests, compared in constant time.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::http::error::ApiError;

/// Paths that need no key: the health checks, and the page, which asks its user for the key.
const PUBLIC: &[&str] = &["/health", "/v1/health", "/ping", "/", "/index.html"];

/// The beginning of the paths of the page's files, which need no key.
const PUBLIC_FOLDER: &str = "/assets/";

/// The keys of a server, as digests, so that all comparisons have equal length.
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    /// The digests of `keys`.
    pub fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| Sha256::digest(key.as_bytes()).into()).collect())
    }

    /// True if requests need a key.
    pub fn are_needed(&self) -> bool {
        !self.0.is_empty()
    }

    /// True if `key` is one of the keys. The time of the comparison does not depend on the keys.
    pub fn contain(&self, key: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let fits = self.0.iter().fold(subtle::Choice::from(0), |found, known| found | known.ct_eq(&digest));
        fits.into()
    }
}

/// Refuses requests without a key.
pub(crate) async fn check(State(keys): State<Arc<Keys>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_public = PUBLIC.contains(&path) || path.starts_with(PUBLIC_FOLDER);
    if is_public || !keys.are_needed() {
        return next.run(request).await;
    }
    match key(request.headers()) {
        Some(key) if keys.contain(key) => next.run(request).await,
        Some(_) => ApiError::unauthorized("the key is wrong").into_response(),
        None => {
            let message = "a key is needed: `Authorization: Bearer KEY` or `x-api-key: KEY`";
            ApiError::unauthorized(message).into_response()
        }
    }
}

/// The key in the headers of a request; `None` if there is none.
fn key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()))
}
