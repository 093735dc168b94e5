//! Mutated files: whatever is in them, they are read or refused, in bounded time and memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brasa_formats::gguf::{Array, Value};
use brasa_formats::{Bytes, Checkpoint, FormatError, Inspection, Metadata, Payload, Tensor};
use brasa_fuzz::Fuzzer;

use crate::npz::archive;
use crate::whisper_bin::Bin;

/// A pair of 13 bytes, or a tensor of 24, becomes a name twice, an index entry and a description.
const MEMORY_FACTOR: usize = 100;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Parsers of headers take microseconds.
fn fuzzer(name: &str) -> Fuzzer {
    Fuzzer::new(name).runs(60_000).memory_factor(MEMORY_FACTOR)
}

#[test]
fn fuzz_gguf() {
    fuzzer("gguf")
        .seed_directory(folder("hostile/gguf"), ".gguf")
        .seed_directory(folder("golden/containers"), ".gguf")
        .words(["general.alignment", "split.count", "split.no", "GGUF"])
        .run(gguf);
}

#[test]
fn fuzz_safetensors_header() {
    fuzzer("safetensors")
        .seed_directory(folder("hostile/safetensors"), ".safetensors")
        .seed_directory(folder("golden/containers/plain"), ".safetensors")
        .words([
            "\"dtype\":",
            "\"shape\":[",
            "\"data_offsets\":[",
            "\"__metadata__\":{",
            "\"BF16\"",
            "\"I64\"",
            "{",
            "}",
            "]",
        ])
        .run(safetensors);
}

#[test]
fn fuzz_mlx_header_and_config() {
    // Both in one input: the config comes first, a zero byte ends it.
    let path = folder("golden/containers/mlx");
    let mut seed = std::fs::read(path.join("config.json")).unwrap();
    seed.push(0);
    seed.extend(std::fs::read(path.join("model.safetensors")).unwrap());
    fuzzer("mlx")
        .seed(seed)
        .words([
            "\"quantization\":{",
            "\"group_size\":",
            "\"bits\":",
            "\"mode\":",
            "false",
            ".scales",
            ".biases",
            "\"U32\"",
        ])
        .run(mlx);
}

#[test]
fn fuzz_shard_index() {
    fuzzer("index")
        .seed(std::fs::read(folder("golden/containers/sharded/model.safetensors.index.json")).unwrap())
        .words(["\"weight_map\":{", "../", "/", "\\", "model-00001-of-00002.safetensors", "config.json"])
        .run(shard_index);
}

#[test]
fn fuzz_whisper_bin() {
    // Few whole vocabularies, which take a millisecond each, and many beginnings.
    let no_tokens: [&[u8]; 0] = [];
    let whole = Bin::new(51_864, 1).tokens(&vec![b"".as_slice(); 50_256]);
    let whole = whole.tensor("encoder.conv1.bias", &[1, 2], 0, &[0; 8]).tensor("x", &[32, 2], 8, &[1; 68]);
    fuzzer("whisper_bin_start")
        .seed(Bin::new(51_864, 1).tokens(&["a", "b", "ab"]).bytes())
        .seed(Bin::new(51_865, 2007).tokens(&no_tokens).tensor("x", &[32, 2], 8, &[1; 68]).bytes())
        .run(whisper_bin);
    let report = Fuzzer::new("whisper_bin")
        .runs(200)
        .longest_input(1 << 20)
        .memory_factor(MEMORY_FACTOR)
        .seed(whole.bytes());
    report.run(whisper_bin);
}

/// Opens a directory that holds only this file of whisper.cpp.
#[test]
fn fuzz_npz() {
    let halves = "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3, ), }";
    let words = "{'descr': '<u4', 'fortran_order': True, 'shape': (2, )}";
    fuzzer("npz")
        .seed(archive(&[
            ("a.weight", halves, &[0x3C; 12]),
            ("b.weight", words, &[7; 8]),
            ("b.scales", halves, &[1; 12]),
        ]))
        .words([
            "PK\x01\x02",
            "PK\x03\x04",
            "PK\x05\x06",
            "'<V2'",
            "'fortran_order': True",
            "(18446744073709551615, )",
            "\u{93}NUMPY",
        ])
        .run(|data| {
            directory(
                [
                    ("config.json", br#"{"quantization": {"bits": 4, "group_size": 32}}"#),
                    ("weights.npz", data),
                ],
                data.len(),
            )
        });
}

fn whisper_bin(data: &[u8]) -> String {
    directory([("ggml-tiny.bin", data)], data.len())
}

/// Opens a GGUF file, reads all that it gives.
fn gguf(data: &[u8]) -> String {
    outcome(Inspection::of_gguf_bytes(&data.to_vec().into()), data.len())
}

/// Opens a directory that holds only this file and an empty config.
fn safetensors(data: &[u8]) -> String {
    directory([("config.json", b"{}"), ("model.safetensors", data)], data.len())
}

fn mlx(data: &[u8]) -> String {
    let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    let weights = data.get(end + 1..).unwrap_or_default();
    directory([("config.json", &data[..end]), ("model.safetensors", weights)], data.len())
}

fn shard_index(data: &[u8]) -> String {
    let shard = b"\x02\0\0\0\0\0\0\0{}";
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let index = ("model.safetensors.index.json", data);
    directory([("config.json", b"{}".as_slice()), index, (first, shard), (second, shard)], data.len())
}

fn directory<const N: usize>(files: [(&str, &[u8]); N], input_len: usize) -> String {
    let files: BTreeMap<String, Bytes> =
        files.into_iter().map(|(name, data)| (name.to_owned(), data.to_vec().into())).collect();
    outcome(Inspection::of_files(files), input_len)
}

/// The outcome, after reading everything that was given and checking what was promised.
fn outcome(result: Result<Inspection, FormatError>, input_len: usize) -> String {
    let inspection = match result {
        Ok(inspection) => inspection,
        Err(error) => return problem(&error),
    };
    if let Some(Metadata::Gguf(metadata)) = inspection.metadata() {
        for (key, value) in metadata.iter() {
            assert!(metadata.contains(key));
            walk(value);
        }
    }
    for tensor in inspection.readable_tensors() {
        check(tensor, input_len);
    }
    let summary = format!("{} read", inspection.readable_tensors().len().min(3));
    match Checkpoint::try_from(inspection) {
        Ok(checkpoint) => {
            assert!(checkpoint.tensors().iter().all(|tensor| checkpoint.tensor(&tensor.name).is_some()));
            summary
        }
        Err(error) => summary + &problem(&error),
    }
}

fn problem(error: &FormatError) -> String {
    let text = error.to_string();
    assert!(text.len() < 4000 && !text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    error.fault().map_or(text, |fault| fault.problem.clone())
}

fn walk(value: &Value) {
    fn walk_array(array: &Array) {
        if let Some(strings) = array.strings() {
            assert_eq!(strings.count(), array.len());
        } else if let Some(arrays) = array.arrays() {
            assert_eq!(arrays.inspect(walk_array).count(), array.len());
        } else if let Some(scalars) = array.scalars() {
            assert_eq!(scalars.count(), array.len());
        }
    }
    if let Value::Array(array) = value {
        walk_array(array);
    }
}

/// The bytes are exactly those that shape and format need, and they are there.
fn check(tensor: &Tensor, input_len: usize) {
    let row_bytes = tensor.format.row_bytes(tensor.row_len()).unwrap();
    let payload = match &tensor.payload {
        Payload::Blocks(bytes) => bytes,
        Payload::Mlx { words, scales, biases, scale_format } => {
            let brasa_formats::StorageFormat::MlxAffine(affine) = tensor.format else { panic!("not MLX") };
            let groups = tensor.row_len() / affine.group_size as usize;
            let scale_bytes = tensor.rows() * groups * scale_format.block_bytes();
            assert_eq!((scales.len(), biases.len()), (scale_bytes, scale_bytes));
            words
        }
    };
    assert_eq!(payload.len(), tensor.rows() * row_bytes);
    assert!(payload.len() <= input_len);
    std::hint::black_box(payload.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
}
