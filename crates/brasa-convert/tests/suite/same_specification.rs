//! A converted checkpoint computes what its source computes, or is refused by name: for every family, with every key
//! that a family reads, and every key that must be neutral, set to many values.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use brasa_convert::{ConvertError, Options, Recipe, convert_checkpoint};
use brasa_formats::{Bytes, Checkpoint, Existing};
use brasa_golden::{Runner, folder};
use brasa_graph::op::RopeLayout;
use brasa_graph::testing::{Tolerance, compare};
use brasa_models::{LoadOptions, ModelError, ModelSpec, Source, build, configuration_keys, load, read_spec};
use serde_json::{Map, Value, json};

use super::scratch;

/// Same weights, other order of sums.
const SAME: Tolerance = Tolerance(1e-4);
const IDS: [u32; 12] = [1, 17, 33, 5, 99, 42, 7, 150, 3, 64, 81, 2];
/// No context asked for, a short one, and one beyond any model's.
const CONTEXTS: [Option<usize>; 3] = [None, Some(1), Some(1 << 30)];

/// The outcome of one mutated configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Reader and converter refuse it with the same words.
    Refused,
    /// GGUF cannot say it, and the converter tells which key.
    NoGgufForm,
    /// The reader passes over a tensor that has no place in the model, which the converter refuses by name.
    StrayTensor,
    /// Converted; the specification is the source's.
    Same,
}

/// A checkpoint of `models/random`, to be mutated.
struct Base {
    name: &'static str,
    config: Map<String, Value>,
    weights: Bytes,
    output: PathBuf,
}

impl Base {
    fn new(name: &'static str) -> Self {
        // Each has its own file: tests of one process may take the same checkpoint.
        static BASES: AtomicUsize = AtomicUsize::new(0);
        let path = folder("random").join(name);
        let config = serde_json::from_slice(&std::fs::read(path.join("config.json")).unwrap()).unwrap();
        let weights = Bytes::from(std::fs::read(path.join("model.safetensors")).unwrap());
        let number = BASES.fetch_add(1, Ordering::Relaxed);
        let output = scratch().join(format!("brasa-same-{}-{number}-{name}.gguf", std::process::id()));
        Self { name, config, weights, output }
    }

    fn checkpoint(&self, changes: &[(&str, Value)]) -> Checkpoint {
        let mut config = self.config.clone();
        for (key, value) in changes {
            config.insert((*key).into(), value.clone());
        }
        let config = Bytes::from(serde_json::to_vec(&config).unwrap());
        let files = [("config.json", config), ("model.safetensors", self.weights.clone())];
        let files: BTreeMap<_, _> = files.map(|(name, bytes)| (name.to_owned(), bytes)).into();
        Checkpoint::from_files(files).unwrap()
    }

    /// Converts with some keys changed and judges the result. `run` also compares logits.
    fn check(&self, changes: &[(&str, Value)], run: bool) -> Outcome {
        let label = format!("{}: {changes:?}", self.name);
        let checkpoint = self.checkpoint(changes);
        let read = Source::of(&checkpoint).and_then(|source| build(&source, &LoadOptions::default()));
        let options = Options { threads: 1, existing: Existing::Replace, ..Options::new(Recipe::F32) };
        let quiet = &mut |_: brasa_convert::Event<'_>| ControlFlow::Continue(());
        let converted = convert_checkpoint(&checkpoint, &self.output, &options, quiet);
        match (read, converted) {
            (Err(reader), Err(converter)) => {
                assert_eq!(converter.to_string(), reader.to_string(), "{label}");
                Outcome::Refused
            }
            (Err(reader), Ok(_)) => panic!("{label}: converted, though it cannot be loaded: {reader}"),
            (Ok(_), Err(ConvertError::Model(ModelError::NoGgufForm { key, .. }))) => {
                assert!(!key.is_empty(), "{label}");
                Outcome::NoGgufForm
            }
            (Ok(model), Err(ConvertError::Tensor { name, .. })) => {
                assert!(model.unused_tensors.contains(&name), "{label}: {name} was refused, but is used");
                Outcome::StrayTensor
            }
            (Ok(_), Err(other)) => panic!("{label}: loaded, but not converted: {other}"),
            (Ok(_), Ok(_)) => {
                let written = Checkpoint::open(&self.output).unwrap();
                same(&checkpoint, &written, &label);
                if run {
                    same_logits(&checkpoint, &written, &label);
                }
                Outcome::Same
            }
        }
    }

    /// Sets every key to every value; returns the keys that GGUF cannot say.
    fn check_every_key(&self) {
        let mut without_form = BTreeSet::new();
        let mut failures = Vec::new();
        let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
        let base = spec(&self.checkpoint(&[]));
        for key in configuration_keys() {
            let mut run = true;
            let mut values = values(self.config.get(key), self.config["num_hidden_layers"].as_u64().unwrap());
            if key.starts_with("rope") {
                values.extend(ropes());
            }
            for value in values {
                let changes = [(key, value)];
                // Logits of one mutation of each key that changes something.
                let changed = run && spec(&self.checkpoint(&changes)) != base;
                let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| self.check(&changes, changed)));
                let outcome = match outcome {
                    Ok(outcome) => outcome,
                    Err(panic) => {
                        failures.push(panic.downcast::<String>().map_or_else(|_| "?".into(), |text| *text));
                        continue;
                    }
                };
                *outcomes.entry(outcome).or_default() += 1;
                run &= !(changed && outcome == Outcome::Same);
                if outcome == Outcome::NoGgufForm {
                    without_form.insert(key);
                }
            }
        }
        assert!(failures.is_empty(), "{}: {} failures\n{}", self.name, failures.len(), failures.join("\n"));
        println!("{}: {outcomes:?}, without a form: {without_form:?}", self.name);
        assert!(outcomes[&Outcome::Same] > 200, "{}: {outcomes:?}", self.name);
        assert!(outcomes[&Outcome::Refused] > 200, "{}: {outcomes:?}", self.name);
        let expected: &[&str] = match self.name {
            "qwen3moe" => &["decoder_sparse_step", "mlp_only_layers", "rope_parameters", "rope_scaling"],
            "llama-yarn" | "phi3-window" | "phi3-longrope" => {
                &["original_max_position_embeddings", "rope_parameters", "rope_scaling"]
            }
            _ => &["rope_parameters", "rope_scaling"],
        };
        let odd: Vec<_> = without_form.iter().filter(|key| !expected.contains(key)).collect();
        assert!(odd.is_empty(), "{}: no GGUF form for {odd:?}", self.name);
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.output);
    }
}

fn spec(checkpoint: &Checkpoint) -> Option<ModelSpec> {
    let source = Source::of(checkpoint).ok()?;
    Some(read_spec(&source, &LoadOptions::default()).ok()?.0)
}

fn same(checkpoint: &Checkpoint, written: &Checkpoint, label: &str) {
    for context_length in CONTEXTS {
        let of = |checkpoint: &Checkpoint| -> ModelSpec {
            let source = Source::of(checkpoint).unwrap();
            let spec = read_spec(&source, &LoadOptions { context_length, strict: false });
            spec.unwrap_or_else(|error| panic!("{label}: {error}")).0
        };
        let (mut expected, found) = (of(checkpoint), of(written));
        // By intent: GGUF stores norms whole, and pairs neighbours in Llama's heads.
        expected.norm_offset = 0.0;
        if matches!(expected.family, "llama" | "mistral" | "mixtral") {
            for layer in &mut expected.layers {
                assert_eq!(layer.attention.rope.layout, RopeLayout::SplitHalf);
                layer.attention.rope.layout = RopeLayout::Interleaved;
            }
        }
        assert_eq!(expected.difference(&found), None, "{label}");
    }
}

fn same_logits(checkpoint: &Checkpoint, written: &Checkpoint, label: &str) {
    let logits = |checkpoint: &Checkpoint| {
        let model = load(checkpoint, &LoadOptions::default());
        Runner::new(model.unwrap_or_else(|error| panic!("{label}: {error}"))).logits(&IDS).concat()
    };
    let comparison = compare(&logits(written), &logits(checkpoint));
    assert!(comparison.within(SAME), "{label}: {comparison}");
}

/// Values of every kind, and some near the present one.
fn values(present: Option<&Value>, layers: u64) -> Vec<Value> {
    let mut values = vec![
        json!(null),
        json!(false),
        json!(true),
        json!(0),
        json!(1),
        json!(2),
        json!(0.5),
        json!(7.0),
        json!(1000),
        json!("gelu"),
        json!("gelu_pytorch_tanh"),
        json!("silu"),
        json!("vision"),
        json!([]),
        json!([0]),
        json!({}),
        json!({"0": {"head_dim": 8}}),
    ];
    if let Some(number) = present.and_then(Value::as_u64) {
        values.extend([
            json!(number),
            json!(number * 2),
            json!(number / 2),
            json!(vec![number; layers as usize]),
        ]);
    }
    let kind = |full: bool| if full { "full_attention" } else { "sliding_attention" };
    let kinds = |full: fn(u64) -> bool| json!((0..layers).map(|at| kind(full(at))).collect::<Vec<_>>());
    values.extend([kinds(|_| true), kinds(|_| false), kinds(|at| at == 0), kinds(|at| at % 2 == 1)]);
    values
}

fn ropes() -> Vec<Value> {
    let factors = |len: usize| (0..len).map(|at| 1.0 + at as f64 / 4.0).collect::<Vec<_>>();
    let mut ropes = vec![
        json!({"rope_type": "default"}),
        json!({"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}),
        json!({"type": "linear", "factor": 4.0}),
        json!({"rope_type": "linear", "factor": 1.0}),
        json!({"rope_type": "linear"}),
        json!({"rope_type": "dynamic", "factor": 2.0}),
        json!({"rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.5}),
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}),
        json!({"full_attention": {"rope_theta": 700.0, "rope_type": "default", "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": 70.0, "rope_type": "default"}}),
        json!({"full_attention": {"rope_theta": 700.0, "rope_type": "linear", "factor": 3.0},
            "sliding_attention": {"rope_theta": 70.0, "partial_rotary_factor": 0.5}}),
        json!({"full_attention": {"rope_type": "proportional", "rope_theta": 700.0, "partial_rotary_factor": 0.5, "factor": 3.0}}),
    ];
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    for (key, value) in [
        ("finetuned", json!(true)),
        ("attention_factor", json!(0.8)),
        ("beta_fast", json!(16.0)),
        ("beta_slow", json!(2.0)),
        ("truncate", json!(false)),
        ("mscale", json!(2.0)),
        ("mscale_all_dim", json!(0.5)),
        ("original_max_position_embeddings", json!(null)),
        ("factor", json!(null)),
    ] {
        let mut changed = yarn.clone();
        changed[key] = value;
        if key == "mscale_all_dim" {
            changed["mscale"] = json!(2.0);
        }
        ropes.push(changed);
    }
    for len in [4, 6, 8] {
        for kind in ["longrope", "su", "yarn"] {
            ropes.push(json!({"type": kind, "short_factor": factors(len), "long_factor": factors(len)}));
        }
        ropes.push(json!({"type": "longrope", "short_factor": vec![1.0; len], "long_factor": factors(len),
            "attention_factor": 1.3, "factor": 2.0}));
    }
    ropes
}

super::for_each_base!(|name| Base::new(name).check_every_key());

/// The three that passed in silence.
#[test]
fn mathematics_is_not_changed_in_silence() {
    let base = Base::new("llama31");
    assert_eq!(base.check(&[("hidden_act", json!("gelu"))], true), Outcome::Same);
    assert_eq!(base.check(&[("residual_multiplier", json!(0.5))], true), Outcome::Refused);
    assert_eq!(base.check(&[("clip_qkv", json!(8.0))], true), Outcome::Refused);
}

/// A file that llama.cpp will read in another way is told of.
#[test]
fn what_llama_cpp_passes_over_is_told() {
    let notes = |name: &'static str, changes: &[(&str, Value)]| {
        let base = Base::new(name);
        let mut notes = Vec::new();
        let options = Options { existing: Existing::Replace, ..Options::new(Recipe::F32) };
        convert_checkpoint(&base.checkpoint(changes), &base.output, &options, &mut |event| {
            if let brasa_convert::Event::Warning(note) = event {
                notes.push(note);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        notes.retain(|note| !note.contains("no tokenizer.json"));
        notes.join("\n")
    };
    for (name, changes, expected) in [
        (
            "llama31",
            vec![("hidden_act", json!("gelu"))],
            "the activation is gelu: llama.cpp takes it for silu",
        ),
        ("qwen3moe", vec![("norm_topk_prob", json!(false))], "norm_topk_prob is false: llama.cpp"),
        (
            "qwen3moe",
            vec![("use_sliding_window", json!(true)), ("sliding_window", json!(16))],
            "use_sliding_window is true: llama.cpp",
        ),
        ("qwen2-window", vec![], "use_sliding_window is true: llama.cpp"),
        ("gemma2", vec![("attn_logit_softcapping", json!(null))], "a soft-cap is switched off: llama.cpp"),
        ("gemma2", vec![], "query_pre_attn_scalar is 9: llama.cpp takes it for 16"),
        ("llama-yarn-mscale", vec![], "llama.cpp passes over an attention factor"),
        ("llama31", vec![], ""),
        ("llama31", vec![("something_new", json!(1))], "key something_new = 1 is not known"),
    ] {
        let found = notes(name, &changes);
        assert!(
            found.contains(expected) && found.is_empty() == expected.is_empty(),
            "{name} {changes:?}: {found}"
        );
    }
}

/// If the old reader and the old converter read one file in two ways, transformers decides.
#[test]
fn one_reading_of_what_is_said_twice() {
    // A `rope_scaling` that is not empty goes before `rope_parameters`.
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    let plain = json!({"rope_type": "default", "rope_theta": 5000.0});
    let llama = Base::new("llama2");
    let both = [("rope_scaling", linear.clone()), ("rope_parameters", plain.clone())];
    assert_eq!(llama.check(&both, true), Outcome::Same);
    assert_eq!(spec(&llama.checkpoint(&both)), spec(&llama.checkpoint(&both[..1])));
    let empty = [("rope_scaling", json!({})), ("rope_parameters", plain)];
    assert_eq!(llama.check(&empty, true), Outcome::Same);
    assert_eq!(spec(&llama.checkpoint(&empty)), spec(&llama.checkpoint(&empty[1..])));
    // In Gemma 3 it is laid over the parameters of the layers that see everything.
    let gemma3 = Base::new("gemma3");
    let parts = json!({"full_attention": {"rope_theta": 700.0}, "sliding_attention": {"rope_theta": 70.0}});
    let overlaid = [("rope_scaling", linear), ("rope_parameters", parts)];
    assert_eq!(gemma3.check(&overlaid, true), Outcome::Same);
    let rope = |at: usize| spec(&gemma3.checkpoint(&overlaid)).unwrap().layers[at].attention.rope.clone();
    assert_eq!((rope(2).theta, rope(0).theta), (700.0, 70.0));
    assert_ne!(
        rope(2).frequencies(),
        brasa_models::RopeSpec { scaling: brasa_models::RopeScaling::None, ..rope(2) }.frequencies()
    );

    // The width of experts is `moe_intermediate_size`; the older name counts where that is absent.
    let moe = Base::new("gemma4-moe");
    let other = [("expert_intermediate_size", json!(12))];
    assert_eq!(moe.check(&other, true), Outcome::Same);
    assert_eq!(spec(&moe.checkpoint(&other)), spec(&moe.checkpoint(&[])));
    let older = [("moe_intermediate_size", json!(null)), ("expert_intermediate_size", json!(24))];
    assert_eq!(spec(&moe.checkpoint(&older)), spec(&moe.checkpoint(&[])));

    // transformers writes `_sliding_window_pattern` and never reads it.
    let pattern = [("_sliding_window_pattern", json!(2))];
    assert_eq!(gemma3.check(&pattern, true), Outcome::Same);
    assert_eq!(spec(&gemma3.checkpoint(&pattern)), spec(&gemma3.checkpoint(&[])));

    // The family is that of `model_type`; a class that is not the family's is refused.
    for class in
        ["LlamaForSequenceClassification", "LlamaForCausalLMEagle3", "Qwen2ForCausalLM", "LlamaModel"]
    {
        assert_eq!(llama.check(&[("architectures", json!([class]))], false), Outcome::Refused, "{class}");
    }
    assert_eq!(llama.check(&[("architectures", json!([]))], false), Outcome::Same);
    assert_eq!(llama.check(&[("model_type", json!("qwen2"))], false), Outcome::Refused);
}
