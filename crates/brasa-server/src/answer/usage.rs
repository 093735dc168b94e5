//! Token counts of an answer, in the form of each API.

use brasa::Metrics;
use serde_json::{Value, json};

use crate::http::error::Result;
use crate::request::fields::Fields;

/// Token counts of all choices of a request.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_field_names, reason = "the names of OpenAI's API")]
pub(crate) struct Usage {
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    pub reasoning_tokens: usize,
}

impl Usage {
    /// Adds a choice. The prompt counts once for all of its choices: `first` marks the first one.
    pub fn add(&mut self, cost: &Metrics, first: bool) {
        if first {
            self.prompt_tokens += cost.prompt_tokens;
            self.cached_tokens += cost.cached_tokens;
        }
        self.completion_tokens += cost.generated_tokens;
    }

    /// The counts in OpenAI's form.
    pub fn openai(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        })
    }

    /// The counts in the form of OpenAI's responses.
    pub fn responses(&self) -> Value {
        json!({
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        })
    }

    /// The counts in Anthropic's form: tokens from the cache are not counted as input.
    pub fn anthropic(&self) -> Value {
        json!({
            "input_tokens": self.prompt_tokens - self.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached_tokens,
            "output_tokens": self.completion_tokens,
        })
    }
}

/// Times of one generation under llama.cpp's names.
pub(crate) fn timings(cost: &Metrics) -> Value {
    let computed = cost.prompt_tokens - cost.cached_tokens;
    let prompt_ms = cost.prefill_time.as_secs_f64() * 1e3;
    let predicted_ms = cost.decode_time.as_secs_f64() * 1e3;
    let each = |ms: f64, tokens: usize| if tokens > 0 { ms / tokens as f64 } else { 0.0 };
    let mut timings = json!({
        "cache_n": cost.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": each(prompt_ms, computed),
        "prompt_per_second": cost.prefill_tokens_per_second(),
        "predicted_n": cost.generated_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": each(predicted_ms, cost.generated_tokens.saturating_sub(1)),
        "predicted_per_second": cost.decode_tokens_per_second(),
    });
    if cost.drafted_tokens > 0 {
        timings["draft_n"] = cost.drafted_tokens.into();
        timings["draft_n_accepted"] = cost.accepted_tokens.into();
    }
    timings
}

/// Which progress and timings the parts of a stream report, in llama.cpp's form.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Telling {
    /// True if each part of an answer has the timings up to it.
    pub timings: bool,
    /// True if parts without text report how much of the prompt is computed.
    pub progress: bool,
}

impl Telling {
    /// Reads `timings_per_token` and `return_progress`. Answers that are not streamed always have timings.
    pub fn read(fields: &mut Fields) -> Result<Self> {
        let timings = fields.switch("timings_per_token")?.unwrap_or(false);
        let progress = fields.switch("return_progress")?.unwrap_or(false);
        Ok(Self { timings, progress })
    }

    /// Adds the timings to a part of an answer, if requested.
    pub fn add_timings(self, part: &mut Value, cost: &Metrics) {
        if self.timings {
            part["timings"] = timings(cost);
        }
    }
}

/// The progress of a prompt, under llama.cpp's names.
pub(crate) fn progress(cost: &Metrics) -> Value {
    json!({
        "total": cost.prompt_tokens,
        "cache": cost.cached_tokens,
        "processed": cost.prefilled_tokens,
        "time_ms": cost.prefill_time.as_secs_f64() * 1e3,
    })
}
