//! Configurations that make no sense, and checkpoints that do not fit together: errors that say what, before anything
//! is allocated.

use brasa_formats::{Checkpoint, Tensor};
use brasa_fuzz::Fuzzer;
use brasa_golden::folder;
use brasa_models::{LoadOptions, ModelError, Source, build, read_spec};
use serde_json::{Map, Value, json};

const STRICT: LoadOptions = LoadOptions { context_length: None, strict: true };

/// A random checkpoint's configuration and tensors.
fn checkpoint(name: &str) -> (Map<String, Value>, Vec<Tensor>) {
    let path = folder("random").join(name);
    let config = std::fs::read(path.join("config.json")).expect("config.json");
    let tensors = Checkpoint::open(&path).expect("a checkpoint").tensors().to_vec();
    (serde_json::from_slice(&config).expect("an object"), tensors)
}

fn source(config: Map<String, Value>, tensors: Vec<Tensor>) -> Source {
    Source::hugging_face(Value::from(config).to_string().as_bytes(), tensors).expect("a named architecture")
}

/// The error of loading `name` with some keys changed.
fn refused(name: &str, changes: &Value) -> String {
    let (mut config, tensors) = checkpoint(name);
    for (key, value) in changes.as_object().expect("changes") {
        config.insert(key.clone(), value.clone());
    }
    match build(&source(config, tensors), &STRICT) {
        Err(error) => error.to_string(),
        Ok(model) => panic!("{name} with {changes}: {:?}", model.spec),
    }
}

#[test]
fn absurd_numbers() {
    for (changes, message) in [
        (
            json!({"num_attention_heads": 0}),
            "num_attention_heads: found 0, expected a whole number from 1 to 4096",
        ),
        (json!({"num_attention_heads": -4}), "num_attention_heads: found -4, expected"),
        (json!({"num_attention_heads": "4"}), "num_attention_heads: found \"4\", expected"),
        (json!({"num_hidden_layers": 1_000_000_000}), "num_hidden_layers: found 1000000000, expected"),
        (json!({"num_hidden_layers": 1e300}), "num_hidden_layers: found 1e+300, expected"),
        (json!({"num_hidden_layers": 2.5}), "num_hidden_layers: found 2.5, expected"),
        (json!({"hidden_size": u64::MAX}), "hidden_size: found 18446744073709551615, expected"),
        (json!({"head_dim": 1u64 << 63}), "head_dim: found 9223372036854775808, expected"),
        (json!({"head_dim": 15}), "heads of 15 elements, expected an even number"),
        (json!({"num_key_value_heads": 3}), "4 query heads share 3 key heads, expected a multiple"),
        (
            json!({"head_dim": null, "num_attention_heads": 5, "num_key_value_heads": 5}),
            "width 32 in 5 heads",
        ),
        (json!({"vocab_size": 0}), "vocab_size: found 0, expected"),
        (json!({"rms_norm_eps": -1.0}), "rms_norm_eps: found -1.0, expected a number above zero"),
        (json!({"rope_theta": 0}), "rope_theta: found 0, expected a number above zero"),
        (json!({"rope_scaling": 7}), "rope_scaling: found 7, expected an object"),
        (
            json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
            "rope_scaling.rope_type: found dynamic, expected default, linear",
        ),
        (json!({"rope_scaling": {"rope_type": "linear"}}), "rope_scaling.factor is missing"),
        (
            json!({"rope_scaling": {"rope_type": "linear", "factor": 0}}),
            "rope_scaling.factor: found 0, expected",
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                "original_max_position_embeddings": 8}}),
            "rope_scaling.high_freq_factor: found 4, expected more than low_freq_factor, 4",
        ),
        (
            json!({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}),
            "found 1 factors, expected 8",
        ),
        (
            json!({"rope_scaling": {"rope_type": "linear", "factor": 2, "beta": 3}}),
            "rope_scaling.beta = 3 is not known",
        ),
        (json!({"partial_rotary_factor": 2}), "partial_rotary_factor 2"),
        (json!({"partial_rotary_factor": 0}), "RoPE turns 0 elements of heads of 16"),
        (json!({"hidden_act": "relu"}), "hidden_act: found \"relu\", expected silu"),
        (json!({"tie_word_embeddings": "yes"}), "tie_word_embeddings: found \"yes\", expected true or false"),
    ] {
        let error = refused("llama31", &changes);
        assert!(error.contains(message), "{changes}: {error}");
    }
}

#[test]
fn keys_that_change_the_mathematics() {
    for (changes, message) in [
        (json!({"clip_qkv": 8.0}), "clip_qkv: found 8.0, expected null"),
        (json!({"is_encoder_decoder": true}), "is_encoder_decoder: found true, expected false or null"),
        (json!({"sliding_window": 128}), "sliding_window: found 128, expected null"),
        (json!({"use_bidirectional_attention": "all"}), "use_bidirectional_attention: found \"all\""),
        (json!({"something_new": {"a": 1}}), "key something_new = {\"a\":1} is not known"),
    ] {
        let error = refused("llama31", &changes);
        assert!(error.contains(message), "{changes}: {error}");
    }
    for (name, changes, message) in [
        ("mixtral", json!({"num_experts_per_tok": 5}), "5 experts chosen of 4"),
        ("qwen3moe", json!({"mlp_only_layers": [9]}), "expected layers below 2"),
        ("gemma3", json!({"layer_types": ["full_attention"]}), "for each of 3 layers"),
        ("gemma3", json!({"layer_types": ["a", "b", "c"]}), "for each of 3 layers"),
        ("gemma4", json!({"num_kv_shared_layers": 4}), "none of the first 0 is of its kind"),
        ("gemma4", json!({"vocab_size_per_layer_input": 99}), "per-layer inputs for 99 tokens, expected 160"),
        ("gemma4", json!({"per_layer_config": {"0": {"width": 3}}}), "per_layer_config.0.width: found 3"),
    ] {
        let error = refused(name, &changes);
        assert!(error.contains(message), "{name} {changes}: {error}");
    }
}

#[test]
fn unknown_keys_are_warnings_unless_strict() {
    let (mut config, tensors) = checkpoint("llama31");
    config.insert("something_new".into(), json!(1));
    let model = build(&source(config, tensors), &LoadOptions::default()).expect("a model");
    let expected = "configuration key something_new = 1 is not known, and may change what the model computes";
    assert_eq!(model.warnings, [expected]);
}

#[test]
fn an_unknown_architecture_is_named() {
    let (mut config, tensors) = checkpoint("llama31");
    config.insert("model_type".into(), json!("llamas"));
    let error = build(&source(config, tensors), &STRICT).expect_err("no such family").to_string();
    assert!(
        error.starts_with("architecture llamas is not supported\nhint: supported are llama, mistral"),
        "{error}"
    );
    let gguf = Source::gguf([("general.architecture".into(), json!("mamba"))], []).expect("a name");
    let error = read_spec(&gguf, &STRICT).expect_err("no such family").to_string();
    assert!(error.contains("architecture mamba is not supported"), "{error}");
    let unnamed = Source::gguf([], []).expect_err("no name");
    assert_eq!(unnamed, ModelError::MissingKey { key: "general.architecture".into() });
    assert!(Source::hugging_face(b"[]", []).is_err());
    assert!(Source::hugging_face(b"{\"model_type\": \"llama\"", []).is_err());
}

#[test]
fn tensors_that_do_not_fit() {
    let without = |name: &str, missing: &str| {
        let (config, mut tensors) = checkpoint(name);
        tensors.retain(|tensor| tensor.name != missing);
        build(&source(config, tensors), &STRICT).expect_err("a tensor is missing").to_string()
    };
    assert_eq!(
        without("llama31", "model.layers.1.self_attn.v_proj.weight"),
        "tensor model.layers.1.self_attn.v_proj.weight is missing"
    );
    assert_eq!(
        without("mixtral", "model.layers.0.block_sparse_moe.experts.3.w2.weight").split(" or ").last(),
        Some("model.layers.0.block_sparse_moe.experts.3.w2.weight is missing")
    );

    let (config, mut tensors) = checkpoint("llama31");
    let mut stray = tensors[0].clone();
    stray.name = "model.layers.0.self_attn.sinks".into();
    tensors.push(stray);
    let error =
        build(&source(config.clone(), tensors.clone()), &STRICT).expect_err("a stray tensor").to_string();
    assert_eq!(error, "tensor model.layers.0.self_attn.sinks has no place in a llama model");
    let lenient = build(&source(config, tensors), &LoadOptions::default()).expect("a model");
    assert_eq!(lenient.warnings, [error]);

    let error = refused("llama31", &json!({"num_attention_heads": 8, "num_key_value_heads": 2}));
    let expected = "model.layers.0.self_attn.q_proj.weight: shape [64, 32], expected [128, 32] (8 heads × 16)\n\
                    hint: configuration and tensors are of different models";
    assert_eq!(error, expected);
    let error = refused("llama31", &json!({"vocab_size": 161}));
    assert!(error.contains("expected [161, 32] (vocabulary × width)"), "{error}");
}

/// Vision towers and computed tables of multimodal and old exports are no part of the text model.
#[test]
fn foreign_tensors_are_passed_over() {
    let (config, mut tensors) = checkpoint("llama31");
    for name in ["vision_tower.patch.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"] {
        let mut foreign = tensors[0].clone();
        foreign.name = name.into();
        tensors.push(foreign);
    }
    let prefixed = tensors.into_iter().map(|mut tensor| {
        if tensor.name.starts_with("model.") || tensor.name.starts_with("lm_head.") {
            tensor.name = format!("language_model.{}", tensor.name);
        }
        tensor
    });
    let model = build(&source(config, prefixed.collect()), &STRICT).expect("a model");
    assert_eq!(model.warnings, Vec::<String>::new());
}

/// The outcome of loading.
fn outcome(source: Result<Source, ModelError>) -> String {
    let result = source.and_then(|source| {
        let lenient = build(&source, &LoadOptions { context_length: Some(64), strict: false });
        build(&source, &STRICT).and(lenient)
    });
    match result {
        Ok(model) => format!("{} {:?}", model.spec.family, model.spec.layers[0]),
        Err(error) => error.to_string(),
    }
}

fn fuzzer(name: String) -> Fuzzer {
    Fuzzer::new(name).words(WORDS).memory_factor(4096)
}

const WORDS: [&str; 12] = [
    "null",
    "true",
    "0",
    "-1",
    "1e308",
    "[]",
    "{}",
    "\"full_attention\"",
    "4294967296",
    "\"yarn\"",
    "0.5",
    "1024",
];

fn fuzz_config(name: &str) {
    let (config, tensors) = checkpoint(name);
    let seed = serde_json::to_vec(&config).expect("JSON");
    fuzzer(format!("config-{name}"))
        .seed(seed)
        .words(["text_config", "rope_parameters", "per_layer_config", "mlp_only_layers", "layer_types"])
        .run(|bytes| outcome(Source::hugging_face(bytes, tensors.iter().cloned())));
}

#[test]
fn fuzzed_configs() {
    for name in
        ["llama-yarn", "qwen3moe", "gemma3-linear", "gemma4", "gemma4-keys-are-values", "phi3-longrope"]
    {
        fuzz_config(name);
    }
}

#[test]
fn fuzzed_gguf_metadata() {
    for name in ["gemma4-moe", "llama-yarn", "phi3-longrope"] {
        let path = folder("random-gguf").join(format!("{name}.gguf"));
        let checkpoint = Checkpoint::open(&path).expect("a checkpoint");
        let tensors = checkpoint.tensors().to_vec();
        let brasa_formats::Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("{name}") };
        let pairs: Map<String, Value> = brasa_models::gguf_pairs(metadata).into_iter().collect();
        fuzzer(format!("gguf-{name}")).seed(serde_json::to_vec(&pairs).expect("JSON")).run(|bytes| {
            match serde_json::from_slice::<Map<String, Value>>(bytes) {
                Ok(pairs) => outcome(Source::gguf(pairs, tensors.iter().cloned())),
                Err(error) => error.to_string(),
            }
        });
    }
}
