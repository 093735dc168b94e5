//! Indexes of safetensors that name tensors which no file has.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use brasa_formats::{Bytes, Checkpoint, Inspection};
use brasa_models::{LoadOptions, ModelError, Source, build, load};
use serde_json::{Value, json};

const SHARD: &str = "model-00001-of-00001.safetensors";

/// The files of `tiny-llama` as one shard with an index that also names `more`; in the shard `renamed` has another name.
fn files(more: &[&str], renamed: Option<&str>) -> BTreeMap<String, Bytes> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-llama");
    let mut weights = std::fs::read(folder.join("model.safetensors")).unwrap();
    let header_bytes = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&weights[8..8 + header_bytes]).unwrap();
    let names = header.as_object().unwrap().keys().map(String::as_str).filter(|name| *name != "__metadata__");
    let map: serde_json::Map<String, Value> =
        names.chain(more.iter().copied()).map(|name| (name.to_owned(), SHARD.into())).collect();
    if let Some(name) = renamed {
        let quoted = format!("\"{name}\"");
        let at = weights.windows(quoted.len()).position(|window| window == quoted.as_bytes()).unwrap();
        weights[at + 1] = b'X';
    }
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    let config = std::fs::read(folder.join("config.json")).unwrap();
    BTreeMap::from([
        ("config.json".to_owned(), config.into()),
        (SHARD.to_owned(), weights.into()),
        ("model.safetensors.index.json".to_owned(), index.into_bytes().into()),
    ])
}

#[test]
fn a_tensor_that_no_model_needs_is_a_warning() {
    let (options, strict) = (LoadOptions::default(), LoadOptions { strict: true, ..LoadOptions::default() });
    let whole = Checkpoint::from_files(files(&[], None)).unwrap();
    assert_eq!(load(&whole, &strict).unwrap().warnings, [""; 0]);

    let more = files(&["mtp.fc.weight", "vision.patch.weight"], None);
    let checkpoint = Checkpoint::from_files(more.clone()).unwrap();
    let warning = "model.safetensors.index.json: names mtp.fc.weight and 1 more, in model-00001-of-00001.safetensors, which no file has; this model does without";
    assert_eq!(load(&checkpoint, &options).unwrap().warnings, [warning]);
    assert!(matches!(load(&checkpoint, &strict), Err(ModelError::AbsentTensor { .. })));
    let inspection = Inspection::of_files(more).unwrap();
    assert_eq!(inspection.problems().len(), 0);
    assert_eq!(inspection.absent_tensors().len(), 2);
    let source = Source::inspected(&inspection).unwrap();
    assert_eq!(build(&source, &options).unwrap().warnings, [warning]);
}

#[test]
fn a_tensor_that_the_model_needs_is_named_with_index_and_file() {
    let checkpoint = Checkpoint::from_files(files(&["mtp.fc.weight"], Some("model.norm.weight"))).unwrap();
    let error = load(&checkpoint, &LoadOptions::default()).unwrap_err().to_string();
    let expected = "tensor model.norm.weight is missing: model.safetensors.index.json says that it is in model-00001-of-00001.safetensors, which does not have it";
    assert_eq!(error.lines().next().unwrap(), expected);
}
