//! Memory that a model takes, seen from outside: the peak resident set of the command.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use brasa::formats::gguf::{TensorPlan, Writer};
use brasa::formats::{Checkpoint, Existing, Metadata, OutputFile, StorageFormat};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const HIDDEN: usize = 1024;
const FEED_FORWARD: usize = 3072;
const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const LAYERS: usize = 12;

/// Figures of one run.
#[expect(clippy::struct_field_names, reason = "units are part of names")]
struct Cost {
    peak_bytes: u64,
    cache_and_arena_bytes: u64,
    file_bytes: u64,
}

#[test]
fn weights_cost_memory_once() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("memory");
    std::fs::create_dir_all(&directory).unwrap();
    let small =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let large = directory.join("large.gguf");
    write(&small, &large);
    let (small, large) = (cost(&small), cost(&large));
    std::fs::remove_dir_all(&directory).unwrap();

    assert!(large.file_bytes >= 100_000_000, "{} bytes", large.file_bytes);
    let bound = large.file_bytes * 11 / 10 + large.cache_and_arena_bytes + 300 * MIB;
    assert!(large.peak_bytes <= bound, "{} bytes at the peak, expected at most {bound}", large.peak_bytes);

    // Those 300 MiB would hide a second copy of a file of this size; a small model's peak does not.
    let more = large.peak_bytes - small.peak_bytes;
    let bound = (large.file_bytes - small.file_bytes) * 11 / 10
        + (large.cache_and_arena_bytes - small.cache_and_arena_bytes)
        + 32 * MIB;
    assert!(
        more <= bound,
        "{more} bytes more than a model of {} bytes for one of {}, expected at most {bound}",
        small.file_bytes,
        large.file_bytes
    );
}

/// Runs a prompt of more than one chunk.
fn cost(model: &Path) -> Cost {
    let ids: Vec<String> = (300..900).map(|id: u32| id.to_string()).collect();
    let output = Command::new(env!("CARGO_BIN_EXE_brasa"))
        .args(["generate", "-m", model.to_str().unwrap(), "--ids", &ids.join(","), "-n", "2", "--temp", "0"])
        .args(["--ignore-eos", "--json", "-c", "1024", "--ubatch-size", "512"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figure = |name: &str| result["metrics"][name].as_u64().unwrap();
    let cost = Cost {
        peak_bytes: figure("peak_memory_bytes"),
        cache_and_arena_bytes: figure("cache_and_arena_bytes"),
        file_bytes: std::fs::metadata(model).unwrap().len(),
    };
    // 600 positions of keys and values, at least.
    assert!(cost.cache_and_arena_bytes > 100_000, "{} bytes", cost.cache_and_arena_bytes);
    assert!(cost.peak_bytes > cost.file_bytes / 2, "{} bytes", cost.peak_bytes);
    cost
}

/// A model of the small one's family and tokenizer, in the widths of Qwen3-0.6B.
fn write(small: &Path, large: &Path) {
    let checkpoint = Checkpoint::open(small).unwrap();
    let Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("no GGUF file") };
    let mut metadata = metadata.clone();
    for (key, value) in [
        ("block_count", LAYERS),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", FEED_FORWARD),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("attention.key_length", HEAD_DIM),
        ("attention.value_length", HEAD_DIM),
    ] {
        metadata.insert(format!("qwen3.{key}"), value as u32);
    }
    let vocabulary = checkpoint.tensor("token_embd.weight").unwrap().shape[0];
    let plan = |name: String, shape: &[usize], format| TensorPlan { name, shape: shape.to_vec(), format };
    let matrix = |name: String, rows, columns| plan(name, &[rows, columns], StorageFormat::Q4_0);
    let norm = |name: String, width| plan(name, &[width], StorageFormat::F32);
    let mut tensors = vec![
        matrix("token_embd.weight".into(), vocabulary, HIDDEN),
        norm("output_norm.weight".into(), HIDDEN),
    ];
    for layer in 0..LAYERS {
        let name = |name: &str| format!("blk.{layer}.{name}.weight");
        tensors.extend([
            norm(name("attn_norm"), HIDDEN),
            norm(name("attn_q_norm"), HEAD_DIM),
            norm(name("attn_k_norm"), HEAD_DIM),
            norm(name("ffn_norm"), HIDDEN),
            matrix(name("attn_q"), HEADS * HEAD_DIM, HIDDEN),
            matrix(name("attn_k"), KV_HEADS * HEAD_DIM, HIDDEN),
            matrix(name("attn_v"), KV_HEADS * HEAD_DIM, HIDDEN),
            matrix(name("attn_output"), HIDDEN, HEADS * HEAD_DIM),
            matrix(name("ffn_gate"), FEED_FORWARD, HIDDEN),
            matrix(name("ffn_up"), FEED_FORWARD, HIDDEN),
            matrix(name("ffn_down"), HIDDEN, FEED_FORWARD),
        ]);
    }
    // One block of Q4_0, scale 2⁻⁸, and as many f32 ones as fill a norm: any values do, as long as they are finite.
    let block = [&[0x00, 0x1c][..], &std::array::from_fn::<u8, 16, _>(|index| (index * 37) as u8)].concat();
    let mut writer =
        Writer::create(OutputFile::create(large, Existing::Replace).unwrap(), &metadata, tensors.clone())
            .unwrap();
    for tensor in tensors {
        let pattern =
            if tensor.format == StorageFormat::F32 { 1_f32.to_le_bytes().to_vec() } else { block.clone() };
        let bytes = tensor.size_bytes().unwrap();
        writer.write(&tensor.name, &pattern.repeat(bytes / pattern.len())).unwrap();
    }
    writer.finish().unwrap();
}
