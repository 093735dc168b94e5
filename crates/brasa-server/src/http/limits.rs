//! Limits on the rate of requests from one address.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::http::error::ApiError;

/// The address of the client, as an extension of its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub SocketAddr);

/// Number of requests after which buckets of silent addresses are dropped.
const SWEEP_EVERY: usize = 1000;

/// Silence after which the bucket of an address may be dropped. It is full again by then.
const SILENCE: Duration = Duration::from_mins(5);

/// A token bucket for each address, which holds a minute's requests and fills evenly.
pub(crate) struct RateLimiter {
    per_minute: f64,
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    by_address: HashMap<IpAddr, (f64, Instant)>,
    requests: usize,
}

impl RateLimiter {
    /// A limiter for `per_minute` requests a minute from each address.
    pub fn new(per_minute: u32) -> Self {
        Self { per_minute: f64::from(per_minute), buckets: Mutex::default() }
    }

    /// Counts a request. Fails with the seconds to wait if it comes too early.
    pub fn take(&self, address: IpAddr, now: Instant) -> Result<(), u32> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.requests += 1;
        if buckets.requests.is_multiple_of(SWEEP_EVERY) {
            buckets.by_address.retain(|_, (_, seen)| now.duration_since(*seen) < SILENCE);
        }
        let (tokens, seen) = buckets.by_address.entry(address).or_insert((self.per_minute, now));
        let filled = now.duration_since(*seen).as_secs_f64() * self.per_minute / 60.0;
        *tokens = (*tokens + filled).min(self.per_minute);
        *seen = now;
        if *tokens >= 1.0 {
            *tokens -= 1.0;
            Ok(())
        } else {
            Err(((1.0 - *tokens) * 60.0 / self.per_minute).ceil() as u32)
        }
    }
}

/// Refuses requests from addresses that exceed the limit.
pub(crate) async fn check(
    State(limiter): State<Arc<Option<RateLimiter>>>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
    if let (Some(limiter), Some(address)) = (&*limiter, peer)
        && let Err(seconds) = limiter.take(address, Instant::now())
    {
        return ApiError::too_many("too many requests from this address", seconds).into_response();
    }
    next.run(request).await
}
