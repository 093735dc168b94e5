//! Conversions of the checkpoints in `models/`, judged by the files they make.
//!
//! Equality with llama.cpp's converter and answers in llama.cpp are checked by `tools/verify_convert.py`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use brasa_convert::{ConvertError, Event, Options, Recipe, Summary, convert};
use brasa_formats::gguf::Metadata;
use brasa_formats::{Checkpoint, Existing, Metadata as Description, StorageFormat};

const CHECKPOINTS: [&str; 6] =
    ["tiny-llama", "tiny-qwen2", "tiny-qwen3moe", "tiny-gemma3", "tiny-gemma4", "tiny-gemma4moe"];

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name)
}

/// A directory that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brasa-convert-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn replacing(recipe: Recipe) -> Options {
    Options { existing: Existing::Replace, ..Options::new(recipe) }
}

fn make(input: &Path, output: &Path, recipe: Recipe) -> (Summary, Vec<String>) {
    let mut fallbacks = Vec::new();
    let summary = convert(input, output, &replacing(recipe), &mut |event| {
        if let Event::Fallback { tensor, wanted, used, .. } = event {
            fallbacks.push(format!("{tensor}: {used} instead of {wanted}"));
        }
        ControlFlow::Continue(())
    });
    (summary.unwrap_or_else(|error| panic!("{}: {error}", input.display())), fallbacks)
}

fn metadata(checkpoint: &Checkpoint) -> &Metadata {
    match checkpoint.metadata() {
        Description::Gguf(metadata) => metadata,
        Description::Config(_) => panic!("a GGUF file"),
    }
}

fn decode(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
    let mut out = vec![0.0; tensor.rows() * tensor.row_len()];
    tensor.decode_rows(0..tensor.rows(), &mut out).unwrap();
    out
}

#[test]
fn every_checkpoint_becomes_a_gguf_file_with_the_same_weights() {
    let folder = Folder::new("weights");
    for name in CHECKPOINTS {
        let output = folder.file("model.gguf");
        make(&model(name), &output, Recipe::F32);
        let (source, made) = (Checkpoint::open(model(name)).unwrap(), Checkpoint::open(&output).unwrap());
        assert!(decode(&source, "model.embed_tokens.weight") == decode(&made, "token_embd.weight"), "{name}");
        let norm = decode(&source, "model.norm.weight");
        let shift = if name == "tiny-gemma3" { 1.0 } else { 0.0 };
        let expected: Vec<f32> = norm.iter().map(|x| x + shift).collect();
        assert!(expected == decode(&made, "output_norm.weight"), "{name}: norms");
        let metadata = metadata(&made);
        let tokens: Vec<&[u8]> = metadata.require("tokenizer.ggml.tokens").unwrap();
        assert_eq!(tokens.len(), made.tensor("token_embd.weight").unwrap().rows(), "{name}: tokens");
        assert_eq!(metadata.require::<u32>("general.file_type").unwrap(), 0, "{name}");
        assert!(metadata.contains("tokenizer.chat_template"), "{name}");
    }
}

#[test]
fn llama_queries_are_interleaved_and_long_context_factors_written() {
    let folder = Folder::new("llama");
    let output = folder.file("model.gguf");
    make(&model("tiny-llama"), &output, Recipe::F32);
    let (source, made) = (Checkpoint::open(model("tiny-llama")).unwrap(), Checkpoint::open(&output).unwrap());
    let (from, to) =
        (decode(&source, "model.layers.2.self_attn.k_proj.weight"), decode(&made, "blk.2.attn_k.weight"));
    let (width, head_dim, kv_heads) = (128, 32, 2);
    for head in 0..kv_heads {
        for j in 0..head_dim {
            let row = |r: usize| (head * head_dim + r) * width..(head * head_dim + r + 1) * width;
            let split_half = j % 2 * (head_dim / 2) + j / 2;
            assert!(to[row(j)] == from[row(split_half)], "head {head}, row {j}");
        }
    }
    let factors = decode(&made, "rope_freqs.weight");
    assert_eq!(factors.len(), 16);
    assert!((factors[0] - 1.0).abs() < 1e-6 && (factors[15] - 8.0).abs() < 1e-6, "{factors:?}");
    assert_eq!(metadata(&made).require::<&str>("tokenizer.ggml.pre").unwrap(), "llama-bpe");
}

#[test]
fn experts_are_stacked() {
    let folder = Folder::new("experts");
    let output = folder.file("model.gguf");
    make(&model("tiny-qwen3moe"), &output, Recipe::F32);
    let (source, made) =
        (Checkpoint::open(model("tiny-qwen3moe")).unwrap(), Checkpoint::open(&output).unwrap());
    let stacked = decode(&made, "blk.1.ffn_down_exps.weight");
    assert_eq!(made.tensor("blk.1.ffn_down_exps.weight").unwrap().shape, [8, 128, 96]);
    for expert in [0, 5, 7] {
        let one = decode(&source, &format!("model.layers.1.mlp.experts.{expert}.down_proj.weight"));
        assert!(stacked[expert * one.len()..][..one.len()] == one, "expert {expert}");
    }
}

#[test]
fn mixes_follow_llama_cpp() {
    let folder = Folder::new("mixes");
    let output = folder.file("model.gguf");
    let (summary, fallbacks) = make(&model("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf"), &output, Recipe::Q4_K_M);
    assert!(fallbacks.is_empty() && summary.fallbacks == 0, "{fallbacks:?}");
    let made = Checkpoint::open(&output).unwrap();
    let format = |name: &str| made.tensor(name).unwrap().format;
    // Tied embeddings are the output matrix; 7 layers: 2, 5 and 6 get more bits.
    assert_eq!(format("token_embd.weight"), StorageFormat::Q6_K);
    assert_eq!(format("blk.0.attn_norm.weight"), StorageFormat::F32);
    for layer in 0..7 {
        let raised = if matches!(layer, 2 | 5 | 6) { StorageFormat::Q6_K } else { StorageFormat::Q4_K };
        assert_eq!(format(&format!("blk.{layer}.attn_v.weight")), raised, "layer {layer}");
        assert_eq!(format(&format!("blk.{layer}.ffn_down.weight")), raised, "layer {layer}");
        assert_eq!(format(&format!("blk.{layer}.attn_q.weight")), StorageFormat::Q4_K);
    }
    assert_eq!(metadata(&made).require::<u32>("general.file_type").unwrap(), 15);
}

#[test]
fn ragged_rows_fall_back_and_say_so() {
    let folder = Folder::new("ragged");
    let output = folder.file("model.gguf");
    let (summary, fallbacks) = make(&model("tiny-gemma3"), &output, Recipe::Q4_K_S);
    assert_eq!(summary.fallbacks, fallbacks.len());
    assert!(fallbacks.contains(&"blk.0.attn_q.weight: Q5_0 instead of Q4_K".to_owned()), "{fallbacks:?}");
    let made = Checkpoint::open(&output).unwrap();
    assert_eq!(made.tensor("blk.0.attn_output.weight").unwrap().format, StorageFormat::Q4_K);
    assert_eq!(made.tensor("token_embd.weight").unwrap().format, StorageFormat::Q8_0);
}

#[test]
fn every_recipe_of_gguf_input_equals_that_of_the_checkpoint() {
    let folder = Folder::new("recipes");
    let full = folder.file("full.gguf");
    make(&model("tiny-qwen2"), &full, Recipe::BF16);
    for recipe in Recipe::ALL {
        let (direct, twice) = (folder.file("direct.gguf"), folder.file("twice.gguf"));
        make(&model("tiny-qwen2"), &direct, recipe);
        make(&full, &twice, recipe);
        assert!(std::fs::read(&direct).unwrap() == std::fs::read(&twice).unwrap(), "{recipe}");
    }
}

#[test]
fn threads_do_not_change_the_file() {
    let folder = Folder::new("threads");
    let files = [1, 3].map(|threads| {
        let output = folder.file(&format!("{threads}.gguf"));
        let options = Options { threads, ..Options::new(Recipe::Q3_K_M) };
        convert(&model("tiny-llama"), &output, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        std::fs::read(output).unwrap()
    });
    assert!(files[0] == files[1]);
}

#[test]
fn quantising_twice_is_warned_of() {
    let folder = Folder::new("twice");
    let bundled = model("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let mut warnings = Vec::new();
    let options = Options::new(Recipe::Q8_0);
    convert(&bundled, &folder.file("model.gguf"), &options, &mut |event| {
        if let Event::Warning(warning) = event {
            warnings.push(warning);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("already quantised"), "{warnings:?}");
}

#[test]
fn the_bundled_model_is_what_its_name_says() {
    let bundled = Checkpoint::open(model("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf")).unwrap();
    let metadata = metadata(&bundled);
    assert_eq!(metadata.require::<&str>("general.architecture").unwrap(), "qwen3");
    assert_eq!(metadata.require::<u32>("general.file_type").unwrap(), 18);
    let quantised = bundled.tensors().iter().filter(|tensor| tensor.format == StorageFormat::Q6_K).count();
    assert_eq!(quantised, 7 * 7 + 1, "seven matrices of seven layers, and the embedding");
}

#[test]
fn cancelling_leaves_the_old_file() {
    let folder = Folder::new("cancel");
    let output = folder.file("model.gguf");
    std::fs::write(&output, "old").unwrap();
    let mut events = 0;
    let error = convert(&model("tiny-llama"), &output, &replacing(Recipe::Q8_0), &mut |_| {
        events += 1;
        if events > 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(error, Err(ConvertError::Cancelled)));
    assert_eq!(std::fs::read(&output).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "something was left behind");
}

#[test]
fn progress_reaches_the_end() {
    let folder = Folder::new("progress");
    let (mut planned, mut last) = (0, 0);
    let options = Options::new(Recipe::Q8_0);
    convert(&model("tiny-qwen2"), &folder.file("model.gguf"), &options, &mut |event| {
        match event {
            Event::Planned { elements, .. } => planned = elements,
            Event::Progress { done, elements } => {
                assert!(done > last && elements == planned);
                last = done;
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(planned > 0 && last == planned);
}

/// A copy of `tiny-llama` with one file changed.
fn changed(folder: &Folder, file: &str, change: impl Fn(String) -> String) -> PathBuf {
    let path = folder.file("checkpoint");
    std::fs::create_dir_all(&path).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        std::fs::copy(model("tiny-llama").join(name), path.join(name)).unwrap();
    }
    let text = std::fs::read_to_string(path.join(file)).unwrap();
    std::fs::write(path.join(file), change(text)).unwrap();
    path
}

#[test]
fn what_cannot_be_converted_is_named() {
    let folder = Folder::new("refused");
    for (file, from, to, expected) in [
        ("config.json", "LlamaForCausalLM", "MambaForCausalLM", "architecture MambaForCausalLM"),
        ("config.json", "\"llama3\"", "\"dynamic\"", "rope_scaling.rope_type: found dynamic"),
        (
            "config.json",
            "\"num_attention_heads\": 4",
            "\"num_attention_heads\": 3",
            "3 query heads share 2 key heads",
        ),
        ("config.json", "\"hidden_size\": 128", "\"hidden_size\": \"wide\"", "hidden_size: found \"wide\""),
        ("config.json", "\"head_dim\": 32", "\"head_dim\": 4000000000", "head_dim: found 4000000000"),
        (
            "config.json",
            "\"num_hidden_layers\": 6",
            "\"num_hidden_layers\": 99999",
            "num_hidden_layers: found 99999",
        ),
        ("tokenizer.json", "{1,3}", "{1,5}", "pre-tokenizer not recognised"),
        ("tokenizer.json", "\"type\": \"BPE\"", "\"type\": \"Unigram\"", "a Unigram tokenizer"),
    ] {
        let input = changed(&folder, file, |text| {
            let compact = text.replace(from, to).replace(&from.replace(": ", ":"), &to.replace(": ", ":"));
            assert_ne!(compact, text, "{from} is not in {file}");
            compact
        });
        let output = folder.file("model.gguf");
        let options = Options::new(Recipe::Q8_0);
        let error = convert(&input, &output, &options, &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert!(!output.exists());
    }
}

#[test]
fn a_named_pre_tokenizer_is_believed() {
    let folder = Folder::new("pre");
    let input = changed(&folder, "tokenizer.json", |text| text.replace("{1,3}", "{1,5}"));
    let output = folder.file("model.gguf");
    let options = Options { pre_tokenizer: Some("llama-bpe".into()), ..Options::new(Recipe::Q8_0) };
    convert(&input, &output, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    let made = Checkpoint::open(&output).unwrap();
    assert_eq!(metadata(&made).require::<&str>("tokenizer.ggml.pre").unwrap(), "llama-bpe");
}

#[test]
fn random_checkpoints_become_what_llama_cpp_makes_of_them() {
    let folder = Folder::new("random");
    let mut seen = 0;
    for entry in std::fs::read_dir(model("random-gguf")).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        let output = folder.file("model.gguf");
        make(&model("random").join(name), &output, Recipe::BF16);
        let (theirs, ours) = (Checkpoint::open(&path).unwrap(), Checkpoint::open(&output).unwrap());
        assert_eq!(theirs.tensors().len(), ours.tensors().len(), "{name}: number of tensors");
        for expected in theirs.tensors() {
            let found = ours.tensor(&expected.name).unwrap_or_else(|| panic!("{name}: no {}", expected.name));
            assert_eq!(found.shape, expected.shape, "{name}: {}", expected.name);
            assert_eq!(found.format, expected.format, "{name}: {}", expected.name);
            let (found, expected_values) = (decode(&ours, &expected.name), decode(&theirs, &expected.name));
            assert!(found == expected_values, "{name}: {}", expected.name);
        }
        // They have a stand-in for a tokenizer, and guess at names.
        let names = ["general.name", "general.basename", "general.finetune", "general.size_label"];
        let told = |key: &str| !key.starts_with("tokenizer.") && !names.contains(&key);
        for (key, expected) in metadata(&theirs).iter().filter(|(key, _)| told(key)) {
            // These files spell the usual pattern of windows out; ours only an unusual one.
            let spelled = key.ends_with("sliding_window_pattern") && !metadata(&ours).contains(key);
            assert!(spelled || metadata(&ours).value(key) == Some(expected), "{name}: {key}: {expected:?}");
        }
        for (key, found) in metadata(&ours).iter().filter(|(key, _)| told(key)) {
            let vocab_size = key.ends_with(".vocab_size");
            assert!(vocab_size || metadata(&theirs).contains(key), "{name}: {key} is {found:?}, not theirs");
        }
        seen += 1;
    }
    assert!(seen >= 14, "{seen} files");
}

#[test]
fn mlx_directories_are_decoded_exactly() {
    let folder = Folder::new("mlx");
    let output = folder.file("model.gguf");
    make(&model("random-mlx/mixtral"), &output, Recipe::F32);
    let (source, made) =
        (Checkpoint::open(model("random-mlx/mixtral")).unwrap(), Checkpoint::open(&output).unwrap());
    for (from, to) in [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.block_sparse_moe.switch_mlp.gate_proj.weight", "blk.1.ffn_gate_exps.weight"),
        ("model.layers.1.block_sparse_moe.switch_mlp.down_proj.weight", "blk.1.ffn_down_exps.weight"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
    ] {
        // Down-projections of 40 inputs are no whole number of groups, and stay floats.
        let quantised = matches!(source.tensor(from).unwrap().format, StorageFormat::MlxAffine(_));
        assert_eq!(quantised, !from.contains("down_proj"), "{from}");
        assert_eq!(source.tensor(from).unwrap().shape, made.tensor(to).unwrap().shape, "{from}");
        assert!(decode(&source, from) == decode(&made, to), "{from}");
    }
}
