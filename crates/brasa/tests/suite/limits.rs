//! The library at its limits: long texts, full contexts, cancelled and late requests, requests that make no
//! sense.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brasa::engine::EngineError;
use brasa::sampling::SamplingError;
use brasa::{
    ContextPolicy, Error, FinishReason, Fit, GenerateOptions, LoadOptions, Message, Model, OwnDevice,
    RequestOptions, SamplingParams, TokenStream,
};
use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_golden::folder;
use brasa_graph::Graph;
use brasa_graph::device::{
    Backend, Capabilities, DeviceError, DeviceInfo, KvPool, KvPoolSpec, KvType, Precision, Program,
    ProgramSpec, WeightSet,
};

const LEXICON: &str = "lexicon-qwen3/lexicon-qwen3-Q6_K.gguf";

fn lexicon(context: usize) -> Model {
    let options =
        LoadOptions { context: Some(context), chunk: Some(256), threads: Some(1), ..LoadOptions::default() };
    Model::load(folder(LEXICON), &options).unwrap()
}

fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|index| (300 + (index * index * 7 + index * 31) % 3000) as u32).collect()
}

fn limit(tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(tokens), ignore_eos: true, ..GenerateOptions::default() }
}

/// Bytes of KV pages that exist and of the arena.
fn memory_bytes(model: &Model) -> u64 {
    model.engine().with(|executor| executor.memory_bytes()).unwrap()
}

fn error(mut stream: TokenStream) -> EngineError {
    stream.find_map(Result::err).expect("the stream fails")
}

fn refusal(result: Result<TokenStream, Error>) -> String {
    result.map(|_| ()).expect_err("refused at once").to_string()
}

#[test]
fn a_prompt_of_four_thousand_tokens_works() {
    let model = lexicon(4096);
    let before = memory_bytes(&model);
    let mut stream = model.generate_ids(prompt(4000), &limit(8)).unwrap();
    assert_eq!(stream.by_ref().map(Result::unwrap).count(), 8);
    assert_eq!(stream.metrics().prompt_tokens, 4000);
    // 16 pages of 256 positions, 7 layers, 2 KV heads of 64, keys and values, f16; a quarter more may be reserved.
    let exact: u64 = 16 * 256 * 7 * 2 * 64 * 2 * 2;
    let pages = memory_bytes(&model) - before;
    assert!(
        (exact..exact + exact / 4 + exact / 8).contains(&pages),
        "{pages} bytes of pages, {exact} needed"
    );
}

#[test]
fn a_full_context_does_what_was_chosen() {
    let model = lexicon(64);
    let mut options = GenerateOptions { max_tokens: Some(usize::MAX), ..limit(0) };
    let mut stream = model.generate_ids(prompt(60), &options).unwrap();
    let results: Vec<_> = stream.by_ref().collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 5, "the last token needs no place");
    assert_eq!(results[5], Err(EngineError::ContextFull { context: 64 }));
    options.context_policy = ContextPolicy::Stop;
    let mut stream = model.generate_ids(prompt(60), &options).unwrap();
    assert_eq!(stream.by_ref().map(Result::unwrap).count(), 5);
    assert_eq!(stream.finish_reason(), Some(FinishReason::ContextFull));
    let message = refusal(model.generate_ids(prompt(65), &options));
    assert!(message.contains("65 tokens") && message.contains("hint:"), "{message}");
}

#[test]
fn a_dropped_stream_ends_within_a_chunk_and_frees_its_pages() {
    let model = lexicon(4096);
    let empty = memory_bytes(&model);
    let mut most = 0;
    for _ in 0..12 {
        let stream = model.generate_ids(prompt(4000), &limit(1)).unwrap();
        // Work runs between two steps: when pages exist, or are free again, the prefill has begun.
        while memory_bytes(&model) == empty {}
        drop(stream);
        // At most the step that was running ends before the next request's.
        let mut short = model.generate_ids(prompt(3), &limit(1)).unwrap();
        assert_eq!(short.by_ref().map(Result::unwrap).count(), 1);
        most = most.max(memory_bytes(&model) - empty);
    }
    let one_prompt = 16 * 256 * 7 * 2 * 64 * 2 * 2;
    assert!(most < one_prompt / 2, "{most} bytes of pages for prefills that were dropped at once");
}

#[test]
fn a_deadline_ends_a_prefill_and_an_answer() {
    let model = lexicon(4096);
    let late = |milliseconds, tokens| {
        let deadline = Instant::now() + Duration::from_millis(milliseconds);
        let options = GenerateOptions {
            request: RequestOptions { deadline: Some(deadline), ..RequestOptions::DEFAULT },
            ..limit(4000)
        };
        error(model.generate_ids(prompt(tokens), &options).unwrap())
    };
    assert_eq!(late(0, 4000), EngineError::DeadlineExceeded { tokens: 0 });
    let EngineError::DeadlineExceeded { tokens } = late(100, 3) else { panic!("a deadline") };
    assert!(tokens < 4000);
    assert_eq!(model.generate_ids(prompt(3), &limit(2)).unwrap().count(), 2, "the engine goes on");
}

#[test]
fn requests_that_make_no_sense_are_refused_at_once() {
    let model = lexicon(128);
    assert!(refusal(model.generate_ids(Vec::new(), &limit(1))).contains("the prompt is empty"));
    assert!(refusal(model.generate("", &limit(1))).contains("the prompt is empty"));
    let message = refusal(model.generate_ids(vec![8192], &limit(1)));
    assert!(message.contains("8192"), "{message}");
    let message =
        refusal(model.generate("a", &GenerateOptions { stop_strings: vec![String::new()], ..limit(1) }));
    assert!(message.contains("stop string"), "{message}");
    let sampling = |change: &dyn Fn(&mut SamplingParams)| {
        let mut options = limit(3);
        change(&mut options.sampling);
        refusal(model.generate("a", &options))
    };
    assert!(sampling(&|s| s.temperature = f32::NAN).contains("temperature NaN"));
    assert!(sampling(&|s| s.temperature = -1.0).contains("temperature -1"));
    assert!(sampling(&|s| s.top_p = f32::NAN).contains("top-p NaN"));
    assert!(sampling(&|s| s.repeat_penalty = 0.0).contains("repeat penalty 0"));
    assert!(sampling(&|s| s.logit_bias = vec![(1, f32::INFINITY)]).contains("logit bias inf"));
    assert!(sampling(&|s| s.logit_bias = vec![(9000, 1.0)]).contains("token 9000"));
    let context = LoadOptions { context: Some(0), ..LoadOptions::default() };
    assert!(Model::load(folder(LEXICON), &context).unwrap_err().to_string().contains("context"));
}

#[test]
fn a_bias_that_forbids_everything_is_an_error_of_its_stream_alone() {
    let model = lexicon(128);
    let mut options = limit(3);
    options.sampling.logit_bias = (0..8192).map(|id| (id, f32::NEG_INFINITY)).collect();
    let mut other = model.generate_ids(prompt(3), &limit(4)).unwrap();
    let error = error(model.generate("river", &options).unwrap());
    assert!(matches!(error, EngineError::Sampling(SamplingError::NoToken { .. })), "{error}");
    assert_eq!(other.by_ref().map(Result::unwrap).count(), 4);
}

#[test]
fn stop_strings_of_every_kind_end_the_answer_before_them() {
    let model = lexicon(512);
    let all = |options: &GenerateOptions| {
        let mut stream = model.generate("A river is", options).unwrap();
        let text: String = stream.by_ref().map(|fragment| fragment.unwrap().text).collect();
        (text, stream.finish_reason())
    };
    let (plain, _) = all(&limit(60));
    let inner = |from: usize, to: usize| plain.chars().skip(from).take(to - from).collect::<String>();
    // One character, several tokens, the very beginning; and some that never come.
    let never = "z".repeat(100_000);
    for stop in [inner(20, 21), inner(11, 40), inner(0, 2), "\0".into(), "🜁".into(), never] {
        let options = GenerateOptions { stop_strings: vec![stop.clone()], ignore_eos: false, ..limit(60) };
        let (text, reason) = all(&options);
        match plain.find(&stop) {
            Some(place) => {
                assert_eq!((text.as_str(), reason), (&plain[..place], Some(FinishReason::Text(0))));
            }
            None => assert!(plain.starts_with(&text) && !text.is_empty(), "{text:?}"),
        }
    }
}

#[test]
fn templates_that_raise_or_never_end_are_errors_soon() {
    for (template, expected) in [
        ("{{ raise_exception('only one message, please') }}", "only one message, please"),
        ("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", ""),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ""),
        ("{{ 'a' * 10000000000 }}", ""),
        ("{% if %}", ""),
        ("{{ messages[7].content.more }}", ""),
    ] {
        let options = LoadOptions {
            chat_template: Some(template.into()),
            context: Some(64),
            threads: Some(1),
            ..LoadOptions::default()
        };
        let started = Instant::now();
        let error = match Model::load(folder(LEXICON), &options) {
            Err(error) => error,
            Ok(model) => {
                model.chat(&[Message::new("user", "hello")], &limit(1)).map(|_| ()).expect_err(template)
            }
        };
        println!("{template}: {error}");
        assert!(error.to_string().contains(expected), "{template}: {error}");
        assert!(started.elapsed() < Duration::from_secs(20), "{template}: {:?}", started.elapsed());
    }
}

#[test]
fn a_model_is_a_handle_for_any_thread() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn sent<T: Send + 'static>(_: &T) {}
    let model = lexicon(128);
    shared(&model);
    let expected = model.generate_ids(prompt(5), &limit(6)).unwrap().into_text().unwrap();
    let session = model.session();
    sent(&session);
    sent(&session.generate_ids(prompt(5), &limit(6)).unwrap());
    let clone = model.clone();
    let answers = [
        std::thread::spawn(move || clone.generate_ids(prompt(5), &limit(6)).unwrap().into_text().unwrap()),
        std::thread::spawn(move || {
            // The first stream of the session was dropped, and may still be on its way out.
            loop {
                match session.generate_ids(prompt(5), &limit(6)).unwrap().into_text() {
                    Err(EngineError::SessionBusy) => std::thread::yield_now(),
                    text => return text.unwrap(),
                }
            }
        }),
    ];
    // The threads' own handles keep the model.
    let endless =
        GenerateOptions { max_tokens: None, context_policy: ContextPolicy::Slide { keep: 0 }, ..limit(0) };
    let mut last = model.generate_ids(prompt(5), &endless).unwrap();
    drop(model);
    for answer in answers {
        assert_eq!(answer.join().unwrap(), expected);
    }
    assert_eq!(last.find_map(Result::err), Some(EngineError::Closed), "no handle is left");
}

/// The CPU, as a device of few abilities on which nothing may be uploaded, and its widest head.
struct Few(CpuBackend, usize);

impl Backend for Few {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "few".into(), ..self.0.info() }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { kv_types: &[KvType::F16], widest_head: Some(self.1), most_experts: None }
    }

    fn weight_set(&self, _: Precision) -> Arc<dyn WeightSet> {
        panic!("what the device lacks is told before the upload")
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Box<dyn KvPool>, DeviceError> {
        assert_eq!(spec.dtype, KvType::F16);
        self.0.kv_pool(spec)
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: Arc<dyn WeightSet>,
        spec: ProgramSpec,
    ) -> Result<Box<dyn Program>, DeviceError> {
        self.0.compile(graph, weights, spec)
    }
}

#[test]
fn what_a_device_lacks_is_told_before_weights_are_uploaded() {
    let options = |kv_type, widest_head| {
        let device = CpuBackend::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let own_device = Some(OwnDevice(Arc::new(Few(device, widest_head))));
        LoadOptions { kv_type: Some(kv_type), own_device, ..LoadOptions::default() }
    };
    for (kv_type, widest_head, expected) in [
        (KvType::Q8, 64, "few does not support keys and values of type Q8"),
        (KvType::F16, 32, "few does not support heads of 64, at most 32"),
    ] {
        let options = options(kv_type, widest_head);
        assert_eq!(Model::load(folder(LEXICON), &options).map(drop).unwrap_err().to_string(), expected);
        assert_eq!(Fit::of(folder(LEXICON), &options).map(drop).unwrap_err().to_string(), expected);
    }
    // A model that fits is judged in the types that the device has.
    let fit = Fit::of(folder(LEXICON), &options(KvType::F16, 64)).unwrap();
    assert_eq!(fit.texts.iter().map(|text| text.kv_type).collect::<Vec<_>>(), [KvType::F16]);
}
