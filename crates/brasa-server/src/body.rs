//! Bodies of requests: bounded in bytes and in time.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::fields::{Fields, kind};
use crate::state::App;

/// A client that sends fewer bytes than this in a client timeout is too slow.
const LEAST_BYTES: usize = 1024;

impl FromRequest<App> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let bytes = read_bounded(request, app.options.max_body_bytes, app.options.client_timeout).await?;
        // Nesting is bounded by the reader itself.
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(map)) => Ok(Self::new(map)),
            Ok(other) => Err(ApiError::invalid(format!("the body is {}, expected an object", kind(&other)))),
            Err(error) => {
                let message = format!("the body is no JSON: {error}");
                Err(ApiError { code: "invalid_json", ..ApiError::invalid(message) })
            }
        }
    }
}

/// Reads the body of a request, of at most `limit` bytes. A body that is declared to be larger is not read at all.
///
/// # Errors
///
/// 413 for a body that is too large, 408 for a client that is too slow.
pub(crate) async fn read_bounded(request: Request, limit: usize, patience: Duration) -> Result<Vec<u8>> {
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if declared.and_then(|bytes| bytes.parse::<u64>().ok()).is_some_and(|bytes| bytes > limit as u64) {
        return Err(ApiError::too_large(limit));
    }
    read(request.into_body(), limit, patience).await
}

/// Reads a body. Each `patience` has to bring the body's end, or a kilobyte.
async fn read(mut body: Body, limit: usize, patience: Duration) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let wanted = bytes.len() + LEAST_BYTES;
        let part = async {
            while bytes.len() < wanted {
                let body = std::pin::Pin::new(&mut body);
                let mut body = body;
                let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await;
                let Some(frame) = frame else { return Ok(true) };
                let frame =
                    frame.map_err(|error| ApiError::invalid(format!("the body broke off: {error}")))?;
                let Ok(data) = frame.into_data() else { continue };
                if bytes.len() + data.len() > limit {
                    return Err(ApiError::too_large(limit));
                }
                bytes.extend_from_slice(&data);
            }
            Ok(false)
        };
        match tokio::time::timeout(patience, part).await {
            Ok(Ok(true)) => return Ok(bytes),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(ApiError::too_slow()),
        }
    }
}
