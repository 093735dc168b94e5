//! Checkpoints written with other values, and folders that appear whole or not at all.

use std::fs;
use std::path::Path;

use brasa_formats::safetensors::{Dtype, TensorPlan, Writer};
use brasa_formats::{Changed, Checkpoint, Existing, FormatError, OutputFolder, Shards};

use crate::scratch::Scratch;

/// A file of two tensors, one of F32 and one of BF16, all of whose elements are 1.
fn shard(path: &Path, names: [&str; 2]) {
    let plan = |name: &str, dtype| TensorPlan { name: name.into(), dtype, shape: vec![3, 4] };
    let plans = [plan(names[0], Dtype::F32), plan(names[1], Dtype::BF16)];
    let mut writer = Writer::create(Scratch::output(path), &[("format", "pt")], &plans).unwrap();
    writer.write(names[0], &1.0_f32.to_le_bytes().repeat(12)).unwrap();
    writer.write(names[1], &0x3F80_u16.to_le_bytes().repeat(12)).unwrap();
    writer.finish().unwrap();
}

/// A checkpoint in two shards, with files beside them.
fn base(scratch: &Scratch) -> Checkpoint {
    let folder = scratch.path("base");
    fs::create_dir(&folder).unwrap();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    shard(&folder.join(shards[0]), ["a", "b"]);
    shard(&folder.join(shards[1]), ["c", "d"]);
    let map = serde_json::json!({ "a": shards[0], "b": shards[0], "c": shards[1], "d": shards[1] });
    let index = serde_json::json!({ "metadata": {}, "weight_map": map }).to_string();
    for (name, text) in [
        ("model.safetensors.index.json", index.as_str()),
        ("config.json", "{\"model_type\": \"x\"}"),
        ("tokenizer.json", "{}"),
        ("pytorch_model.bin", "other weights"),
        ("consolidated.safetensors", "other weights"),
        (".gitattributes", ""),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    Checkpoint::open(&folder).unwrap()
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensor(name).unwrap();
    let mut values = vec![0.0; 12];
    tensor.decode_rows(0..3, &mut values).unwrap();
    values
}

#[test]
fn elements_change_and_all_else_stays() {
    let scratch = Scratch::new("elements_change_and_all_else_stays");
    let base = base(&scratch);
    let path = scratch.path("written");
    // BF16 has 8 bits: 1 + 1/256 is between two numbers and rounds to the even one, 1 + 3/256 up to 1 + 4/256.
    let changes = [
        Changed { tensor: "d", first: 6, values: &[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0] },
        Changed { tensor: "a", first: 11, values: &[-2.5] },
        Changed { tensor: "d", first: 0, values: &[3.0] },
    ];
    base.write_changed(&changes, &path, Shards::Kept, Existing::Keep).unwrap();
    let written = Checkpoint::open(&path).unwrap();
    let mut expected = vec![1.0; 12];
    expected[11] = -2.5;
    assert_eq!(values(&written, "a"), expected);
    let mut expected = vec![1.0; 12];
    (expected[0], expected[7]) = (3.0, 1.0 + 4.0 / 256.0);
    assert_eq!(values(&written, "d"), expected);
    for name in ["b", "c"] {
        assert_eq!(values(&written, name), [1.0; 12]);
    }
    let mut names: Vec<_> =
        fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    assert_eq!(names, ["config.json", first, second, "model.safetensors.index.json", "tokenizer.json"]);
    assert_eq!(scratch.names(), ["base", "written"]);
    // Without changes, the bytes are those of the base.
    let again = scratch.path("again");
    base.write_changed(&[], &again, Shards::Kept, Existing::Keep).unwrap();
    let bytes = |folder: &str| fs::read(scratch.path(folder).join(second)).unwrap();
    assert_eq!(bytes("again"), bytes("base"));
    assert_ne!(bytes("written"), bytes("base"));
}

#[test]
fn a_folder_is_kept_or_replaced_whole() {
    let scratch = Scratch::new("a_folder_is_kept_or_replaced_whole");
    let base = base(&scratch);
    let path = scratch.path("out");
    let write = |value: f32, existing| {
        base.write_changed(
            &[Changed { tensor: "a", first: 0, values: &[value] }],
            &path,
            Shards::Kept,
            existing,
        )
    };
    // An empty folder is free.
    fs::create_dir(&path).unwrap();
    write(2.0, Existing::Keep).unwrap();
    fs::write(path.join("stale.json"), "{}").unwrap();
    let error = write(3.0, Existing::Keep).unwrap_err();
    assert!(matches!(&error, FormatError::Exists { path: found } if *found == path), "{error}");
    // What killed processes left is removed, and what others are writing stays.
    for name in [".out.12-0.partial", ".other.12-0.partial"] {
        fs::create_dir(scratch.path(name)).unwrap();
    }
    write(4.0, Existing::Replace).unwrap();
    assert_eq!(values(&Checkpoint::open(&path).unwrap(), "a")[0].to_bits(), 4.0_f32.to_bits());
    assert!(!path.join("stale.json").exists());
    assert_eq!(scratch.names(), [".other.12-0.partial", "base", "out"]);
    // An abandoned folder leaves the old one.
    let folder = OutputFolder::create(&path, Existing::Replace).unwrap();
    fs::write(folder.file("config.json"), "half").unwrap();
    assert_eq!(scratch.names().len(), 4);
    drop(folder);
    assert_eq!(scratch.names(), [".other.12-0.partial", "base", "out"]);
    assert_eq!(fs::read_to_string(path.join("tokenizer.json")).unwrap(), "{}");
    let file = path.join("tokenizer.json");
    assert!(matches!(OutputFolder::create(&file, Existing::Replace), Err(FormatError::Io { .. })));
}

#[test]
fn changes_that_do_not_fit_are_named() {
    let scratch = Scratch::new("changes_that_do_not_fit_are_named");
    let base = base(&scratch);
    let refused = |changes: &[Changed<'_>]| {
        let error =
            base.write_changed(changes, &scratch.path("out"), Shards::Kept, Existing::Keep).unwrap_err();
        error.to_string()
    };
    let change = |tensor, first, values| Changed { tensor, first, values };
    assert!(refused(&[change("e", 0, &[1.0])]).contains("e: the base has no such tensor"));
    let told = refused(&[change("a", 11, &[1.0, 1.0])]);
    assert!(told.contains("a: elements up to 13 are changed, there are 12"), "{told}");
    let told = refused(&[change("a", 1, &[1.0, 1.0]), change("a", 0, &[1.0, 1.0])]);
    assert!(told.contains("a: element 1 is changed twice"), "{told}");
    assert_eq!(scratch.names(), ["base"]);
}

/// Bytes of `a`, `b`, `c` and `d`: 48, 24, 48, 24.
fn written(base: &Checkpoint, path: &Path, most_bytes: u64) -> Result<(), FormatError> {
    let changes = [
        Changed { tensor: "d", first: 6, values: &[1.5, 2.5] },
        Changed { tensor: "a", first: 0, values: &[-2.5] },
    ];
    let most_bytes = most_bytes.try_into().unwrap();
    base.write_changed(&changes, path, Shards::Limited { most_bytes }, Existing::Replace)
}

/// The tensors of each file of a folder by its own header, which its index must say too.
fn files_of(folder: &Path) -> Vec<Vec<String>> {
    let header = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        assert_eq!(header["__metadata__"], serde_json::json!({ "format": "pt" }));
        header.into_iter().filter(|(name, _)| name != "__metadata__").collect::<Vec<_>>()
    };
    let index = fs::read_to_string(folder.join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.ends_with(".safetensors")).collect();
    names.sort();
    let (mut files, mut promised, mut total) = (Vec::new(), serde_json::Map::new(), 0);
    for (at, name) in names.iter().enumerate() {
        assert_eq!(*name, format!("model-{:05}-of-{:05}.safetensors", at + 1, names.len()));
        let tensors = header(&folder.join(name));
        for (tensor, entry) in &tensors {
            promised.insert(tensor.clone(), name.as_str().into());
            total += entry["data_offsets"][1].as_u64().unwrap() - entry["data_offsets"][0].as_u64().unwrap();
        }
        files.push(tensors.into_iter().map(|(tensor, _)| tensor).collect());
    }
    assert_eq!(index["weight_map"], serde_json::Value::Object(promised));
    assert_eq!(index["metadata"], serde_json::json!({ "total_size": total }));
    files
}

#[test]
fn tensors_are_split_into_files_of_a_limited_size() {
    let scratch = Scratch::new("tensors_are_split_into_files_of_a_limited_size");
    let base = base(&scratch);
    let path = scratch.path("out");
    let expected: [(u64, &[&[&str]]); 5] = [
        (143, &[&["a", "b", "c"], &["d"]]),
        (72, &[&["a", "b"], &["c", "d"]]),
        // As huggingface_hub splits: what is too large stands apart, and the file before it goes on.
        (47, &[&["a"], &["c"], &["b"], &["d"]]),
        (71, &[&["a"], &["b"], &["c"], &["d"]]),
        (1, &[&["a"], &["b"], &["c"], &["d"]]),
    ];
    for (most_bytes, files) in expected {
        written(&base, &path, most_bytes).unwrap();
        assert_eq!(files_of(&path), files, "{most_bytes}");
        let read = Checkpoint::open(&path).unwrap();
        let (mut a, mut d) = ([1.0; 12], [1.0; 12]);
        (a[0], d[6], d[7]) = (-2.5, 1.5, 2.5);
        for (name, expected) in [("a", a), ("b", [1.0; 12]), ("c", [1.0; 12]), ("d", d)] {
            assert_eq!(values(&read, name), expected, "{name} at {most_bytes}");
        }
    }
    // What fits into one file needs no index, and the base's would be wrong.
    written(&base, &path, 144).unwrap();
    assert!(path.join("model.safetensors").exists() && path.join("tokenizer.json").exists());
    assert!(!path.join("model.safetensors.index.json").exists());
    assert_eq!(Checkpoint::open(&path).unwrap().tensors().len(), 4);
    assert_eq!(scratch.names(), ["base", "out"]);
}

#[test]
fn a_tensor_is_found_in_another_file_than_the_index_names() {
    let scratch = Scratch::new("an_index_that_names_the_wrong_file");
    let base = base(&scratch);
    let path = scratch.path("out");
    written(&base, &path, 72).unwrap();
    let index = path.join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    assert!(text.contains("\"a\": \"model-00001"), "{text}");
    fs::write(&index, text.replace("\"a\": \"model-00001", "\"a\": \"model-00002")).unwrap();
    let read = Checkpoint::open(&path).unwrap();
    assert!(read.absent_tensors().is_empty(), "{:?}", read.absent_tensors());
    assert_eq!(values(&read, "a")[..1], [-2.5]);
}
