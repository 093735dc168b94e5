//! A model file that says something untrue: commands that run it, look into it and convert it say so in the same words.

use std::path::{Path, PathBuf};

use brasa::formats::gguf::{Array, TensorPlan, Value, Writer};
use brasa::formats::{Checkpoint, Existing, Metadata, OutputFile, Payload};

use crate::command::{brasa, model, scratch, stderr, stdout};

/// A small model as a file that has `changes` in its metadata, and a tokenizer of single bytes.
fn changed(path: &Path, changes: &[(&str, Value)]) {
    let checkpoint = Checkpoint::open(model("random-gguf/llama31.gguf")).unwrap();
    let Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("not GGUF") };
    let mut metadata = metadata.clone();
    let tokens = (0..160).map(|id| char::from_u32(0x21 + id).unwrap().to_string());
    metadata.insert("tokenizer.ggml.model", "gpt2");
    metadata.insert("tokenizer.ggml.pre", "gpt-2");
    metadata.insert("tokenizer.ggml.tokens", Array::of_strings(tokens));
    metadata.insert("tokenizer.ggml.token_type", Array::of([1_i32; 160]));
    metadata.insert("tokenizer.ggml.merges", Array::of_strings(["a b"]));
    for key in ["bos", "eos", "padding", "unknown"] {
        metadata.remove(&format!("tokenizer.ggml.{key}_token_id"));
    }
    for (key, value) in changes {
        metadata.insert(*key, value.clone());
    }
    let plans = checkpoint.tensors().iter().map(|tensor| TensorPlan {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        format: tensor.format,
    });
    let file = OutputFile::create(path, Existing::Replace).unwrap();
    let mut writer = Writer::create(file, &metadata, plans.collect()).unwrap();
    for tensor in checkpoint.tensors() {
        let Payload::Blocks(bytes) = &tensor.payload else { panic!("not GGUF") };
        writer.write(&tensor.name, bytes).unwrap();
    }
    writer.finish().unwrap();
}

fn paths(name: &str) -> (PathBuf, PathBuf) {
    let directory = scratch(name);
    (directory.join("model.gguf"), directory.join("out.gguf"))
}

#[test]
fn untrue_metadata_is_refused_by_all() {
    let (path, out) = paths("untrue");
    let tokens = |count: u32| Value::from(Array::of_strings((0..count).map(|id| id.to_string())));
    for (key, value, words) in [
        (
            "tokenizer.ggml.eos_token_id",
            Value::from(160_u32),
            "found 160, expected the id of one of 160 tokens",
        ),
        (
            "tokenizer.ggml.bos_token_id",
            Value::from(-7_i32),
            "found -7, expected the id of one of 160 tokens",
        ),
        ("tokenizer.ggml.tokens", tokens(161), "161 tokens, and an embedding table of 160 rows"),
        ("llama.context_length", Value::from(0_u32), "llama.context_length: found 0"),
        ("llama.block_count", Value::from(1_000_000_000_u32), "llama.block_count: found 1000000000"),
        ("llama.attention.head_count", Value::from(0_u32), "llama.attention.head_count: found 0"),
        ("llama.attention.layer_norm_rms_epsilon", Value::from(f32::NAN), "epsilon: found \"NaN\""),
        ("llama.rope.freq_base", Value::from(-1.0_f32), "llama.rope.freq_base: found -1.0"),
        ("split.no", Value::from(3_u16), "split.no: part 4 of 1"),
        ("split.tensors.count", Value::from(7_i32), "split.tensors.count: found 7, but the file holds"),
    ] {
        changed(&path, &[(key, value)]);
        let name = path.to_str().unwrap();
        let run = brasa(&["logits", "--ids", "1", "-m", name]);
        let quantize = brasa(&["quantize", name, out.to_str().unwrap(), "F16"]);
        let inspect = brasa(&["inspect", name]);
        for output in [&run, &quantize] {
            let text = stderr(output);
            assert!(output.status.code() == Some(1) && text.contains(words), "{key}: {text}");
        }
        let text = stdout(&inspect);
        let problem = text.split_once("\nproblem: ").map_or("", |(_, problem)| problem);
        assert!(problem.contains(words), "{key}: {text}");
        assert!(!out.exists(), "{key}");
    }
}

#[test]
fn oddities_are_warnings_of_all() {
    let (path, out) = paths("odd");
    for (key, value, words) in [
        (
            "tokenizer.ggml.padding_token_id",
            Value::from(999_u32),
            "padding_token_id: found 999, expected the id",
        ),
        ("llama.vocab_size", Value::from(99_u32), "vocab_size is 99, but the embedding table has 160 rows"),
        ("llama.rope.scaling.factor", Value::from(0.0_f32), "rope.scaling.factor is 0 and counts as unset"),
    ] {
        changed(&path, &[(key, value)]);
        let name = path.to_str().unwrap();
        let run = brasa(&["logits", "--ids", "1", "-m", name]);
        let quantize = brasa(&["quantize", "--force", name, out.to_str().unwrap(), "F16"]);
        for output in [&run, &quantize] {
            let text = stderr(output);
            assert!(output.status.success() && text.contains("warning: "), "{key}: {text}");
            assert!(text.contains(words), "{key}: {text}");
        }
        let text = stdout(&brasa(&["inspect", name]));
        assert!(text.contains("\nwarning: ") && text.contains(words), "{key}: {text}");
    }
}
