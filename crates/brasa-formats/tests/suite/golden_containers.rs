//! Files written by the public Python libraries are read as what they are (tools/golden/containers.py).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use brasa_formats::gguf::{Array, Value, ValueType};
use brasa_formats::{Bytes, Checkpoint, Container, Inspection, Metadata, Payload, Tensor};
use serde_json::Value as Json;

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/containers").join(case)
}

fn expected() -> serde_json::Map<String, Json> {
    let text = fs::read_to_string(golden("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// FNV-1a, as the script computes it.
fn fnv(parts: &[&Bytes]) -> String {
    let bytes = parts.iter().flat_map(|part| part.iter());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn summary(tensor: &Tensor) -> Json {
    let hash = match &tensor.payload {
        Payload::Blocks(bytes) => fnv(&[bytes]),
        Payload::Mlx { words, scales, biases, .. } => fnv(&[words, scales, biases]),
    };
    serde_json::json!([tensor.name, tensor.shape, tensor.format.to_string(), hash])
}

fn json(value: &Value) -> Json {
    match value {
        Value::U8(x) => Json::from(*x),
        Value::I8(x) => Json::from(*x),
        Value::U16(x) => Json::from(*x),
        Value::I16(x) => Json::from(*x),
        Value::U32(x) => Json::from(*x),
        Value::I32(x) => Json::from(*x),
        Value::U64(x) => Json::from(*x),
        Value::I64(x) => Json::from(*x),
        // The shortest text of an f32, as the script wrote it.
        Value::F32(x) => x.to_string().parse::<f64>().unwrap().into(),
        Value::F64(x) => Json::from(*x),
        Value::Bool(x) => Json::from(*x),
        Value::String(x) => Json::from(x.as_str()),
        Value::Array(array) => array_json(array),
    }
}

fn array_json(array: &Array) -> Json {
    match array.element_type() {
        ValueType::String => array.strings().unwrap().map(|s| str::from_utf8(s).unwrap()).collect(),
        ValueType::Array => array.arrays().unwrap().map(|inner| array_json(&inner)).collect(),
        _ => array.scalars().unwrap().map(|element| json(&element)).collect(),
    }
}

fn check(case: &str, checkpoint: &Checkpoint) {
    let expected = &expected()[case];
    let sorted = |mut list: Vec<Json>| {
        // safetensors sorts what it writes; the order in GGUF is the one given.
        if checkpoint.container() == Container::HuggingFace {
            list.sort_by_key(ToString::to_string);
        }
        list
    };
    let found = sorted(checkpoint.tensors().iter().map(summary).collect());
    assert_eq!(found, sorted(expected["tensors"].as_array().unwrap().clone()), "{case}");
    for (key, value) in expected["metadata"].as_object().unwrap() {
        let found = match checkpoint.metadata() {
            Metadata::Gguf(metadata) => json(metadata.value(key).unwrap()),
            Metadata::Config(config) => config[key].clone(),
        };
        assert_eq!(found, *value, "{case}: {key}");
    }
}

#[test]
fn from_maps() {
    for case in expected().keys() {
        check(case, &Checkpoint::open(golden(case)).unwrap());
    }
}

#[test]
fn from_memory() {
    for case in expected().keys() {
        let path = golden(case);
        if path.is_file() {
            check(case, &Checkpoint::from_gguf_bytes(fs::read(path).unwrap()).unwrap());
            continue;
        }
        let files: BTreeMap<String, Bytes> = fs::read_dir(path)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, fs::read(path).unwrap().into())
            })
            .collect();
        check(case, &Checkpoint::from_files(files).unwrap());
    }
}

#[test]
fn any_file_of_a_checkpoint_opens_it() {
    check("split", &Checkpoint::open(golden("split/model-00003-of-00003.gguf")).unwrap());
    check("sharded", &Checkpoint::open(golden("sharded/model-00001-of-00002.safetensors")).unwrap());
    check("plain", &Checkpoint::open(golden("plain/model.safetensors")).unwrap());
}

#[test]
fn integers_are_listed_but_are_no_tensors() {
    let inspection = Inspection::open(golden("plain")).unwrap();
    assert!(inspection.problems().is_empty());
    let integers: Vec<_> = inspection
        .tensors()
        .iter()
        .filter(|info| info.format.is_none())
        .map(|info| (info.name.as_str(), &*info.type_name, info.size_bytes))
        .collect();
    assert_eq!(integers, [("position_ids", "I64", Some(48)), ("mask", "BOOL", Some(4))]);
    assert!(inspection.readable_tensors().iter().all(|tensor| tensor.name != "mask"));
}

#[test]
fn version_2_is_told_from_3() {
    assert_eq!(Inspection::open(golden("version2.gguf")).unwrap().gguf_version(), Some(2));
    assert_eq!(Inspection::open(golden("every.gguf")).unwrap().gguf_version(), Some(3));
}

#[test]
fn big_endian_files_are_refused_by_name() {
    let error = Checkpoint::open(golden("big-endian.gguf")).unwrap_err().to_string();
    assert!(error.contains("a big-endian GGUF file (version 3 byte-swapped)"), "{error}");
}
