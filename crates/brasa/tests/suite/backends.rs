//! The list of backends, and the native model as a `TextModel`.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use brasa::engine::EngineError;
use brasa::sampling::{Distribution, Logprobs};
use brasa::tokenizer::{AddSpecial, ParseSpecial};
use brasa::{
    Backend, BackendError, Backends, ClassifyOptions, ContextPolicy, Error, FinishReason, GenerateOptions,
    LoadOptions, Message, Metrics, Model, RequestOptions, SamplingParams, TextModel, Unavailable,
};
use brasa_golden::folder;

const LEXICON: &str = "lexicon-qwen3/lexicon-qwen3-Q6_K.gguf";

/// A backend that counts how often it is asked, and fails to load by saying the device that it was given.
struct Fake {
    name: &'static str,
    available: bool,
    asked: Arc<AtomicUsize>,
}

fn fake(name: &'static str, available: bool) -> Fake {
    Fake { name, available, asked: Arc::default() }
}

impl Backend for Fake {
    fn name(&self) -> &str {
        self.name
    }

    fn available(&self) -> Result<String, Unavailable> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.available { Ok("a machine".into()) } else { Err(Unavailable::new(self.name, "it is broken")) }
    }

    fn load(&self, _: &Path, options: &LoadOptions) -> Result<Box<dyn TextModel>, Error> {
        Err(Error::Options(format!("{} for {:?}", self.name, options.device)))
    }
}

fn on(device: &str) -> LoadOptions {
    LoadOptions { device: Some(device.into()), ..LoadOptions::default() }
}

fn message<T>(result: Result<T, impl ToString>) -> String {
    result.err().map(|error| error.to_string()).unwrap()
}

#[test]
fn the_default_is_the_first_that_is_available() {
    let mut backends = Backends::none();
    assert_eq!(message(backends.default().map(drop)), "no backend is available");
    backends.register(fake("first", false));
    let reasons = BackendError::NoneAvailable(vec![Unavailable::new("first", "it is broken")]);
    assert_eq!(backends.default().map(drop), Err(reasons));
    assert_eq!(message(backends.default().map(drop)), "no backend is available\n  first: it is broken");

    let last = fake("last", true);
    let asked = Arc::clone(&last.asked);
    backends.register(fake("second", true));
    backends.register(last);
    assert_eq!(backends.default().unwrap().name(), "second");
    assert_eq!(asked.load(Ordering::Relaxed), 0, "a backend behind the default was asked");
    let load = |options| message(backends.load("x", &options));
    assert_eq!(load(LoadOptions::default()), "second for None");
    assert_eq!(load(on("auto")), "second for None");
}

#[test]
fn a_name_overrides_the_default() {
    let mut backends = Backends::none();
    backends.register(fake("a", true));
    backends.register(fake("b", false));
    let load = |backends: &Backends, device| message(backends.load("x", &on(device)));
    assert_eq!(load(&backends, "b"), r#"b for Some("b")"#);
    assert_eq!(load(&backends, "b:1"), r#"b for Some("b:1")"#);
    assert_eq!(load(&backends, "c"), "no backend is named `c`\nhint: the names are a, b");
    // In the place of the other of its name.
    backends.register(fake("a", false));
    backends.register(fake("b", true));
    assert_eq!(backends.iter().map(Backend::name).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(backends.default().unwrap().name(), "b");
}

#[test]
fn the_built_in_backends_say_why_they_are_not_available() {
    let backends = Backends::built_in();
    assert_eq!(backends.iter().map(Backend::name).collect::<Vec<_>>(), ["cuda", "metal", "cpu", "mlx_lm"]);
    assert!(backends.get("cpu").unwrap().available().unwrap().contains("threads"));
    let reason = "backend metal is not available: this version of Brasa has no kernels for Apple's GPUs";
    assert_eq!(message(backends.get("metal").unwrap().available()), reason);
    assert_eq!(message(backends.load(folder(LEXICON), &on("metal"))), reason);
    let wrong = backends.get("cpu").unwrap().load(&folder(LEXICON), &on("cuda:1"));
    assert_eq!(message(wrong), "backend cpu cannot use the device cuda:1");
}

fn lexicon() -> Model {
    let options =
        LoadOptions { context: Some(512), threads: Some(1), deterministic: true, ..LoadOptions::default() };
    Model::load(folder(LEXICON), &options).unwrap()
}

fn tokens(count: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(count), ..GenerateOptions::default() }
}

fn ids(model: &Model, prompt: &str) -> Vec<u32> {
    model.tokenizer().encode(prompt, AddSpecial::AsModel, ParseSpecial::No).unwrap()
}

#[test]
fn a_native_model_behind_the_contract_says_what_it_says() {
    let model = lexicon();
    let contract: &dyn TextModel = &model;
    assert_eq!((contract.model_type(), contract.info().num_layers), ("qwen3", model.info().num_layers));
    assert!(contract.as_native().is_some());
    assert_eq!(contract.metrics(), Metrics::default());

    let messages = [Message::new("user", "What does \"ember\" mean?")];
    let expected = model.chat(&messages, &tokens(12)).unwrap().into_text().unwrap();
    assert!(expected.contains("ember"));
    assert_eq!(contract.chat(&messages, &tokens(12)).unwrap().into_text().unwrap(), expected);

    let mut stream = contract.generate("In the beginning", &tokens(5)).unwrap();
    assert_eq!(stream.finish_reason(), None);
    let text: String = stream.by_ref().map(|fragment| fragment.unwrap().text).collect();
    assert_eq!(text, model.generate("In the beginning", &tokens(5)).unwrap().into_text().unwrap());
    assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
    assert_eq!(stream.metrics().generated_tokens, 5);
    assert_eq!(contract.metrics(), *stream.metrics());

    // A stream keeps its own figures when another one has ended.
    contract.generate("ember", &tokens(2)).unwrap().into_text().unwrap();
    assert_eq!((stream.metrics().generated_tokens, contract.metrics().generated_tokens), (5, 2));
}

#[test]
fn a_stream_is_cancelled_from_elsewhere() {
    let model = lexicon();
    let endless =
        GenerateOptions { context_policy: ContextPolicy::Slide { keep: 0 }, ignore_eos: true, ..tokens(1) };
    let endless = GenerateOptions { max_tokens: None, ..endless };
    let mut stream = TextModel::generate(&model, "In the beginning", &endless).unwrap();
    stream.next().unwrap().unwrap();
    let cancel = stream.canceller();
    std::thread::spawn(cancel).join().unwrap();
    assert!(stream.by_ref().all(|fragment| fragment.is_ok()));
    assert_eq!(stream.finish_reason(), Some(FinishReason::Cancelled));
}

#[test]
fn a_class_is_the_token_that_an_answer_would_begin_with() {
    let model = lexicon();
    let prompts = ["In the beginning", "ember", "What is the meaning of a word, and of another one?"];
    let sampled = SamplingParams {
        temperature: 1.3,
        seed: 9,
        repeat_penalty: 1.5,
        logprobs: Some(Logprobs { top: 3, of: Distribution::Raw }),
        ..SamplingParams::default()
    };
    for sampling in [SamplingParams::default(), sampled] {
        let options =
            ClassifyOptions { sampling: sampling.clone(), logits: true, ..ClassifyOptions::default() };
        let classes = model.classify(&prompts, &options).unwrap();
        assert_eq!(classes.len(), prompts.len());
        let metrics = model.metrics();
        let lengths = prompts.map(|prompt| ids(&model, prompt).len());
        assert_eq!(metrics.prompt_tokens, lengths.iter().sum::<usize>());
        for (class, prompt) in classes.into_iter().zip(prompts) {
            let class = class.unwrap();
            let options = GenerateOptions { sampling: sampling.clone(), ignore_eos: true, ..tokens(1) };
            let first = model.generate(prompt, &options).unwrap().next().unwrap().unwrap();
            assert_eq!(Some(class.token), first.token, "{prompt}");
            assert_eq!(class.text, first.text);
            let logits =
                model.next_logits([ids(&model, prompt)], &RequestOptions::DEFAULT).next().unwrap().unwrap();
            assert_eq!(class.logits, Some(logits));
        }
    }
    let class = model.classify(&["ember"], &ClassifyOptions::default()).unwrap().remove(0).unwrap();
    assert_eq!(class.logits, None);
    let wrong = SamplingParams { top_p: 2.0, ..SamplingParams::default() };
    let refused =
        model.classify(&["ember"], &ClassifyOptions { sampling: wrong, ..ClassifyOptions::default() });
    assert!(message(refused).contains("top-p"));
    let beyond = SamplingParams { suppressed: vec![u32::MAX], ..SamplingParams::default() };
    let refused =
        model.classify(&["ember"], &ClassifyOptions { sampling: beyond, ..ClassifyOptions::default() });
    assert!(message(refused).contains("4294967295"));
}

#[test]
fn a_batch_equals_its_parts_and_errors_stay_in_their_place() {
    let model = lexicon();
    // The vocabulary has no token for a beginning, so an empty text is an empty prompt.
    let prompts = ["In the beginning", "", "ember"];
    let answers = model.batch_generate(&prompts, &tokens(6)).unwrap();
    let expected = |prompt| model.generate(prompt, &tokens(6)).unwrap().into_text().unwrap();
    assert_eq!(answers[0].as_ref().unwrap().text, expected(prompts[0]));
    assert!(matches!(answers[1], Err(Error::Engine(EngineError::EmptyPrompt))));
    assert_eq!(answers[2].as_ref().unwrap().text, expected(prompts[2]));
    assert_eq!(answers.len(), 3);
    assert_eq!(model.metrics().generated_tokens, 12);

    let classes = model.classify(&prompts, &ClassifyOptions::default()).unwrap();
    assert_eq!(classes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn a_closed_model_says_so() {
    let model = lexicon();
    let endless =
        GenerateOptions { context_policy: ContextPolicy::Slide { keep: 0 }, ignore_eos: true, ..tokens(1) };
    let endless = GenerateOptions {
        max_tokens: None,
        request: RequestOptions { run_ahead: 4, ..RequestOptions::DEFAULT },
        ..endless
    };
    let mut live = TextModel::generate(&model, "In the beginning", &endless).unwrap();
    let (begun, has_begun) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        live.next().unwrap().unwrap();
        begun.send(()).unwrap();
        let error = live.find_map(Result::err);
        assert!(live.next().is_none());
        error
    });
    has_begun.recv().unwrap();
    let session = model.session();
    // A clone is a handle to the same model.
    TextModel::close(&model.clone());
    let closed = |error: Option<Error>| matches!(error, Some(Error::Engine(EngineError::Closed)));
    assert!(closed(reader.join().unwrap()), "the stream that ran");
    TextModel::close(&model);
    let contract: &dyn TextModel = &model;
    assert!(closed(contract.generate("ember", &tokens(1)).err()));
    assert!(closed(contract.chat(&[Message::new("user", "ember")], &tokens(1)).err()));
    assert!(closed(contract.batch_generate(&["ember"], &tokens(1)).unwrap().remove(0).err()));
    assert!(closed(contract.classify(&["ember"], &ClassifyOptions::default()).unwrap().remove(0).err()));
    assert!(closed(session.generate_ids(ids(&model, "ember"), &tokens(1)).err()));
    assert_eq!(contract.model_type(), "qwen3");
}
