//! Low-rank adapters beside a loaded model: what merged weights say, and never another model's text.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use brasa::formats::safetensors::{Dtype, TensorPlan, Writer};
use brasa::formats::{
    AdapterFile, AdapterForm, Bytes, Checkpoint, Existing, LowRankPair, OutputFile, Payload, StorageFormat,
    Tensor,
};
use brasa::{
    AdapterSource, CacheScope, EmbedOptions, Encoder, GenerateOptions, LoadOptions, Model, Precision,
    RequestOptions, Speculation, TokenStream,
};
use brasa_golden::folder;
use brasa_graph::testing::{Random, Tolerance, compare};

const RANK: usize = 4;

pub fn options(precision: Precision) -> LoadOptions {
    LoadOptions {
        context: Some(512),
        threads: Some(1),
        deterministic: true,
        precision,
        ..LoadOptions::default()
    }
}

/// A folder of a test, gone with it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    let mut floats = vec![0.0; tensor.rows() * tensor.row_len()];
    tensor.decode_rows(0..tensor.rows(), &mut floats).unwrap();
    floats
}

fn tensor(shape: &[usize], values: &[f32]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let payload = Payload::Blocks(Bytes::from(bytes));
    Tensor { name: "t".into(), shape: shape.to_vec(), format: StorageFormat::F32, payload }
}

/// An adapter of every projection of a checkpoint, with random numbers that change its products by about a tenth.
fn random_pairs(checkpoint: &Checkpoint, seed: u64) -> Vec<LowRankPair> {
    let mut random = Random::new(seed);
    let linear = |tensor: &&Tensor| tensor.name.ends_with("_proj.weight");
    let pair = |base: &Tensor| {
        let &[outputs, inputs] = &base.shape[..] else { panic!("a matrix") };
        let size =
            (floats(base).iter().map(|x| x * x).sum::<f32>() / base.rows() as f32 / inputs as f32).sqrt();
        let mut matrix = |shape: [usize; 2]| {
            let values: Vec<f32> = (0..shape[0] * shape[1]).map(|_| random.normal() * size.sqrt()).collect();
            tensor(&shape, &values)
        };
        let (a, b) = (matrix([RANK, inputs]), matrix([outputs, RANK]));
        let name = base.name.strip_suffix(".weight").unwrap().to_owned();
        LowRankPair { name, a, b, scale: 0.2, magnitude: None }
    };
    checkpoint.tensors().iter().filter(linear).map(pair).collect()
}

/// Writes the adapter, and the checkpoint with it merged; returns both folders.
fn adapter_and_merged(scratch: &Scratch, base: &Path, scale: f32) -> (PathBuf, PathBuf) {
    let checkpoint = Checkpoint::open(base).unwrap();
    let pairs = random_pairs(&checkpoint, 11);
    let (adapter, merged) = (scratch.0.join("bard"), scratch.0.join(format!("merged-{scale}")));
    let file =
        AdapterFile { form: AdapterForm::Peft, architecture: None, base: None, num_layers: None, pairs };
    file.write(&adapter, Existing::Replace).unwrap();
    fs::create_dir_all(&merged).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(base.join(name), merged.join(name)).unwrap();
    }
    let plan = |tensor: &Tensor| TensorPlan {
        name: tensor.name.clone(),
        dtype: Dtype::F32,
        shape: tensor.shape.clone(),
    };
    let output = OutputFile::create(merged.join("model.safetensors"), Existing::Replace).unwrap();
    let plans: Vec<TensorPlan> = checkpoint.tensors().iter().map(plan).collect();
    let mut writer = Writer::create(output, &[], &plans).unwrap();
    for tensor in checkpoint.tensors() {
        let mut values = floats(tensor);
        if let Some(pair) = file.pairs.iter().find(|pair| format!("{}.weight", pair.name) == tensor.name) {
            let (a, b, inputs) = (floats(&pair.a), floats(&pair.b), tensor.row_len());
            for (at, value) in values.iter_mut().enumerate() {
                let sum: f32 =
                    (0..RANK).map(|r| b[at / inputs * RANK + r] * a[r * inputs + at % inputs]).sum();
                *value += sum * pair.scale * scale;
            }
        }
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.write(&tensor.name, &bytes).unwrap();
    }
    writer.finish().unwrap();
    (adapter, merged)
}

fn adapted(base: &Path, adapter: &Path, scale: f32, precision: Precision) -> Model {
    let adapters = vec![AdapterSource { path: adapter.into(), scale }];
    Model::load(base, &LoadOptions { adapters, ..options(precision) }).unwrap()
}

fn logits(model: &Model) -> Vec<f32> {
    let ids: Vec<u32> = (0..40).map(|x| 100 + x * x % 300).collect();
    let mut all = Vec::new();
    model.score(&ids, &RequestOptions::DEFAULT, |row| all.extend_from_slice(row)).unwrap();
    all
}

fn text(model: &Model, speculation: Speculation) -> Vec<u32> {
    let options = GenerateOptions {
        max_tokens: Some(40),
        ignore_eos: true,
        speculation: Some(speculation),
        ..GenerateOptions::default()
    };
    let stream = model.generate("Once upon a time", &options).unwrap();
    stream.filter_map(|fragment| fragment.unwrap().token).map(|token| token.id).collect()
}

#[test]
fn an_adapted_model_is_the_merged_one() {
    let (scratch, base) = (Scratch::new("adapted-is-merged"), folder("tiny-llama"));
    for scale in [1.0, -0.5] {
        let (adapter, merged) = adapter_and_merged(&scratch, &base, scale);
        for (precision, bound) in
            [(Precision::Reference, Tolerance(1e-4)), (Precision::Fast, Tolerance(2e-3))]
        {
            let (adapted, merged) = (
                adapted(&base, &adapter, scale, precision),
                Model::load(&merged, &options(precision)).unwrap(),
            );
            let (found, expected) = (logits(&adapted), logits(&merged));
            let comparison = compare(&found, &expected);
            println!("scale {scale} {precision:?}: {comparison}");
            assert!(comparison.within(bound), "{precision:?}: {comparison}");
            let plain = logits(&Model::load(&base, &options(precision)).unwrap());
            assert!(compare(&plain, &expected).relative_l2 > 0.05, "the adapter does something");
        }
    }
}

#[test]
fn everything_goes_through_the_adapted_graph() {
    let (scratch, base) = (Scratch::new("adapted-everywhere"), folder("tiny-llama"));
    let (adapter, merged) = adapter_and_merged(&scratch, &base, 1.0);
    let adapted = adapted(&base, &adapter, 1.0, Precision::Reference);
    let [plain, merged] =
        [&base, &merged].map(|path| Model::load(path, &options(Precision::Reference)).unwrap());
    // Text, with tokens guessed ahead and without.
    let expected = text(&merged, Speculation::OFF);
    assert_ne!(text(&plain, Speculation::OFF), expected);
    assert_eq!(text(&adapted, Speculation::OFF), expected);
    assert_eq!(text(&adapted, Speculation::LOOKUP), expected);
    // Hidden states.
    let embedding = |model: &Model| {
        let ids = model.embedding_prompt("Once upon a time").unwrap();
        model.embed([ids], &EmbedOptions::default()).unwrap().next().unwrap().unwrap()
    };
    let comparison = compare(&embedding(&adapted), &embedding(&merged));
    assert!(comparison.within(Tolerance(1e-4)), "{comparison}");
    assert!(compare(&embedding(&plain), &embedding(&merged)).relative_l2 > 1e-2);
    let [info] = &adapted.adapters()[..] else { panic!("one adapter") };
    assert_eq!((&*info.name, info.scale.to_bits(), info.rank), ("bard", 1.0_f32.to_bits(), RANK));
}

/// A session's file names the adapters and their scales, so it goes on with no others.
#[test]
fn sessions_of_other_adapters_are_refused() {
    let (scratch, base) = (Scratch::new("adapted-sessions"), folder("tiny-llama"));
    let (adapter, _) = adapter_and_merged(&scratch, &base, 1.0);
    let one = adapted(&base, &adapter, 1.0, Precision::Fast);
    let session = one.session();
    let generate = GenerateOptions { max_tokens: Some(4), ..GenerateOptions::default() };
    session.generate_ids(vec![100, 200, 300], &generate).unwrap().for_each(drop);
    let mut bytes = Vec::new();
    session.write_to(&mut bytes, |_| ControlFlow::Continue(())).unwrap();

    let again = adapted(&base, &adapter, 1.0, Precision::Fast);
    again.read_session(&mut &bytes[..], |_| ControlFlow::Continue(())).unwrap();
    for other in [
        adapted(&base, &adapter, 0.5, Precision::Fast),
        Model::load(&base, &options(Precision::Fast)).unwrap(),
    ] {
        let error = other.read_session(&mut &bytes[..], |_| ControlFlow::Continue(())).map(drop).unwrap_err();
        assert!(error.to_string().contains("adapter"), "{error}");
    }
}

#[test]
fn adapters_that_do_not_fit_name_their_file() {
    let load = |path: PathBuf, scale| {
        let adapters = vec![AdapterSource { path, scale }];
        let options = LoadOptions { adapters, ..options(Precision::Fast) };
        let model = Model::load(folder("tiny-qwen2"), &options).map(drop);
        model.unwrap_err().to_string().replace(&folder("").display().to_string(), "")
    };
    let gguf = folder("random-adapters").join("llama31/adapter.gguf");
    assert_eq!(
        load(gguf.clone(), 1.0),
        "random-adapters/llama31/adapter.gguf: adapter: general.architecture: found llama, expected qwen2, the base's\n\
         hint: an adapter fits the model that it was trained on, and no other"
    );
    assert_eq!(
        load(gguf.clone(), f32::NAN),
        "random-adapters/llama31/adapter.gguf: scale NaN, expected a finite number"
    );
    assert!(load(folder("nothing"), 1.0).starts_with("nothing: "));
    let adapters = vec![AdapterSource::new(gguf)];
    let encoder =
        Encoder::load(folder("gguf-encoders/bert.gguf"), &LoadOptions { adapters, ..LoadOptions::default() });
    assert!(
        encoder
            .unwrap_err()
            .to_string()
            .ends_with("adapters change language models, and this is a text encoder")
    );
}

/// An adapter of its own for each seed.
pub fn adapter(scratch: &Scratch, base: &Path, seed: u64) -> AdapterSource {
    write_adapter(scratch, base, seed, &format!("adapter-{seed}"))
}

/// Writes the adapter of a seed under a name.
pub fn write_adapter(scratch: &Scratch, base: &Path, seed: u64, name: &str) -> AdapterSource {
    let pairs = random_pairs(&Checkpoint::open(base).unwrap(), seed);
    let path = scratch.0.join(name);
    let file =
        AdapterFile { form: AdapterForm::Peft, architecture: None, base: None, num_layers: None, pairs };
    file.write(&path, Existing::Replace).unwrap();
    AdapterSource::new(path)
}

/// Texts of several mixtures in one batch are those of models that are loaded with these adapters alone, cached beginnings or not.
#[test]
fn requests_choose_their_adapters() {
    for name in ["tiny-llama", "tiny-qwen3moe"] {
        let (scratch, base) = (Scratch::new(&format!("chosen-{name}")), folder(name));
        let adapters = vec![adapter(&scratch, &base, 1), adapter(&scratch, &base, 2)];
        let model = LoadOptions {
            adapters: adapters.clone(),
            adapters_by_request: true,
            prefix_bytes: Some(64 << 20),
            chunk: Some(16),
            ..options(Precision::Reference)
        };
        let model = Model::load(&base, &model).unwrap();
        let mixtures: [&[(usize, f32)]; 5] =
            [&[(0, 1.0), (1, 1.0)], &[(0, 1.0)], &[(1, 1.0)], &[(1, -0.5), (0, 0.7)], &[]];
        assert_eq!(model.adapter_scope(mixtures[0]).unwrap(), 0);
        let prompt: Vec<u32> = (0..300).map(|x| 100 + x * x % 300).collect();
        let start = |model: &Model, adapter| {
            let cache_scope = CacheScope { adapter, ..CacheScope::default() };
            let options = GenerateOptions {
                max_tokens: Some(24),
                ignore_eos: true,
                request: RequestOptions { cache_scope, ..RequestOptions::DEFAULT },
                ..GenerateOptions::default()
            };
            model.generate_ids(prompt.clone(), &options).unwrap()
        };
        let ids = |stream: &mut TokenStream| -> Vec<u32> {
            stream.by_ref().filter_map(|fragment| fragment.unwrap().token).map(|token| token.id).collect()
        };
        let expected: Vec<Vec<u32>> = mixtures
            .iter()
            .map(|mixture| {
                let adapters = mixture
                    .iter()
                    .map(|&(number, scale)| AdapterSource { scale, ..adapters[number].clone() })
                    .collect();
                let alone = LoadOptions { adapters, ..options(Precision::Reference) };
                ids(&mut start(&Model::load(&base, &alone).unwrap(), 0))
            })
            .collect();
        for (at, text) in expected.iter().enumerate() {
            assert!(!expected[..at].contains(text), "{name}: every mixture says something of its own");
        }
        for cached in [false, true] {
            let mut streams: Vec<TokenStream> =
                mixtures.iter().map(|mixture| start(&model, model.adapter_scope(mixture).unwrap())).collect();
            for (number, stream) in streams.iter_mut().enumerate() {
                assert_eq!(ids(stream), expected[number], "{name}, mixture {number}, cached {cached}");
                let expected = if cached { 256..300 } else { 0..1 };
                assert!(expected.contains(&stream.metrics().cached_tokens), "{name}, mixture {number}");
            }
        }
    }
}

#[test]
fn choices_that_make_no_sense_are_refused() {
    let (scratch, base) = (Scratch::new("no-choice"), folder("tiny-llama"));
    let adapters = vec![adapter(&scratch, &base, 1)];
    let model = LoadOptions { adapters, adapters_by_request: true, ..options(Precision::Fast) };
    let model = Model::load(&base, &model).unwrap();
    let refuse = |scales: &[(usize, f32)]| model.adapter_scope(scales).unwrap_err().to_string();
    assert_eq!(refuse(&[(1, 1.0)]), "adapter 1 is not loaded");
    assert_eq!(refuse(&[(0, f32::INFINITY)]), "adapter 0: scale inf, expected a finite number");
    let cache_scope = CacheScope { adapter: 7, ..CacheScope::default() };
    let options = GenerateOptions {
        request: RequestOptions { cache_scope, ..RequestOptions::DEFAULT },
        ..GenerateOptions::default()
    };
    let refused = model.generate_ids(vec![100], &options).map(drop).unwrap_err();
    assert_eq!(refused.to_string(), "adapter 0000000000000007 is not known");
    let plain = Model::load(&base, &self::options(Precision::Fast)).unwrap();
    assert_eq!(plain.adapter_scope(&[(0, 1.0)]).unwrap_err().to_string(), "adapter 0 is not loaded");
    let for_all = adapted(&base, &scratch.0.join("adapter-1"), 1.0, Precision::Fast);
    let refused = for_all.adapter_scope(&[]).unwrap_err();
    assert!(refused.to_string().contains("adapters that apply to all its texts"), "{refused}");
}
