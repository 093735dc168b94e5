//! The cost of a request.

use std::time::Duration;

/// Times and counts of one request; while it runs, up to its last fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose keys and values were already cached.
    pub cached_tokens: usize,
    /// Prompt tokens with keys and values so far, cached or computed; all of them once a token has been drawn.
    pub prefilled_tokens: usize,
    /// Tokens generated, the stopping token not counted.
    pub generated_tokens: usize,
    /// Tokens that were guessed ahead and computed.
    pub drafted_tokens: usize,
    /// Tokens among `drafted_tokens` that were drawn, and so needed no step of their own.
    pub accepted_tokens: usize,
    /// Number of times that the request gave its pages to others and was computed again.
    pub preemptions: usize,
    /// Time spent waiting for a place, until the request was served for the first time.
    pub queue_time: Duration,
    /// Time from the first service of the request to its first sampled token, or to its last report if no token was sampled yet.
    pub prefill_time: Duration,
    /// Time from the first sampled token to the last, pauses for a slow reader included.
    pub decode_time: Duration,
    /// Time from submission to the first sampled token.
    pub first_token_time: Duration,
}

impl Metrics {
    /// Prompt tokens computed per second.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.prefill_time)
    }

    /// Tokens decoded per second. The first token is not counted, since its time is part of prefill.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode_time)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}
