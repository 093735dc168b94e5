//! Counters and histograms, under the names that dashboards for llama.cpp and vLLM use.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brasa::engine::EngineStats;
use brasa::{Encoder, Model, Transcriber};
use serde_json::{Value, json};

use crate::http::log_writer::Dropped;

/// Upper bounds of the buckets of histograms in seconds, as vLLM has them for the time to the first token.
const SECONDS: [f64; 18] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0];

/// Counters of a server.
pub(crate) struct Metrics {
    requests: AtomicU64,
    failures: AtomicU64,
    unknown_fields: AtomicU64,
    dropped_lines: Dropped,
    models: Mutex<BTreeMap<String, Totals>>,
}

/// Counters of one model.
#[derive(Clone, Default)]
struct Totals {
    prompt_tokens: u64,
    cached_tokens: u64,
    generated_tokens: u64,
    prompt_seconds: f64,
    decode_seconds: f64,
    /// Finished generations by the reason of their end.
    finished: BTreeMap<&'static str, u64>,
    preemptions: u64,
    /// Seconds of transcribed sound.
    audio_seconds: f64,
    first_token: Histogram,
    between_tokens: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
}

/// A cumulative histogram of seconds.
#[derive(Clone, Default)]
struct Histogram {
    counts: [u64; SECONDS.len()],
    count: u64,
    sum: f64,
}

/// A metric: its name, its description, and a function that reads it.
type Named<T> = (&'static str, &'static str, fn(&Totals) -> T);

/// A metric of an engine: its name, its type, its description, and a function that reads it.
type NamedState = (&'static str, &'static str, &'static str, fn(&EngineStats) -> f64);

/// A histogram: its name, its description, and a function that reads it.
type NamedHistogram = (&'static str, &'static str, fn(&Totals) -> &Histogram);

/// The present activity and memory of one model.
pub(crate) struct Now {
    pub model: String,
    pub stats: EngineStats,
    pub memory: Memory,
}

/// Memory of a model on its device: pairs of a part's name and its bytes.
pub(crate) struct Memory(Vec<(&'static str, u64)>);

impl Memory {
    /// Memory of `model` by part: weights and the present pages of keys and values; for a draft model its weights and most pages.
    pub fn of(model: &Model, stats: &EngineStats) -> Self {
        let mut parts = vec![("weights", model.weight_bytes()), ("cache", stats.cache_bytes)];
        if let Some(draft) = model.draft_model() {
            parts.extend([("draft_weights", draft.weight_bytes), ("draft_cache_limit", draft.cache_bytes)]);
        }
        Self(parts)
    }

    /// Memory of a text encoder: its weights.
    pub fn of_encoder(encoder: &Encoder) -> Self {
        Self(vec![("weights", encoder.weight_bytes())])
    }

    /// Memory of a speech model: its weights.
    pub fn of_speech(transcriber: &Transcriber) -> Self {
        Self(vec![("weights", transcriber.weight_bytes())])
    }

    /// The parts as a JSON object.
    pub fn json(&self) -> Value {
        self.0
            .iter()
            .map(|&(part, bytes)| (part.to_owned(), bytes.into()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

impl Metrics {
    /// Counters at zero. `dropped_lines` counts the lines that the log dropped.
    pub fn new(dropped_lines: Dropped) -> Self {
        Self {
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            unknown_fields: AtomicU64::new(0),
            dropped_lines,
            models: Mutex::default(),
        }
    }

    /// Counts a request of any kind; `status` is `None` if its client went away before the answer.
    pub fn saw_request(&self, status: Option<u16>) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if status.is_some_and(|status| status >= 500) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an unknown field.
    pub fn saw_unknown_field(&self) {
        self.unknown_fields.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a `gap` between two tokens of an answer.
    pub fn saw_gap(&self, model: &str, gap: Duration) {
        self.of(model, |totals| totals.between_tokens.add(gap));
    }

    /// Counts a finished generation.
    pub fn saw_end(&self, model: &str, reason: &'static str, cost: &brasa::Metrics, total: Duration) {
        self.of(model, |totals| {
            totals.prompt_tokens += cost.prompt_tokens as u64;
            totals.cached_tokens += cost.cached_tokens as u64;
            totals.generated_tokens += cost.generated_tokens as u64;
            totals.prompt_seconds += cost.prefill_time.as_secs_f64();
            totals.decode_seconds += cost.decode_time.as_secs_f64();
            totals.preemptions += cost.preemptions as u64;
            *totals.finished.entry(reason).or_default() += 1;
            totals.queue.add(cost.queue_time);
            totals.end_to_end.add(total);
            if cost.generated_tokens > 0 {
                totals.first_token.add(cost.first_token_time);
            }
        });
    }

    /// Counts a finished transcription: its tokens, the seconds of its sound, and its duration.
    pub fn saw_transcription(
        &self,
        model: &str,
        reason: &'static str,
        tokens: usize,
        audio_s: f64,
        total: Duration,
    ) {
        self.of(model, |totals| {
            totals.generated_tokens += tokens as u64;
            totals.decode_seconds += total.as_secs_f64();
            totals.audio_seconds += audio_s;
            *totals.finished.entry(reason).or_default() += 1;
            totals.end_to_end.add(total);
        });
    }

    /// All metrics in Prometheus' text format.
    pub fn prometheus(&self, now: &[Now]) -> String {
        let models = self.lock().clone();
        let mut text = String::new();
        let sum = |of: fn(&Totals) -> f64| models.values().map(of).sum::<f64>();
        let (prompt_tokens, prompt_seconds) =
            (sum(|m| (m.prompt_tokens - m.cached_tokens) as f64), sum(|m| m.prompt_seconds));
        let (tokens, seconds) = (sum(|m| m.generated_tokens as f64), sum(|m| m.decode_seconds));
        let running: usize = now.iter().map(|now| now.stats.running).sum();
        let waiting: usize = now.iter().map(|now| now.stats.waiting).sum();
        let steps = now.iter().map(|now| now.stats.steps).sum::<u64>() as f64;
        let decode_rows = now.iter().map(|now| now.stats.decode_rows).sum::<u64>() as f64;
        let drafted = now.iter().map(|now| now.stats.draft_rows).sum::<u64>() as f64;
        let accepted = now.iter().map(|now| now.stats.accepted_rows).sum::<u64>() as f64;
        let per_second = |tokens: f64, seconds: f64| if seconds > 0.0 { tokens / seconds } else { 0.0 };
        for (name, kind, help, value) in [
            ("llamacpp:prompt_tokens_total", "counter", "Prompt tokens computed.", prompt_tokens),
            ("llamacpp:prompt_seconds_total", "counter", "Time spent on prompts.", prompt_seconds),
            ("llamacpp:tokens_predicted_total", "counter", "Tokens generated.", tokens),
            ("llamacpp:tokens_predicted_seconds_total", "counter", "Time spent on generation.", seconds),
            (
                "llamacpp:prompt_tokens_seconds",
                "gauge",
                "Prompt tokens per second.",
                per_second(prompt_tokens, prompt_seconds),
            ),
            (
                "llamacpp:predicted_tokens_seconds",
                "gauge",
                "Tokens generated per second.",
                per_second(tokens, seconds),
            ),
            ("llamacpp:requests_processing", "gauge", "Requests that run.", running as f64),
            ("llamacpp:requests_deferred", "gauge", "Requests that wait.", waiting as f64),
            ("llamacpp:n_decode_total", "counter", "Steps of the device.", steps),
            (
                "llamacpp:n_busy_slots_per_decode",
                "gauge",
                "Requests that decode in a step, on average.",
                if steps > 0.0 { decode_rows / steps } else { 0.0 },
            ),
            ("llamacpp:n_draft_total", "counter", "Tokens guessed ahead and computed.", drafted),
            ("llamacpp:n_draft_accepted_total", "counter", "Guessed tokens that were drawn.", accepted),
            (
                "brasa:http_requests_total",
                "counter",
                "Requests of any kind.",
                self.requests.load(Ordering::Relaxed) as f64,
            ),
            (
                "brasa:http_failures_total",
                "counter",
                "Requests that failed by the server's fault.",
                self.failures.load(Ordering::Relaxed) as f64,
            ),
            (
                "brasa:unknown_fields_total",
                "counter",
                "Fields of requests that are not known.",
                self.unknown_fields.load(Ordering::Relaxed) as f64,
            ),
            (
                "brasa:log_lines_dropped_total",
                "counter",
                "Lines of the log that were dropped because they were not read in time.",
                self.dropped_lines.total() as f64,
            ),
            (
                "brasa:preemptions_total",
                "counter",
                "Requests that gave their pages to others.",
                sum(|m| m.preemptions as f64),
            ),
        ] {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        let states: [NamedState; 5] = [
            ("vllm:num_requests_running", "gauge", "Requests that run.", |stats| stats.running as f64),
            ("vllm:kv_cache_usage_perc", "gauge", "Share of the cache that is used.", |stats| {
                stats.cache_bytes_used as f64 / stats.cache_bytes.max(1) as f64
            }),
            ("vllm:num_requests_waiting", "gauge", "Requests that wait.", |stats| stats.waiting as f64),
            (
                "vllm:spec_decode_num_draft_tokens_total",
                "counter",
                "Tokens guessed ahead and computed.",
                |stats| stats.draft_rows as f64,
            ),
            (
                "vllm:spec_decode_num_accepted_tokens_total",
                "counter",
                "Guessed tokens that were drawn.",
                |stats| stats.accepted_rows as f64,
            ),
        ];
        for (name, kind, help, value) in states {
            head(&mut text, name, kind, help);
            for now in now {
                line(&mut text, name, &now.model, "", value(&now.stats));
            }
        }
        let name = "brasa:memory_bytes";
        head(&mut text, name, "gauge", "Bytes of the parts of a model on its device.");
        for now in now {
            for (part, bytes) in &now.memory.0 {
                line(&mut text, name, &now.model, &format!(",part=\"{part}\""), *bytes as f64);
            }
        }
        if let Some(bytes) = brasa::resident_memory_bytes() {
            let name = "process_resident_memory_bytes";
            head(&mut text, name, "gauge", "Resident memory of the server.");
            let _ = writeln!(text, "{name} {bytes}");
        }
        let counters: [Named<f64>; 5] = [
            ("vllm:prompt_tokens_total", "Prompt tokens.", |m| m.prompt_tokens as f64),
            ("vllm:generation_tokens_total", "Tokens generated.", |m| m.generated_tokens as f64),
            ("vllm:prefix_cache_queries_total", "Prompt tokens looked for in the cache.", |m| {
                m.prompt_tokens as f64
            }),
            ("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache.", |m| m.cached_tokens as f64),
            ("brasa:audio_seconds_total", "Seconds of sound transcribed.", |m| m.audio_seconds),
        ];
        for (name, help, value) in counters {
            head(&mut text, name, "counter", help);
            for (model, totals) in &models {
                line(&mut text, name, model, "", value(totals));
            }
        }
        head(&mut text, "vllm:request_success_total", "counter", "Finished requests by reason.");
        for (model, totals) in &models {
            for (reason, count) in &totals.finished {
                let label = format!(",finished_reason=\"{reason}\"");
                line(&mut text, "vllm:request_success_total", model, &label, *count as f64);
            }
        }
        let histograms: [NamedHistogram; 4] = [
            ("vllm:time_to_first_token_seconds", "Time to the first token.", |m| &m.first_token),
            ("vllm:inter_token_latency_seconds", "Time between two tokens.", |m| &m.between_tokens),
            ("vllm:e2e_request_latency_seconds", "Time of a whole request.", |m| &m.end_to_end),
            ("vllm:request_queue_time_seconds", "Time spent waiting for a place.", |m| &m.queue),
        ];
        for (name, help, of) in histograms {
            head(&mut text, name, "histogram", help);
            for (model, totals) in &models {
                of(totals).write(&mut text, name, model);
            }
        }
        text
    }

    /// Akunu's counters as JSON.
    pub fn json(&self, uptime: Duration) -> Value {
        let models = self.lock().clone();
        let of = |totals: &Totals| {
            json!({
                "total_requests": totals.finished.values().sum::<u64>(),
                "total_prompt_tokens": totals.prompt_tokens,
                "total_completion_tokens": totals.generated_tokens,
            })
        };
        json!({
            "total_requests": self.requests.load(Ordering::Relaxed),
            "total_prompt_tokens": models.values().map(|totals| totals.prompt_tokens).sum::<u64>(),
            "total_completion_tokens": models.values().map(|totals| totals.generated_tokens).sum::<u64>(),
            "uptime_seconds": uptime.as_secs(),
            "models": models.iter().map(|(id, totals)| (id.clone(), of(totals))).collect::<serde_json::Map<_, _>>(),
        })
    }

    fn of(&self, model: &str, change: impl FnOnce(&mut Totals)) {
        let mut models = self.lock();
        if let Some(totals) = models.get_mut(model) {
            change(totals);
        } else {
            change(models.entry(model.to_owned()).or_default());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Totals>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.count += 1;
        self.sum += seconds;
        for (count, bound) in self.counts.iter_mut().zip(SECONDS) {
            *count += u64::from(seconds <= bound);
        }
    }

    fn write(&self, text: &mut String, name: &str, model: &str) {
        let bucket = format!("{name}_bucket");
        for (count, bound) in self.counts.iter().zip(SECONDS) {
            line(text, &bucket, model, &format!(",le=\"{bound}\""), *count as f64);
        }
        line(text, &bucket, model, ",le=\"+Inf\"", self.count as f64);
        line(text, &format!("{name}_sum"), model, "", self.sum);
        line(text, &format!("{name}_count"), model, "", self.count as f64);
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, model: &str, labels: &str, value: f64) {
    let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let _ = writeln!(text, "{name}{{model_name=\"{model}\"{labels}}} {value}");
}
