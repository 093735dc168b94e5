//! The fast evaluation, of a model and of callbacks without one.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::time::Duration;

use brasa::eval::{
    EvalAnswer, EvalRequest, EvalStart, FastEvalConfig, FastEvalReport, FastEvalRunner, ModelRunner, Trip,
    run_fast_eval,
};
use brasa::formats::Container;
use brasa::statistics::{deviation, mean, median, spread};
use brasa::{Error, KvType, LoadOptions, Metrics, Model, RunFacts};
use brasa_golden::folder;

/// A runner without a model. Answers count on from the prompt's last token.
#[derive(Default)]
struct Fake {
    /// Tokens that the cache keeps of a warmed text; `None` for a runner without the optional callbacks.
    keeps: Option<usize>,
    /// A start whose answers go astray.
    astray: Option<EvalStart>,
    /// True if the arithmetic promises nothing.
    fast: bool,
    captured: bool,
    calls: Vec<String>,
}

impl FastEvalRunner for Fake {
    fn encode(&mut self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn generate(&mut self, request: &EvalRequest<'_>) -> Result<EvalAnswer, Error> {
        self.calls.push(format!("{:?} of {}", request.start, request.prompt.len()));
        assert!(self.captured || !matches!(request.start, EvalStart::Restored | EvalStart::Bundled));
        let first = request.prompt.last().unwrap() + u32::from(self.astray == Some(request.start));
        let cached = if request.start == EvalStart::Fresh { 0 } else { self.keeps.unwrap_or(0) };
        let metrics = Metrics {
            prompt_tokens: request.prompt.len(),
            cached_tokens: cached,
            generated_tokens: request.max_tokens,
            prefill_time: Duration::from_millis((request.prompt.len() - cached) as u64),
            decode_time: Duration::from_millis(request.max_tokens as u64 - 1)
                * if request.probes.is_some() { 5 } else { 4 },
            first_token_time: Duration::from_millis((request.prompt.len() - cached) as u64),
            ..Metrics::default()
        };
        let probes = request.probes.filter(|_| self.keeps.is_some());
        let events =
            probes.map(|probes| probes.kinds.iter().map(|&kind| (kind, request.max_tokens)).collect());
        Ok(EvalAnswer { tokens: (first..).take(request.max_tokens).collect(), metrics, events })
    }

    fn facts(&self) -> RunFacts {
        RunFacts {
            build_commit: Some("abc"),
            name: "nothing".into(),
            description: "fake F32".into(),
            size_bytes: 12,
            parameters: 3,
            backend: "none".into(),
            device: "a head, thinking".into(),
            threads: 1,
            kv_type: KvType::F16,
        }
    }

    fn is_exact(&self) -> bool {
        !self.fast
    }

    fn warm(&mut self, text: &[u32]) -> Result<bool, Error> {
        self.calls.push(format!("warm {}", text.len()));
        Ok(self.keeps.is_some())
    }

    fn capture(&mut self, text: &[u32]) -> Result<Option<u64>, Error> {
        self.captured = self.keeps.is_some();
        Ok(self.keeps.map(|_| text.len() as u64 * 10))
    }

    fn restore(&mut self) -> Result<Duration, Error> {
        Ok(Duration::from_millis(7))
    }

    fn bundle(&mut self) -> Result<Option<Trip>, Error> {
        let (save, load) = (Duration::from_millis(3), Duration::from_millis(2));
        Ok(self.keeps.map(|_| Trip { bytes: 99, save, load }))
    }

    fn generate_together(
        &mut self,
        prompts: &[&[u32]],
        max_tokens: usize,
    ) -> Result<Option<Vec<EvalAnswer>>, Error> {
        let request = |prompt| EvalRequest {
            prompt,
            max_tokens,
            start: EvalStart::Fresh,
            seed: None,
            probes: None,
            drafts: false,
        };
        prompts.iter().map(|prompt| self.generate(&request(prompt))).collect::<Result<_, _>>().map(Some)
    }
}

fn config() -> FastEvalConfig {
    FastEvalConfig { prompt: "abcdefghij".into(), max_tokens: 5, runs: 2, ..FastEvalConfig::default() }
}

fn run<R: FastEvalRunner>(runner: &mut R, config: &FastEvalConfig) -> Result<FastEvalReport, Error> {
    run_fast_eval(runner, config, &mut |_| ControlFlow::Continue(()))
}

/// Names of the checks that found a difference.
fn differ(report: &FastEvalReport) -> Vec<&'static str> {
    report.quality.checks.iter().filter(|check| check.difference.is_some()).map(|check| check.name).collect()
}

#[test]
fn callbacks_make_a_report() {
    let mut fake = Fake { keeps: Some(4), ..Fake::default() };
    let cache_prompts = vec!["tool".to_owned(), "policy".to_owned()];
    let report = run(&mut fake, &FastEvalConfig { cache_prompts, ..config() }).unwrap();
    let (generation, cache) = (&report.generation, &report.prompt_cache);
    assert_eq!((generation.prompt_tokens, generation.generated_tokens), (10, 10));
    assert!((median(&generation.prefill) - 1000.0).abs() < 1e-6);
    assert!((median(&generation.decode) - 250.0).abs() < 1e-6);
    // Each of 14 and 16 tokens finds 4.
    assert_eq!((cache.requests, cache.hits, cache.prompt_tokens, cache.reused_tokens), (2, 2, 30, 8));
    assert!((cache.hit_rate() - 8.0 / 30.0).abs() < 1e-12);
    assert!(
        fake.calls.windows(3).any(|calls| calls == ["Fresh of 14", "warm 4", "Warm of 14"]),
        "{:?}",
        fake.calls
    );
    assert_eq!(report.kv_restore.samples, [Duration::from_millis(7); 2]);
    assert_eq!(report.kv_restore.bytes, 100);
    assert_eq!(report.state_bundle.round_trips(), [Duration::from_millis(5); 2]);
    assert!(report.probes.events.values().all(|&events| events == 5) && report.probes.events.len() == 6);
    assert!((report.probes.overhead() - 0.25).abs() < 1e-9);
    assert!(report.quality.passed() && differ(&report).is_empty());
    let json = report.to_json();
    assert_eq!((&json["build_commit"], &json["type_k"]), (&"abc".into(), &"f16".into()));
    assert_eq!(json["kv_restore"]["latency_ms"], 7.0);
    for section in ["generation", "prompt_cache", "kv_restore", "state_bundle", "probes", "quality"] {
        assert_eq!(json[section]["attempted"], true, "{section}");
    }
}

#[test]
fn what_a_runner_lacks_is_not_attempted() {
    let report = run(&mut Fake::default(), &config()).unwrap();
    let json = report.to_json();
    for section in ["prompt_cache", "kv_restore", "state_bundle", "probes"] {
        assert_eq!(json[section], serde_json::json!({"attempted": false}), "{section}");
    }
    assert_eq!(
        (&json["generation"]["attempted"], &json["quality"]["attempted"]),
        (&true.into(), &true.into())
    );
}

/// An answer that goes astray fails its check by name, unless the arithmetic promises nothing.
#[test]
fn differences_are_named() {
    for (start, name, promised) in [
        (EvalStart::Warm, "cached = fresh", false),
        (EvalStart::Restored, "restored = uninterrupted", true),
        (EvalStart::Bundled, "bundled = uninterrupted", true),
    ] {
        for fast in [false, true] {
            let mut fake = Fake { keeps: Some(4), astray: Some(start), fast, ..Fake::default() };
            let report = run(&mut fake, &config()).unwrap();
            assert_eq!(differ(&report), [name]);
            assert_eq!(report.quality.passed(), fast && !promised, "{name}, fast: {fast}");
        }
    }
}

#[test]
fn nonsense_is_refused_and_cancelling_heard() {
    let refused = |config| run(&mut Fake::default(), &config).unwrap_err().to_string();
    assert!(refused(FastEvalConfig { max_tokens: 1, ..config() }).contains("of 1 tokens"));
    assert!(refused(FastEvalConfig { runs: 0, ..config() }).contains("0 runs"));
    assert!(refused(FastEvalConfig { prompt: String::new(), ..config() }).contains("prompt is empty"));
    let mut seen = Vec::new();
    let mut fake = Fake { keeps: Some(1), ..Fake::default() };
    let stopped = run_fast_eval(&mut fake, &config(), &mut |progress| {
        seen.push((progress.section, progress.done));
        if progress.done == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(Error::Device(_))));
    assert_eq!(seen, [("generation", 0), ("prompt cache", 1), ("KV restore", 2)]);
}

/// Every check of a deterministic model passes, whatever its caches and windows are.
#[test]
fn a_model_is_evaluated() {
    for name in ["lexicon-qwen3/lexicon-qwen3-Q6_K.gguf", "tiny-gemma3"] {
        let options = LoadOptions {
            context: Some(512),
            deterministic: true,
            threads: Some(1),
            ..LoadOptions::default()
        };
        let model = Model::load(folder(name), &options).unwrap();
        let mut runner = ModelRunner::new(&model, RunFacts::of(name, &model), || true);
        let config = FastEvalConfig { prompt: "The words of a language".into(), max_tokens: 12, ..config() };
        let report = run(&mut runner, &config).unwrap();
        assert!(report.quality.passed(), "{name}: {:?}", report.quality);
        let names: Vec<_> = report.quality.checks.iter().map(|check| (check.name, check.required)).collect();
        assert_eq!(
            names,
            [
                "greedy answers repeat",
                "cached = fresh",
                "restored = uninterrupted",
                "bundled = uninterrupted",
                "probed = plain",
                "drawn answers repeat",
                "drafted = plain",
                "batched = alone"
            ]
            .map(|name| (name, true))
        );
        let cache = &report.prompt_cache;
        assert_eq!(cache.reused_tokens, cache.prompt_tokens - 1);
        let json = report.to_json();
        assert_eq!(json["probes"]["events"]["entropy"], 12);
        assert!(json["state_bundle"]["bytes"].as_u64() > json["kv_restore"]["bytes"].as_u64());
        assert_eq!(json["identity"]["adapter"], "none");
        assert!(json["generation"]["active_memory_bytes"].as_u64().unwrap() > 0);
        assert_eq!(model.info().container == Container::Gguf, name.ends_with("gguf"));
    }
}

/// An evaluation that is told to stop does so at the next token.
#[test]
fn a_running_answer_is_interrupted() {
    let model = Model::load(folder("tiny-llama"), &LoadOptions::default()).unwrap();
    let asked = Cell::new(0);
    let goes_on = || {
        asked.set(asked.get() + 1);
        asked.get() < 4
    };
    let mut runner = ModelRunner::new(&model, RunFacts::of("tiny", &model), goes_on);
    let stopped = run(&mut runner, &FastEvalConfig { prompt: "One".into(), ..config() });
    assert!(matches!(stopped, Err(Error::Device(_))));
    assert_eq!(asked.get(), 4);
}

#[test]
#[expect(clippy::float_cmp, reason = "exact by construction")]
fn statistics_of_few_samples() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
    assert_eq!(deviation(&[1.0, 3.0]), 2.0_f64.sqrt());
    assert_eq!(deviation(&[7.0]), 0.0);
    assert_eq!(spread(&[8.0, 10.0, 13.0]), 0.5);
}
