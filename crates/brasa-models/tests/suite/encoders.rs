//! Every family of encoders against transformers, on tiny random checkpoints (`tools/golden/models/random_encoders.py`), and
//! their derivatives against differences and themselves.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use brasa_formats::Checkpoint;
use brasa_golden::{Golden, folder};
use brasa_graph::Graph;
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::pass::prune;
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};
use brasa_graph::testing::{Tolerance, check_derivatives, compare, varying_weights};
use brasa_models::{
    EncoderModel, LoadOptions, ModelError, ModelKind, SentenceConfig, Source, encoder_to_gguf, load,
    load_encoder, supported_encoders,
};

use crate::gradients::check_encoder;

/// The bound of reference precision.
const REFERENCE: Tolerance = Tolerance(1e-4);

fn load_strictly(path: &Path) -> EncoderModel {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let options = LoadOptions { strict: true, ..LoadOptions::default() };
    let model = load_encoder(&checkpoint, &options).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(model.warnings, Vec::<String>::new(), "{}", path.display());
    assert!(ModelKind::of(&Source::of(&checkpoint).expect("an architecture")) == ModelKind::Encoder);
    model
}

/// The step of texts, of which output rows are those that `outs` names in each.
fn step(model: &EncoderModel, texts: &[(Vec<u32>, Vec<u32>)], outs: &Outs) -> Step {
    let segment = |(number, (ids, types)): (usize, &(Vec<u32>, Vec<u32>))| {
        let mut segment = Segment::text(SequenceId(number as u64), 0, ids.clone(), outs.clone(), Vec::new());
        if model.token_types() > 0 {
            segment.given = vec![GivenValues::U32(types.clone().into())];
        }
        segment
    };
    Step { segments: texts.iter().enumerate().map(segment).collect() }
}

/// The graph's output for texts in one step, of the rows that `outs` names in each.
fn run(model: &EncoderModel, graph: Graph, texts: &[(Vec<u32>, Vec<u32>)], outs: &Outs) -> Vec<f32> {
    let device = ReferenceBackend;
    let graph = Arc::new(graph);
    let weights = device
        .upload(&graph, Precision::Reference, &mut |_| ControlFlow::Continue(()))
        .expect("the reference runs every graph");
    let mut pool =
        device.kv_pool(KvPoolSpec::of(&graph, KvType::F32)).expect("the reference runs every graph");
    let limits = ProgramLimits { max_rows: 512, max_outs: 512, max_segments: 8 };
    let mut program = device.compile(graph, weights, limits.into()).expect("the reference runs every graph");
    let outputs = program.run(&step(model, texts, outs), &mut *pool).expect("the reference runs every graph");
    outputs.get(0).to_floats()
}

fn check(name: &str) {
    let path = folder("random-encoders").join(name);
    let golden = Golden::read(&path.join("golden.safetensors"));
    let model = load_strictly(&path);
    let text = |label: &str| (golden.ids(&format!("{label}.ids")), golden.ids(&format!("{label}.types")));
    let texts = ["short", "long"].map(text);
    let expected = [golden.floats("short.states"), golden.floats("long.states")];
    for ((ids, types), expected) in texts.iter().zip(&expected) {
        let found = run(&model, model.hidden_graph(), &[(ids.clone(), types.clone())], &Outs::All);
        let comparison = compare(&found, expected);
        println!("{name}, {} tokens: {comparison}", ids.len());
        assert!(comparison.within(REFERENCE), "{name}, {} tokens: {comparison}", ids.len());
    }
    // Texts of one step do not see each other.
    let found = run(&model, model.hidden_graph(), &texts, &Outs::All);
    let comparison = compare(&found, &expected.concat());
    assert!(comparison.within(REFERENCE), "{name}, both texts: {comparison}");
    let first = run(&model, model.hidden_graph(), &texts, &Outs::Rows([0].into()));
    let width = model.hidden_size();
    assert_eq!(first, [&found[..width], &found[expected[0].len()..][..width]].concat(), "{name}: first rows");

    let graph = prune(&model.hidden_graph());
    let long = step(&model, &texts[1..], &Outs::All);
    check_encoder(name, &Golden::read(&path.join("gradients.safetensors")), &graph, &long);
    let step = step(&model, &texts[..1], &Outs::All);
    check_derivatives(name, &graph, &varying_weights(&graph), &step, true);

    let Some(graph) = model.logits_graph() else {
        // A head that reads means is computed by whoever runs the graph.
        assert_eq!(name.ends_with("judge"), model.head.is_some(), "{name} has a head");
        return;
    };
    let expected = [golden.floats("short.logits"), golden.floats("long.logits")].concat();
    let pruned = prune(&graph);
    check_derivatives(name, &pruned, &varying_weights(&pruned), &step, true);
    let comparison = compare(&run(&model, graph, &texts, &Outs::Rows([0].into())), &expected);
    println!("{name}, logits: {comparison}");
    assert!(comparison.within(REFERENCE), "{name}, logits: {comparison}");
}

macro_rules! encoders {
    ($($test:ident: $name:literal,)*) => { $(
        #[test]
        fn $test() {
            check($name);
        }
    )* };
}

encoders! {
    bert: "bert",
    bert_judge: "bert-judge",
    gte: "gte",
    gte_judge: "gte-judge",
    jina_reranker_v2: "jina-reranker-v2",
    jina_v2: "jina-v2",
    jina_v2_code: "jina-v2-code",
    jina_v2_judge: "jina-v2-judge",
    jina_v3: "jina-v3",
    modernbert: "modernbert",
    modernbert_judge: "modernbert-judge",
    modernbert_mean_judge: "modernbert-mean-judge",
    nomic_bert: "nomic-bert",
    roberta: "roberta",
    xlm_roberta_judge: "xlm-roberta-judge",
}

/// A reranker as llama.cpp's own script writes it, with the logits that llama.cpp gives pairs of texts
/// (`tools/golden/models/gguf_encoders.py`).
#[test]
fn judges_in_gguf_judge_as_in_llama_cpp() {
    for name in ["modern-bert-first-judge", "xlm-roberta-judge"] {
        judge_in_gguf(name);
    }
}

fn judge_in_gguf(name: &str) {
    let path = folder("gguf-encoders");
    let golden = std::fs::read_to_string(path.join(format!("{name}.json"))).expect("golden values");
    let golden: serde_json::Value = serde_json::from_str(&golden).expect("JSON");
    let ids: Vec<Vec<u32>> = serde_json::from_value(golden["ids"].clone()).expect("ids");
    let expected: Vec<f32> = serde_json::from_value(golden["scores"].clone()).expect("scores");
    let model = load_strictly(&path.join(format!("{name}.gguf")));
    let graph = model.logits_graph().expect("a head");
    let end = ids[0].last().expect("an end token");
    let pairs = ids[1..].iter().map(|document| [&ids[0], &[*end][..], &document[1..]].concat());
    let texts: Vec<_> = pairs.map(|ids| (ids.clone(), vec![0; ids.len()])).collect();
    let found = run(&model, graph, &texts, &Outs::Rows([0].into()));
    let comparison = compare(&found, &expected);
    println!("{name}: {comparison}");
    // llama.cpp computes GELU by its tanh form and a table of f16; ModernBERT has it in the head too.
    assert!(comparison.within(Tolerance(2e-3)), "{name}: {comparison}");
}

/// An encoder as MLX quantises it, its tables too, against transformers with the decoded weights (`tools/golden/models/mlx_encoder.py`).
#[test]
fn an_encoder_of_mlx() {
    let path = folder("random-encoders-mlx/bert");
    let golden = Golden::read(&path.join("golden.safetensors"));
    let model = load_strictly(&path);
    let text = (golden.ids("ids"), golden.ids("types"));
    let found = run(&model, model.hidden_graph(), &[text], &Outs::All);
    let comparison = compare(&found, &golden.floats("states"));
    println!("{comparison}");
    assert!(comparison.within(REFERENCE), "{comparison}");
}

/// Encoders that llama.cpp reads and Brasa does not are refused by name.
#[test]
fn other_encoders_in_gguf_are_refused_by_name() {
    let model = |architecture: &str| {
        let pairs = [("general.architecture".to_owned(), serde_json::Value::from(architecture))];
        Source::gguf(pairs, [])
            .and_then(|source| brasa_models::build_encoder(&source, &LoadOptions::default()))
    };
    for architecture in ["jina-bert-v3", "neo-bert", "eurobert"] {
        let message = model(architecture).map(|model| model.form).unwrap_err().to_string();
        assert!(message.contains(architecture) && message.contains("nomic-bert"), "{message}");
    }
}

/// llama.cpp's script does not say which half of a matrix is the gate if queries and keys are normed.
#[test]
fn jina_v2_with_norms_of_queries_is_read_from_its_folder_alone() {
    let checkpoint = Checkpoint::open(folder("gguf-encoders/jina-bert-v2.gguf")).unwrap();
    let mut norm = checkpoint.tensor("blk.0.attn_output_norm.weight").expect("a norm").clone();
    norm.name = "blk.0.attn_q_norm.weight".into();
    let brasa_formats::Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("a GGUF file") };
    let number = |key: &str| {
        let found: u32 = metadata.get(key).expect("a number").expect("a key");
        (key.to_owned(), serde_json::Value::from(found))
    };
    let keys =
        ["context_length", "embedding_length", "feed_forward_length", "block_count", "attention.head_count"];
    let pairs = keys.iter().map(|key| number(&format!("jina-bert-v2.{key}")));
    let pairs = pairs.chain([("general.architecture".to_owned(), "jina-bert-v2".into())]);
    let tensors = checkpoint.tensors().iter().cloned().chain([norm]);
    let source = Source::gguf(pairs, tensors).unwrap();
    let built = brasa_models::build_encoder(&source, &LoadOptions::default());
    let message = built.map(|model| model.form).unwrap_err().to_string();
    assert!(message.contains("which half of the network's matrix is the gate"), "{message}");
}

/// No folder goes untested.
#[test]
fn every_random_encoder_is_listed_here() {
    let source = include_str!("encoders.rs");
    for entry in std::fs::read_dir(folder("random-encoders")).expect("the folder of random encoders") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        assert!(source.contains(&format!(": \"{name}\",")), "{name}");
    }
}

/// The model of a configuration in a published spelling, over the tensors of a tiny checkpoint.
fn published(name: &str, config: &str) -> EncoderModel {
    let checkpoint = Checkpoint::open(folder("random-encoders").join(name)).expect("a checkpoint");
    let source =
        Source::hugging_face(config.as_bytes(), checkpoint.tensors().iter().cloned()).expect("a checkpoint");
    let options = LoadOptions { strict: true, ..LoadOptions::default() };
    brasa_models::build_encoder(&source, &options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// nomic-ai/nomic-embed-text-v1.5 spells its configuration as GPT-2 does.
#[test]
fn nomic_bert_is_read_in_the_spelling_of_gpt_2() {
    let config = r#"{
        "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
        "auto_map": {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"}, "bos_token_id": null, "causal": false,
        "dense_seq_output": true, "embd_pdrop": 0.0, "eos_token_id": null, "fused_bias_fc": true,
        "fused_dropout_add_ln": true, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12, "mlp_fc1_bias": false,
        "mlp_fc2_bias": false, "model_type": "nomic_bert", "n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 2,
        "n_positions": 96, "pad_vocab_size_multiple": 64, "parallel_block": false, "parallel_block_tied_norm": false,
        "prenorm": false, "qkv_proj_bias": false, "reorder_and_upcast_attn": false, "resid_pdrop": 0.0,
        "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false,
        "rotary_emb_scale_base": null, "rotary_scaling_factor": null, "scale_attn_by_inverse_layer_idx": false,
        "scale_attn_weights": true, "summary_activation": null, "summary_first_dropout": 0.0,
        "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
        "torch_dtype": "float32", "transformers_version": "4.37.2", "type_vocab_size": 2, "use_cache": true,
        "use_flash_attn": true, "use_rms_norm": false, "use_xentropy": true, "vocab_size": 384
    }"#;
    let own = load_strictly(&folder("random-encoders").join("nomic-bert"));
    assert_eq!(published("nomic-bert", config).form, own.form);
}

/// Settings that would change the computation are refused by name.
#[test]
fn settings_that_change_the_result_are_refused() {
    let refusal = |name: &str, changes: &[(&str, serde_json::Value)]| {
        let path = folder("random-encoders").join(name);
        let mut config: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path.join("config.json")).unwrap()).unwrap();
        for (key, value) in changes {
            config[*key] = value.clone();
        }
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tensors = checkpoint.tensors().iter().cloned();
        let source = Source::hugging_face(config.to_string().as_bytes(), tensors).unwrap();
        let built = brasa_models::build_encoder(&source, &LoadOptions::default());
        built.map(|model| model.form).unwrap_err().to_string()
    };
    let json = |text: &str| serde_json::from_str(text).unwrap();
    for (name, key, value, named) in [
        ("bert", "position_embedding_type", r#""relative_key""#, "position_embedding_type"),
        ("bert", "hidden_act", r#""relu""#, "hidden_act"),
        ("bert", "is_decoder", "true", "is_decoder"),
        ("bert", "num_attention_heads", "5", "5 heads"),
        ("bert", "max_position_embeddings", "95", "position_embeddings"),
        ("bert", "type_vocab_size", "3", "token_type_embeddings"),
        ("bert", "architectures", r#"["BertForQuestionAnswering"]"#, "BertForQuestionAnswering"),
        ("bert", "architectures", r#"["BertForSequenceClassification"]"#, "classifier"),
        ("roberta", "pad_token_id", "98", "98 positions"),
        ("nomic-bert", "prenorm", "true", "prenorm"),
        ("nomic-bert", "is_causal", "true", "is_causal"),
        ("nomic-bert", "rotary_emb_fraction", "0.4", "rotary_emb_fraction"),
        ("nomic-bert", "rotary_scaling_factor", "2", "rotary_scaling_factor"),
        ("gte", "rope_scaling", r#"{"type": "ntk", "factor": 8.0}"#, "ntk"),
        ("gte", "logn_attention_scale", "true", "logn_attention_scale"),
        ("gte", "hidden_size", "1e99", "hidden_size"),
        ("jina-v2", "feed_forward_type", r#""reglu""#, "feed_forward_type"),
        ("jina-v2", "position_embedding_type", r#""absolute""#, "position_embedding_type"),
        ("jina-v2", "architectures", r#"["JinaBertForSequenceClassification"]"#, "classifier"),
        ("jina-v3", "hidden_act", r#""relu""#, "hidden_act"),
        ("modernbert", "hidden_activation", r#""relu""#, "hidden_act"),
        ("modernbert", "layer_types", r#"["full_attention"]"#, "layer_types"),
        ("modernbert", "rope_scaling", r#"{"type": "ntk", "factor": 8.0}"#, "ntk"),
        ("modernbert-judge", "classifier_pooling", r#""max""#, "classifier_pooling"),
        ("modernbert-judge", "classifier_activation", r#""relu""#, "classifier_activation"),
    ] {
        let message = refusal(name, &[(key, json(value))]);
        assert!(message.contains(named), "{name} with {key} {value}: {message}");
    }
}

/// A decoder is no encoder, and the other way round.
#[test]
fn the_two_kinds_are_told_apart() {
    let open = |path: &str| Checkpoint::open(folder(path)).unwrap();
    let decoder = open("random/qwen3");
    assert!(ModelKind::of(&Source::of(&decoder).unwrap()) == ModelKind::Text);
    let error = load_encoder(&decoder, &LoadOptions::default()).map(|model| model.form).unwrap_err();
    assert!(matches!(error, ModelError::UnknownArchitecture { .. }), "{error}");
    let error = load(&open("random-encoders/bert"), &LoadOptions::default()).unwrap_err();
    assert!(error.to_string().contains("text encoder"), "{error}");
    let gemma = open("random-embedders/embedding-gemma");
    let source = Source::of(&gemma).unwrap();
    assert!(ModelKind::of(&source) == ModelKind::Encoder);
    let error = load(&gemma, &LoadOptions::default()).unwrap_err();
    assert!(error.to_string().contains("gemma3_text is a text encoder"), "{error}");
    let error = encoder_to_gguf(&source, &SentenceConfig::default()).unwrap_err();
    assert!(error.to_string().contains("use_bidirectional_attention"), "{error}");
    assert_eq!(
        supported_encoders(brasa_formats::Container::HuggingFace),
        [
            "bert",
            "roberta",
            "xlm-roberta",
            "camembert",
            "nomic_bert",
            "modernbert",
            "jina_embeddings_v3",
            "new",
            "gte"
        ]
    );
}
