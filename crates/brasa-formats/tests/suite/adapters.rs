//! Adapters' files: what is refused and how, mutated files, and writing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brasa_formats::{AdapterFile, AdapterForm, Bytes, Existing, FormatError, LowRankPair, Payload};
use brasa_formats::{StorageFormat, Tensor};
use brasa_fuzz::Fuzzer;
use serde_json::{Value, json};

use crate::scratch::Scratch;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/random-adapters").join(name)
}

/// A directory of these two files.
fn directory(weights: &str, config: &[u8], data: &[u8]) -> Result<AdapterFile, FormatError> {
    let files = [("adapter_config.json", config), (weights, data)];
    let files: BTreeMap<String, Bytes> =
        files.into_iter().map(|(name, data)| (name.to_owned(), data.to_vec().into())).collect();
    AdapterFile::from_files(files)
}

fn gguf(data: &[u8]) -> Result<AdapterFile, FormatError> {
    AdapterFile::from_files(BTreeMap::from([("a.gguf".to_owned(), data.to_vec().into())]))
}

/// Result of reading a file, after all promises about it have been checked.
fn outcome(result: Result<AdapterFile, FormatError>) -> String {
    let adapter = match result {
        Ok(adapter) => adapter,
        Err(error) => {
            let text = error.to_string();
            assert!(text.len() < 4000 && !text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
            return error.fault().map_or(text, |fault| fault.problem.clone());
        }
    };
    for pair in &adapter.pairs {
        assert!(pair.scale.is_finite() && pair.rank() > 0);
        assert_eq!(
            (pair.a.rows(), pair.b.row_len()),
            (pair.experts().unwrap_or(1) * pair.rank(), pair.rank())
        );
        assert_eq!(pair.b.rows(), pair.experts().unwrap_or(1) * pair.outputs());
        for tensor in [&pair.a, &pair.b] {
            let Payload::Blocks(bytes) = &tensor.payload else { panic!("floats") };
            assert_eq!(bytes.len(), tensor.rows() * tensor.format.row_bytes(tensor.row_len()).unwrap());
        }
    }
    format!("{} pairs", adapter.pairs.len().min(2))
}

/// Both in one input: the config comes first, a zero byte ends it.
fn fuzz_directory(name: &'static str, folder: &str, weights: &'static str, words: &[&'static str]) {
    let path = golden(folder);
    let mut seed = std::fs::read(path.join("adapter_config.json")).unwrap();
    seed.push(0);
    seed.extend(std::fs::read(path.join(weights)).unwrap());
    let fuzzer = Fuzzer::new(name).runs(10_000).memory_factor(100).seed(seed);
    fuzzer.words(words.iter().copied()).run(|data| {
        let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
        outcome(directory(weights, &data[..end], data.get(end + 1..).unwrap_or_default()))
    });
}

#[test]
fn fuzz_peft() {
    let words = [
        "\"alpha_pattern\":{",
        "\"rank_pattern\":{",
        "\"use_rslora\":",
        "true",
        "null",
        ".lora_A.weight",
        "(.*",
        "{1000}",
    ];
    fuzz_directory("peft", "phi3/peft", "adapter_model.safetensors", &words);
}

#[test]
fn fuzz_mlx_adapter() {
    let words = ["\"scale\":", "\"fine_tune_type\":", ".lora_a", ".lora_b", ".m", "1e999"];
    fuzz_directory("mlx_adapter", "mistral/mlx", "adapters.safetensors", &words);
}

#[test]
fn fuzz_gguf_adapter() {
    let seed = std::fs::read(golden("llama31/adapter.gguf")).unwrap();
    let fuzzer = Fuzzer::new("gguf_adapter").runs(10_000).memory_factor(100).seed(seed);
    fuzzer.words(["adapter.lora.alpha", "lora", ".lora_a", ".lora_b"]).run(|data| outcome(gguf(data)));
}

/// A safetensors file of f32 tensors.
fn safetensors(tensors: &[(&str, &[usize], f32)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, value) in tensors {
        let start = data.len();
        for _ in 0..shape.iter().product() {
            data.extend(value.to_le_bytes());
        }
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert((*name).into(), entry);
    }
    let header = Value::Object(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

const A: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
const B: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

fn peft(config: &Value, tensors: &[(&str, &[usize], f32)]) -> String {
    let mut all = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4});
    all.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    outcome(directory("adapter_model.safetensors", all.to_string().as_bytes(), &safetensors(tensors)))
}

#[test]
fn peft_settings_that_change_the_product_are_refused() {
    let good: &[(&str, &[usize], f32)] = &[(A, &[2, 3], 1.0), (B, &[5, 2], 1.0)];
    assert_eq!(peft(&json!({}), good), "1 pairs");
    assert_eq!(
        peft(&json!({"init_lora_weights": "gaussian", "bias": "none", "kasa_config": null}), good),
        "1 pairs"
    );
    for (config, expected) in [
        (json!({"peft_type": "IA3"}), "\"IA3\" is not supported, expected \"LORA\""),
        (json!({"bias": "all"}), "\"all\" is not supported, expected \"none\""),
        (json!({"modules_to_save": ["lm_head"]}), "[\"lm_head\"] is not supported, expected no value"),
        (
            json!({"init_lora_weights": "pissa"}),
            "\"pissa\" is not supported, expected \"gaussian\" or \"eva\" or \"orthogonal\"",
        ),
        (json!({"lora_bias": true}), "true is not supported, expected no value"),
        (json!({"fan_in_fan_out": true}), "true is not supported, expected no value"),
        (json!({"layer_replication": [[0, 1]]}), "[[0,1]] is not supported, expected no value"),
        (json!({"trainable_token_indices": [1]}), "[1] is not supported, expected no value"),
        (json!({"alora_invocation_tokens": [1]}), "[1] is not supported, expected no value"),
        (json!({"use_dora": true}), "DoRA without magnitudes"),
        (json!({"r": 3}), "A has 2 rows, but its rank is 3 by adapter_config.json"),
        (json!({"r": "many"}), "expected a number"),
        (json!({"rank_pattern": {"q_proj": 2, "(": 1}}), "\"(\" is no pattern that is understood"),
        (json!({"alpha_pattern": [1]}), "expected an object of numbers"),
        (json!({"lora_alpha": 1e300}), "scale inf, expected a finite number"),
    ] {
        assert_eq!(peft(&config, good), expected);
    }
}

#[test]
fn tensors_that_are_no_sound_pairs_are_refused() {
    let magnitude = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector";
    for (tensors, expected) in [
        (&[(A, &[2_usize, 3][..], 1.0)][..], "its low-rank pair is not complete, expected both A and B"),
        (
            &[(A, &[2, 3], 1.0), (B, &[5, 3], 1.0)],
            "A has shape [2, 3] and B [5, 3], expected [r, in] and [out, r]",
        ),
        (
            &[(A, &[2, 0], 1.0), (B, &[5, 2], 1.0)],
            "A has shape [2, 0] and B [5, 2], expected [r, in] and [out, r]",
        ),
        (&[(A, &[2, 3], f32::NAN), (B, &[5, 2], 1.0)], "row 0 holds NaN, expected finite numbers"),
        (&[(A, &[2, 3], 1.0), (B, &[5, 2], f32::INFINITY)], "row 0 holds inf, expected finite numbers"),
        (&[(A, &[2, 3], 1.0), (B, &[5, 2], 1.0), (magnitude, &[5], 1.0)], "magnitudes without DoRA"),
        (
            &[(A, &[2, 3], 1.0), (B, &[5, 2], 1.0), (magnitude, &[4], 1.0)],
            "magnitudes of shape [4], expected [5]",
        ),
        (
            &[("base_model.model.lm_head.weight", &[5, 2], 1.0)],
            "a whole trained tensor (`modules_to_save`) is not supported",
        ),
        (
            &[("base_model.model.model.embed_tokens.lora_embedding_A", &[5, 2], 1.0)],
            "a low-rank pair of an embedding is not supported",
        ),
        (&[], "no low-rank pair in this adapter"),
    ] {
        assert_eq!(peft(&json!({}), tensors), expected);
    }
}

/// The first pattern that matches counts, and a pattern matches from a dot to the end.
#[test]
fn patterns_match_as_pefts_do() {
    let scale = |patterns: Value| {
        let config =
            json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "alpha_pattern": patterns}).to_string();
        let data = safetensors(&[(A, &[2, 3], 1.0), (B, &[5, 2], 1.0)]);
        directory("adapter_model.safetensors", config.as_bytes(), &data).unwrap().pairs[0].scale
    };
    for (patterns, expected) in [
        (json!({}), 2.0),
        (json!({"q_proj": 6}), 3.0),
        (json!({"proj": 6}), 2.0),
        (json!({"self_attn": 6}), 2.0),
        (json!({"self_attn.q_proj": 6, "q_proj": 8}), 3.0),
        (json!({r"layers\.\d+\..*": 1}), 0.5),
        (json!({"k_proj|q_proj": 8}), 4.0),
    ] {
        assert_eq!(scale(patterns.clone()).to_bits(), f32::to_bits(expected), "{patterns}");
    }
}

#[test]
fn other_files_are_told_from_adapters() {
    let mlx = |config: &str| outcome(directory("adapters.safetensors", config.as_bytes(), &safetensors(&[])));
    assert_eq!(mlx(r#"{"fine_tune_type": "full"}"#), "\"full\", expected \"lora\" or \"dora\"");
    assert_eq!(mlx(r#"{"fine_tune_type": "lora"}"#), "expected a number");
    assert_eq!(mlx("{}"), "neither `peft_type` nor `lora_parameters`: no adapter of PEFT or MLX");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/random-gguf/qwen2.gguf");
    assert_eq!(outcome(AdapterFile::open(model)), "\"model\", expected \"adapter\"");
    let files =
        |name: &str| outcome(AdapterFile::from_files(BTreeMap::from([(name.to_owned(), vec![0; 9].into())])));
    assert_eq!(files("adapter_model.bin"), "an adapter that is not stored as safetensors");
    assert_eq!(files("adapter_model.safetensors"), "this file is missing");
    assert_eq!(
        files("config.json"),
        "no adapter in this directory: no adapter_model.safetensors, no adapters.safetensors, no .gguf"
    );
}

fn pair(name: &str, rank: usize, scale: f32) -> LowRankPair {
    let tensor = |shape: Vec<usize>| {
        let count = shape.iter().product::<usize>();
        let bytes: Vec<u8> = (0..count).flat_map(|x| (x as f32 + 0.5).to_le_bytes()).collect();
        let payload = Payload::Blocks(bytes.into());
        Tensor { name: "t".into(), shape, format: StorageFormat::F32, payload }
    };
    LowRankPair {
        name: name.into(),
        a: tensor(vec![rank, 3]),
        b: tensor(vec![4, rank]),
        scale,
        magnitude: None,
    }
}

/// `scale · B·A`.
fn product(pair: &LowRankPair) -> Vec<f32> {
    let floats = |tensor: &Tensor| {
        let mut floats = vec![0.0; tensor.rows() * tensor.row_len()];
        tensor.decode_rows(0..tensor.rows(), &mut floats).unwrap();
        floats
    };
    let (a, b, rank) = (floats(&pair.a), floats(&pair.b), pair.rank());
    let element =
        |at: usize| (0..rank).map(|r| b[at / 3 * rank + r] * a[r * 3 + at % 3]).sum::<f32>() * pair.scale;
    (0..12).map(element).collect()
}

/// Pairs of several ranks and scales say the same product in every form.
#[test]
fn every_form_says_the_same_product() {
    let scratch = Scratch::new("adapter-forms");
    let name = "model.layers.0.mlp.down_proj";
    let pairs = vec![
        pair(name, 2, 0.5),
        pair("model.layers.1.mlp.down_proj", 3, 0.5),
        pair("model.layers.1.mlp.up_proj", 2, -3.0),
    ];
    for (form, path) in
        [(AdapterForm::Peft, "peft"), (AdapterForm::Mlx, "mlx"), (AdapterForm::Gguf, "a.gguf")]
    {
        let architecture = Some("llama".to_owned());
        let file = AdapterFile {
            form,
            architecture,
            base: Some("base".into()),
            num_layers: Some(2),
            pairs: pairs.clone(),
        };
        let path = scratch.path(path);
        file.write(&path, Existing::Keep).unwrap();
        assert!(matches!(file.write(&path, Existing::Keep), Err(FormatError::Exists { .. })));
        file.write(&path, Existing::Replace).unwrap();
        let again = AdapterFile::open(&path).unwrap();
        assert_eq!((again.form, again.pairs.len(), again.base.as_deref()), (form, 3, Some("base")));
        for (found, expected) in again.pairs.iter().zip(&pairs) {
            assert_eq!(found.name, expected.name);
            for (found, expected) in product(found).into_iter().zip(product(expected)) {
                assert!(
                    (found - expected).abs() <= 1e-6 * expected.abs(),
                    "{form:?}: {found}, expected {expected}"
                );
            }
        }
    }
    let config = std::fs::read(scratch.path("peft/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["target_modules"], json!(["down_proj", "model.layers.1.mlp.up_proj"]));
}
