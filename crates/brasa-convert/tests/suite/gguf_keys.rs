//! Keys of a written GGUF file: another value of a key computes something else or is refused by name, a neutral value
//! changes nothing, and converting the file once more keeps whatever it says.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;

use brasa_convert::{Options, Recipe, convert};
use brasa_formats::gguf::{self, Array, TensorPlan, Value, Writer};
use brasa_formats::{Checkpoint, Existing, Metadata, OutputFile, Payload, Tensor};
use brasa_golden::folder;
use brasa_models::{LoadOptions, ModelError, ModelSpec, Source, build, gguf_configuration_keys, gguf_pairs};

use super::scratch;

/// Keys that say nothing about what a model computes, whatever their value.
const HARMLESS: [&str; 6] = [
    "begin_suppress_tokens",
    "decoder.alignment_heads",
    "pooling_type",
    "rope.scaling.finetuned",
    "suppress_tokens",
    "tensor_data_layout",
];

/// Keys of a file that have another value with which the model is the same.
const ALIKE: [(&str, &str); 6] = [
    // The pattern of these windows is that of a period.
    ("gemma3-linear", "attention.sliding_window_pattern"),
    ("gemma4", "attention.sliding_window_pattern"),
    ("gemma4-moe", "attention.sliding_window_pattern"),
    // No layer is dense.
    ("qwen3moe", "feed_forward_length"),
    // Nothing is stretched.
    ("phi3-window", "rope.scaling.original_context_length"),
    // The model's context is beyond all of them.
    ("phi3-longrope", "rope.scaling.original_context_length"),
];

/// The outcome of one changed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The error names the key, or the other key, tensor or dimension that contradicts it.
    Refused,
    /// The model is another one.
    Other,
    /// The model is the same.
    Same,
    /// An unknown key: a strict reader refuses it by name, another one warns and reads the same model.
    Unknown,
}

/// A checkpoint of `models/random`, converted.
struct Written {
    name: &'static str,
    metadata: gguf::Metadata,
    tensors: Vec<Tensor>,
    spec: ModelSpec,
    folder: PathBuf,
}

impl Written {
    fn new(name: &'static str) -> Self {
        let scratch = scratch().join(format!("brasa-keys-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&scratch).unwrap();
        let file = scratch.join("written.gguf");
        make(&folder("random").join(name), &file);
        // From memory, so that the file may go.
        let checkpoint = Checkpoint::from_gguf_bytes(std::fs::read(&file).unwrap()).unwrap();
        let (metadata, tensors) = (metadata(&checkpoint), checkpoint.tensors().to_vec());
        let spec = read(&metadata, &tensors, true).unwrap().0;
        Self { name, metadata, tensors, spec, folder: scratch }
    }

    /// A key of the architecture, with its prefix.
    fn spelled(&self, key: &str) -> String {
        format!("{}.{key}", self.metadata.require::<&str>("general.architecture").unwrap())
    }

    fn with(&self, key: &str, value: Option<&Value>) -> gguf::Metadata {
        let mut metadata = self.metadata.clone();
        match value {
            Some(value) => metadata.insert(key, value.clone()),
            None => drop(metadata.remove(key)),
        }
        metadata
    }

    /// Reads the file with `key` set to `value`, or without it.
    fn outcome(&self, key: &str, value: Option<&Value>) -> Outcome {
        let label = format!("{}: {key} = {value:?}", self.name);
        let changed = self.with(key, value);
        match read(&changed, &self.tensors, true) {
            Ok((spec, _)) if spec == self.spec => Outcome::Same,
            Ok(_) => Outcome::Other,
            Err(ModelError::UnknownKey { key: named, .. }) => {
                let (spec, warnings) = read(&changed, &self.tensors, false).unwrap();
                assert!(spec == self.spec, "{label}: {named} is not known, and the model is another one");
                assert!(warnings.iter().any(|warning| warning.contains(&named)), "{label}: {warnings:?}");
                if named == key { Outcome::Unknown } else { Outcome::Other }
            }
            Err(
                ModelError::MissingTensor { .. }
                | ModelError::TensorShape { .. }
                | ModelError::UnusedTensor { .. }
                | ModelError::Dimensions { .. },
            ) => Outcome::Refused,
            Err(error) => {
                assert!(error.to_string().contains(&self.spelled("")), "{label}: {error}");
                Outcome::Refused
            }
        }
    }

    /// Converts the file with another value once more: the specification stays.
    fn convert_again(&self, key: &str, value: &Value) {
        let (input, output) = (self.folder.join("changed.gguf"), self.folder.join("again.gguf"));
        let changed = self.with(key, Some(value));
        let plan = |tensor: &Tensor| TensorPlan {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            format: tensor.format,
        };
        let mut writer = Writer::create(
            OutputFile::create(&input, Existing::Replace).unwrap(),
            &changed,
            self.tensors.iter().map(plan).collect(),
        )
        .unwrap();
        for tensor in &self.tensors {
            let Payload::Blocks(bytes) = &tensor.payload else { panic!("{}: no blocks", tensor.name) };
            writer.write(&tensor.name, bytes).unwrap();
        }
        writer.finish().unwrap();
        make(&input, &output);
        let again = Checkpoint::open(&output).unwrap();
        let expected = read(&changed, &self.tensors, true).unwrap().0;
        let found = read(&metadata(&again), again.tensors(), true).unwrap().0;
        assert_eq!(expected.difference(&found), None, "{}: {key} = {value:?}", self.name);
    }

    fn check_every_key(&self) {
        let layers = self.spec.layers.len();
        let mut harmless = BTreeSet::new();
        let mut alike = BTreeSet::new();
        let mut count: BTreeMap<Outcome, usize> = BTreeMap::new();
        for key in gguf_configuration_keys() {
            let spelled = self.spelled(key);
            let present = self.metadata.value(&spelled);
            let mut outcomes = BTreeSet::new();
            for value in values(present, layers) {
                let outcome = self.outcome(&spelled, Some(&value));
                *count.entry(outcome).or_default() += 1;
                if outcome == Outcome::Other && !outcomes.contains(&outcome) {
                    self.convert_again(&spelled, &value);
                }
                if outcome == Outcome::Same && present.is_some() && !HARMLESS.contains(&key) {
                    alike.insert(key);
                }
                outcomes.insert(outcome);
            }
            if outcomes.iter().eq(&[Outcome::Same]) {
                harmless.insert(key);
            }
            if present.is_some() {
                *count.entry(self.outcome(&spelled, None)).or_default() += 1;
            }
        }
        println!("{}: {count:?}", self.name);
        let mut expected = BTreeSet::from(HARMLESS);
        if self.metadata.contains(&self.spelled("rope.scaling.factor")) {
            // The older spelling, which counts where the other is absent.
            expected.insert("rope.scale_linear");
        }
        assert_eq!(harmless, expected, "{}: keys that are passed over", self.name);
        let mut expected: BTreeSet<_> =
            ALIKE.into_iter().filter(|(name, _)| *name == self.name).map(|(_, key)| key).collect();
        // A number that may be stale: the rows of the embedding table count.
        expected.insert("vocab_size");
        assert_eq!(alike, expected, "{}: keys with values that make no difference", self.name);
    }

    /// Names, vocabularies, sampling: no key outside the architecture's changes what is computed, but the architecture.
    fn check_other_keys(&self) {
        let prefix = self.spelled("");
        let others = self.metadata.iter().map(|(key, _)| key).filter(|key| !key.starts_with(&prefix));
        for key in others.chain(["general.sampling.temp", "general.something_new", "another.block_count"]) {
            let values = [Value::from("mamba7"), Value::from(3_u32), Value::from(Array::of([1_u32]))];
            for value in &values {
                let outcome = match key {
                    "general.architecture" => continue,
                    _ => self.outcome(key, Some(value)),
                };
                assert_eq!(outcome, Outcome::Same, "{}: {key} = {value:?}", self.name);
            }
        }
        let unknown = self.with("general.architecture", Some(&Value::from("mamba7")));
        let error = read(&unknown, &self.tensors, false).unwrap_err();
        assert!(
            matches!(&error, ModelError::UnknownArchitecture { architecture, .. } if architecture == "mamba7")
        );
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn make(input: &std::path::Path, output: &std::path::Path) {
    let options = Options { threads: 1, existing: Existing::Replace, ..Options::new(Recipe::F32) };
    convert(input, output, &options, &mut |_| ControlFlow::Continue(())).unwrap();
}

fn metadata(checkpoint: &Checkpoint) -> gguf::Metadata {
    match checkpoint.metadata() {
        Metadata::Gguf(metadata) => metadata.clone(),
        Metadata::Config(_) => panic!("a GGUF file"),
    }
}

fn read(
    metadata: &gguf::Metadata,
    tensors: &[Tensor],
    strict: bool,
) -> Result<(ModelSpec, Vec<String>), ModelError> {
    let source = Source::gguf(gguf_pairs(metadata), tensors.iter().cloned())?;
    let model = build(&source, &LoadOptions { context_length: None, strict })?;
    Ok((model.spec, model.warnings))
}

/// Values of every kind but the present one, and some near it.
fn values(present: Option<&Value>, layers: usize) -> Vec<Value> {
    let mut values: Vec<Value> = vec![
        0_u32.into(),
        1_u32.into(),
        2_u32.into(),
        1000_u32.into(),
        0.5_f32.into(),
        7_f32.into(),
        f32::NAN.into(),
        true.into(),
        false.into(),
        "gelu".into(),
        "yarn".into(),
        Array::of([2_u32]).into(),
        Array::of((0..layers).map(|layer| layer as u32)).into(),
        Array::of((0..layers).map(|layer| layer % 2 == 0)).into(),
    ];
    match present {
        Some(&Value::U32(number)) => {
            values.extend([Value::from(number + 1), (number * 2).into(), (number / 2).into()]);
        }
        Some(&Value::F32(number)) => values.extend([Value::from(number * 2.0), (number / 2.0).into()]),
        _ => {}
    }
    let as_number = |value: &Value| match *value {
        Value::U32(number) => Some(f64::from(number)),
        Value::F32(number) => Some(f64::from(number)),
        _ => None,
    };
    // An array of equal numbers, one for each layer, is that number.
    let is_number = |value: &Value, number: f64| match value {
        Value::Array(array) => {
            array.scalars().is_some_and(|mut all| all.all(|one| as_number(&one) == Some(number)))
        }
        one => as_number(one) == Some(number),
    };
    let is_present = |value: &Value| {
        present.is_some_and(|present| {
            present == value || as_number(present).is_some_and(|number| is_number(value, number))
        })
    };
    values.retain(|value| !is_present(value));
    values
}

super::for_each_base!(|name| {
    let written = Written::new(name);
    written.check_every_key();
    written.check_other_keys();
});
