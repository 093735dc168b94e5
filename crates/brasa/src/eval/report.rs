//! The report of an evaluation, and its JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::config::FastEvalConfig;
use crate::statistics::{median, rates};
use crate::{ProbeKind, RunFacts};

/// The report of a fast evaluation. Samples are in the order of the runs.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "a section each, described by its type")]
pub struct FastEvalReport {
    /// The model, the device and the build.
    pub facts: RunFacts,
    /// Everything besides tokens that keys and values depend on, as session files record it.
    pub identity: Value,
    pub config: FastEvalConfig,
    pub generation: GenerationSpeed,
    pub prompt_cache: PromptCacheUse,
    pub kv_restore: KvRestore,
    pub state_bundle: StateBundleTrip,
    pub probes: ProbeCost,
    pub quality: Quality,
}

/// Speed of fresh greedy answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationSpeed {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of all answers.
    pub generated_tokens: usize,
    /// Prompt tokens computed a second, for each run.
    pub prefill: Vec<f64>,
    /// Tokens decoded a second, for each run.
    pub decode: Vec<f64>,
    /// Time from submission to the first token, for each run.
    pub first_token: Vec<Duration>,
    /// The largest resident set of the process; `None` if the system does not tell.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes of keys, values and temporaries on the device; `None` if they are not counted.
    pub active_memory_bytes: Option<u64>,
}

/// Time saved by cached beginnings of prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptCacheUse {
    /// True if the section was measured.
    pub attempted: bool,
    /// Number of prompts.
    pub requests: usize,
    /// Number of prompts of which some tokens were cached.
    pub hits: usize,
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Prompt tokens that were cached, and so not computed again.
    pub reused_tokens: usize,
    /// Times to the first token of each prompt, computed whole.
    pub fresh_first_token: Vec<Duration>,
    /// Times to the first token of each prompt, with its beginning cached.
    pub warm_first_token: Vec<Duration>,
}

impl PromptCacheUse {
    /// The part of all prompt tokens that was not computed again, from 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        self.reused_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

/// Time of restoring keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvRestore {
    /// True if the section was measured.
    pub attempted: bool,
    /// Number of tokens whose keys and values were restored.
    pub tokens: usize,
    /// Bytes of the restored keys and values.
    pub bytes: u64,
    /// Time of each restoration.
    pub samples: Vec<Duration>,
}

/// Times of saving a state bundle to files and loading it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateBundleTrip {
    /// True if the section was measured.
    pub attempted: bool,
    /// Bytes of the bundle's files.
    pub bytes: u64,
    /// Time of each saving.
    pub save: Vec<Duration>,
    /// Time of each loading.
    pub load: Vec<Duration>,
}

/// Results of probes, and their cost in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeCost {
    /// True if the section was measured.
    pub attempted: bool,
    /// Events of one answer by kind.
    pub events: BTreeMap<ProbeKind, usize>,
    /// Tokens decoded a second without probes.
    pub plain: Vec<f64>,
    /// Tokens decoded a second with probes.
    pub probed: Vec<f64>,
}

impl ProbeCost {
    /// Share of an answer's time that probes add: 0.25 if it takes a quarter longer. Noise may make it negative.
    pub fn overhead(&self) -> f64 {
        median(&self.plain) / median(&self.probed) - 1.0
    }
}

/// Comparisons of answers that have to be the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// True if the section was measured.
    pub attempted: bool,
    /// The comparisons, in the order in which they were made.
    pub checks: Vec<EvalCheck>,
}

/// A comparison of two answers that should be the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalCheck {
    /// Name of the check, e.g. `cached = fresh`.
    pub name: &'static str,
    /// True if the arithmetic promises that the answers are the same.
    pub required: bool,
    /// The first difference; `None` if the answers are equal.
    pub difference: Option<String>,
}

impl Quality {
    /// True if every answer that is promised to be the same is the same.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.difference.is_none() || !check.required)
    }
}

impl FastEvalReport {
    /// The report as one JSON object: the facts of a row of `brasa bench`, and an object for each section.
    pub fn to_json(&self) -> Value {
        let mut object = self.facts.to_json();
        object.insert("identity".into(), self.identity.clone());
        object.insert("n_gen".into(), self.config.max_tokens.into());
        object.insert("runs".into(), self.config.runs.into());
        for (name, section) in [
            ("generation", self.generation.to_json(self.config.max_tokens)),
            ("prompt_cache", self.prompt_cache.to_json()),
            ("kv_restore", self.kv_restore.to_json()),
            ("state_bundle", self.state_bundle.to_json()),
            ("probes", self.probes.to_json()),
            ("quality", self.quality.to_json()),
        ] {
            object.insert(name.into(), section);
        }
        object.into()
    }
}

impl GenerationSpeed {
    fn to_json(&self, n_gen: usize) -> Value {
        // What `brasa bench` calls a cell.
        let cell = |n_prompt: usize, n_gen: usize, samples: &[f64]| {
            let mut cell = Map::from_iter([
                ("n_prompt".to_owned(), n_prompt.into()),
                ("n_gen".to_owned(), n_gen.into()),
            ]);
            cell.extend(rates(samples));
            cell.insert("samples_ts".into(), samples.into());
            Value::from(cell)
        };
        json!({
            "attempted": true,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "prefill": cell(self.prompt_tokens, 0, &self.prefill),
            "decode": cell(0, n_gen, &self.decode),
            "first_token_ms": middle_ms(&self.first_token),
            "first_token_samples_ns": nanoseconds(&self.first_token),
            "peak_memory_bytes": self.peak_memory_bytes,
            "active_memory_bytes": self.active_memory_bytes,
        })
    }
}

impl PromptCacheUse {
    fn to_json(&self) -> Value {
        if !self.attempted {
            return json!({"attempted": false});
        }
        json!({
            "attempted": true,
            "requests": self.requests,
            "hits": self.hits,
            "misses": self.requests - self.hits,
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "hit_rate": self.hit_rate(),
            "fresh_first_token_ms": middle_ms(&self.fresh_first_token),
            "warm_first_token_ms": middle_ms(&self.warm_first_token),
            "fresh_first_token_samples_ns": nanoseconds(&self.fresh_first_token),
            "warm_first_token_samples_ns": nanoseconds(&self.warm_first_token),
        })
    }
}

impl KvRestore {
    fn to_json(&self) -> Value {
        if !self.attempted {
            return json!({"attempted": false});
        }
        json!({
            "attempted": true,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "latency_ms": middle_ms(&self.samples),
            "samples_ns": nanoseconds(&self.samples),
        })
    }
}

impl StateBundleTrip {
    /// The time of saving and loading together, for each round.
    pub fn round_trips(&self) -> Vec<Duration> {
        self.save.iter().zip(&self.load).map(|(&save, &load)| save + load).collect()
    }

    fn to_json(&self) -> Value {
        if !self.attempted {
            return json!({"attempted": false});
        }
        json!({
            "attempted": true,
            "bytes": self.bytes,
            "round_trip_ms": middle_ms(&self.round_trips()),
            "save_samples_ns": nanoseconds(&self.save),
            "load_samples_ns": nanoseconds(&self.load),
        })
    }
}

impl ProbeCost {
    fn to_json(&self) -> Value {
        if !self.attempted {
            return json!({"attempted": false});
        }
        let events = self.events.iter().map(|(kind, &count)| (kind.name().to_owned(), count.into()));
        json!({
            "attempted": true,
            "events": events.collect::<Map<_, _>>(),
            "overhead": self.overhead(),
            "plain_samples_ts": self.plain,
            "probed_samples_ts": self.probed,
        })
    }
}

impl Quality {
    fn to_json(&self) -> Value {
        let check = |check: &EvalCheck| {
            json!({
                "name": check.name,
                "passed": check.difference.is_none(),
                "required": check.required,
                "difference": check.difference,
            })
        };
        json!({
            "attempted": self.attempted,
            "passed": self.passed(),
            "checks": self.checks.iter().map(check).collect::<Value>(),
        })
    }
}

/// The median of times in milliseconds; `None` without times.
fn middle_ms(times: &[Duration]) -> Option<f64> {
    let times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    (!times.is_empty()).then(|| median(&times))
}

fn nanoseconds(times: &[Duration]) -> Vec<u64> {
    times.iter().map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)).collect()
}
