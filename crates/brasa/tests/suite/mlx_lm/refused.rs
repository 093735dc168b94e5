//! Options and calls that the backend refuses by name.

use std::path::Path;

use brasa::engine::EngineError;
use brasa::sampling::{Distribution, Logprobs};
use brasa::{
    Backend, BackendError, ClassifyOptions, ContextPolicy, Error, GenerateOptions, Grammar, KvType,
    LoadOptions, Model, Precision, RequestOptions, SamplingParams, Speculation,
};
use brasa_golden::folder;

use super::{child, model};

#[test]
fn options_that_are_not_honoured_are_refused_by_name() {
    let model = model("expect nothing");
    let refused = |options: &GenerateOptions| match model.generate("x", options).err() {
        Some(Error::Backend(BackendError::Unsupported { backend: "mlx_lm", what, .. })) => what,
        other => panic!("{options:?}: {other:?}"),
    };
    let native = Model::load(folder("tiny-qwen2"), &LoadOptions::default()).unwrap();
    let mask = native.grammar(&Grammar::Lark("start: \"a\"".into())).unwrap();
    let plain = GenerateOptions::default;
    for (name, options) in [
        ("stop_ids", GenerateOptions { stop_ids: vec![1], ..plain() }),
        ("stop_strings", GenerateOptions { stop_strings: vec!["a".into()], ..plain() }),
        ("ignore_eos", GenerateOptions { ignore_eos: true, ..plain() }),
        (
            "the context policy `slide`",
            GenerateOptions { context_policy: ContextPolicy::Slide { keep: 1 }, ..plain() },
        ),
        ("mask: grammars and schemas", GenerateOptions { mask: Some(mask), ..plain() }),
        ("speculation", GenerateOptions { speculation: Some(Speculation::LOOKUP), ..plain() }),
    ] {
        assert_eq!(refused(&options), name);
    }
    let sampling = |change: &dyn Fn(&mut SamplingParams)| {
        let mut options = plain();
        change(&mut options.sampling);
        refused(&options)
    };
    assert_eq!(sampling(&|params| params.typical_p = 0.9), "typical_p");
    assert_eq!(sampling(&|params| params.top_n_sigma = 1.0), "top_n_sigma");
    assert_eq!(sampling(&|params| params.xtc_probability = 0.5), "xtc_probability");
    assert_eq!(sampling(&|params| params.dynatemp_range = 0.5), "dynatemp_range");
    assert_eq!(sampling(&|params| params.dry.multiplier = 0.5), "dry");
    assert_eq!(sampling(&|params| params.repeat_penalty = 1.1), "repeat_penalty");
    assert_eq!(sampling(&|params| params.frequency_penalty = 0.1), "frequency_penalty");
    assert_eq!(sampling(&|params| params.presence_penalty = -0.1), "presence_penalty");
    assert_eq!(sampling(&|params| params.logit_bias = vec![(1, 1.0)]), "logit_bias");
    assert_eq!(sampling(&|params| params.suppressed = vec![1]), "suppressed");
    assert_eq!(sampling(&|params| params.min_tokens = 1), "min_tokens");
    let logprobs = Logprobs { top: 0, of: Distribution::Raw };
    assert_eq!(sampling(&|params| params.logprobs = Some(logprobs)), "logprobs");
    let warm = SamplingParams { temperature: 0.7, ..SamplingParams::default() };
    for filtered in [
        SamplingParams { top_k: 3, ..warm.clone() },
        SamplingParams { top_p: 0.5, ..warm.clone() },
        SamplingParams { min_p: 0.5, ..warm },
    ] {
        let order = sampling(&|params| *params = filtered.clone());
        assert_eq!(
            order,
            "the sampling order penalties;dry;temperature;top_n_sigma;top_p;top_k;typ_p;min_p;xtc"
        );
    }

    let loading = |options: LoadOptions| match child("load").load(&folder("tiny-qwen2"), &options).err() {
        Some(Error::Backend(BackendError::Unsupported { backend: "mlx_lm", what, .. })) => what,
        other => panic!("{options:?}: {other:?}"),
    };
    let plain = LoadOptions::default;
    for (name, options) in [
        ("threads", LoadOptions { threads: Some(1), ..plain() }),
        ("isa", LoadOptions { isa: Some("avx2".into()), ..plain() }),
        ("precision `reference`", LoadOptions { precision: Precision::Reference, ..plain() }),
        ("deterministic", LoadOptions { deterministic: true, ..plain() }),
        ("kv_type", LoadOptions { kv_type: Some(KvType::F16), ..plain() }),
        ("chunk", LoadOptions { chunk: Some(1), ..plain() }),
        ("mixed_chunk", LoadOptions { mixed_chunk: Some(1), ..plain() }),
        ("cache_bytes", LoadOptions { cache_bytes: Some(1), ..plain() }),
        ("prefix_bytes", LoadOptions { prefix_bytes: Some(1), ..plain() }),
        ("speculation", LoadOptions { speculation: Speculation::LOOKUP, ..plain() }),
        ("strict", LoadOptions { strict: true, ..plain() }),
        ("pre_tokenizer", LoadOptions { pre_tokenizer: Some("qwen2".into()), ..plain() }),
        ("chat_template", LoadOptions { chat_template: Some(String::new()), ..plain() }),
    ] {
        assert_eq!(loading(options), name);
    }
}

#[test]
fn what_only_native_backends_do_points_at_them() {
    let model = model("expect nothing");
    let classify = model.classify(&["x"], &ClassifyOptions::default()).err().unwrap().to_string();
    let native = "hint: load the model with a native backend: `cpu` or `cuda`";
    assert_eq!(classify, format!("mlx_lm does not support classify\n{native}"));
    let batch = model.batch_generate(&["x"], &GenerateOptions::default()).err().unwrap().to_string();
    assert_eq!(batch, format!("mlx_lm does not support batch_generate\n{native}"));
    let senseless = GenerateOptions {
        request: RequestOptions { run_ahead: 0, ..RequestOptions::DEFAULT },
        ..GenerateOptions::default()
    };
    assert!(matches!(model.generate("x", &senseless).err(), Some(Error::Engine(EngineError::Options(_)))));

    let backend = child("expect nothing");
    let load = |path: &Path| backend.load(path, &LoadOptions::default()).err().unwrap();
    let gguf = folder("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    assert!(load(&gguf).to_string().contains("it is no folder"));
    assert!(matches!(load(Path::new("no/such/folder")), Error::File { .. }));
    let none = LoadOptions { context: Some(0), ..LoadOptions::default() };
    let refused = backend.load(&folder("tiny-qwen2"), &none).err().unwrap();
    assert_eq!(refused.to_string(), "the context must be at least 1");
}
