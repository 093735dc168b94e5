//! Bodies of requests: bounded in bytes and in time.

use std::pin::Pin;
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use brasa::grammar::Literals;
use serde_json::Value;
use tokio::time::Instant;

use crate::http::budget::Account;
use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::http::pool::{self, Lane};
use crate::request::fields::{Fields, kind};
use crate::request::json;
use crate::state::App;

/// Bytes a second that a body must bring on average, after an initial time in which a client may be silent.
const LEAST_RATE: usize = 64 << 10;

/// Most bytes of values per byte of the largest body.
const MOST_GROWTH: usize = 8;

/// Least limit for the bytes of a body's values, however small the limit of bodies is.
const LEAST_VALUES: usize = 1 << 20;

/// Most bytes of a body that is parsed on the thread that received it. Longer ones are parsed by the pool.
const SHORT: usize = 64 << 10;

impl FromRequest<App> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let most = app.options.max_body_bytes;
        let record = request.extensions().get::<Record>().cloned();
        let mut account = app.budget.account();
        let bytes = read_bounded(request, most, app.options.client_timeout, &mut account).await?;
        let values = most.saturating_mul(MOST_GROWTH).max(LEAST_VALUES);
        let is_short = bytes.len() <= SHORT;
        let parse = move || {
            let value = json::read(&bytes, values, &mut account);
            let literals = Literals::of(&bytes);
            account.shrink(bytes.len());
            Ok((value, literals, account))
        };
        let (value, literals, account) =
            if is_short { parse()? } else { pool::blocking(Lane::LongTexts, parse).await? };
        if let Some(record) = record {
            record.memory.hold(account);
        }
        match value? {
            Value::Object(map) => {
                let fields = Self::with_literals(map, literals);
                Ok(fields.with_defaults(app.options.request_defaults.clone()))
            }
            other => Err(ApiError::invalid(format!("the body is {}, expected an object", kind(&other)))),
        }
    }
}

/// Reads the body of a request, of at most `limit` bytes, and adds them to `account`. A body that is declared to be larger is not
/// read at all.
///
/// # Errors
///
/// 413 for a body that is too large, 408 for a client that is too slow, 503 if the account cannot grow.
pub(crate) async fn read_bounded(
    request: Request,
    limit: usize,
    patience: Duration,
    account: &mut Account,
) -> Result<Vec<u8>> {
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if declared.and_then(|bytes| bytes.parse::<u64>().ok()).is_some_and(|bytes| bytes > limit as u64) {
        return Err(ApiError::too_large(limit));
    }
    let (started, mut body, mut bytes) = (Instant::now(), request.into_body(), Vec::new());
    loop {
        // Neither silence nor slowness holds a connection for long.
        let slowest = Duration::from_secs_f64(bytes.len() as f64 / LEAST_RATE as f64);
        let deadline = (started + patience + slowest).min(Instant::now() + patience);
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let Ok(frame) = tokio::time::timeout_at(deadline, frame).await else {
            return Err(ApiError::too_slow());
        };
        let Some(frame) = frame else { return Ok(bytes) };
        let frame = frame.map_err(|error| ApiError::invalid(format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(ApiError::too_large(limit));
        }
        account.grow(data.len())?;
        bytes.extend_from_slice(&data);
    }
}
