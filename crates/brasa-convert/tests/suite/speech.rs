//! Whispers as GGUF files and as files of whisper.cpp, which are read as the GGUF that would hold the same.
//!
//! That whisper.cpp itself reads them is checked by `tools/golden/whisper_cpp.py`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use brasa_convert::{ConvertError, Options, Recipe, Summary, convert};
use brasa_formats::{Checkpoint, Existing, Metadata, StorageFormat, Tensor};
use brasa_golden::{Golden, SpeechRunner, folder, load_speech_strictly};
use brasa_graph::testing::{Tolerance, compare};

use super::scratch;

/// A file that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(scratch().join(format!("brasa-whisper-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn make(input: &Path, output: &Scratch, recipe: Recipe) -> Result<Summary, ConvertError> {
    let options = Options { existing: Existing::Replace, ..Options::new(recipe) };
    convert(input, &output.0, &options, &mut |_| ControlFlow::Continue(()))
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let mut out = vec![0.0; tensor.rows() * tensor.row_len()];
    tensor.decode_rows(0..tensor.rows(), &mut out).unwrap();
    out
}

/// Every tensor of the folder is there under its name in whisper.cpp, with its values.
#[test]
fn a_folder_becomes_a_gguf_file() {
    let path = folder("tiny-whisper");
    let output = Scratch::new("f32.gguf");
    make(&path, &output, Recipe::F32).unwrap();
    let (source, made) = (Checkpoint::open(&path).unwrap(), Checkpoint::open(&output.0).unwrap());
    assert_eq!(made.tensors().len(), source.tensors().len() + 1, "a filter bank more");
    for (theirs, ours) in [
        ("model.encoder.conv1.weight", "encoder.conv1.weight"),
        ("model.encoder.embed_positions.weight", "encoder.positional_embedding"),
        ("model.encoder.layers.2.fc1.bias", "encoder.blocks.2.mlp.0.bias"),
        ("model.decoder.embed_tokens.weight", "decoder.token_embedding.weight"),
        ("model.decoder.layers.1.encoder_attn.k_proj.weight", "decoder.blocks.1.cross_attn.key.weight"),
        ("model.decoder.layer_norm.weight", "decoder.ln.weight"),
    ] {
        let (theirs, found) = (source.tensor(theirs).unwrap(), made.tensor(ours).unwrap());
        assert_eq!(theirs.shape, found.shape, "{ours}");
        assert!(values(theirs) == values(found), "{ours}");
    }
    let Metadata::Gguf(metadata) = made.metadata() else { panic!("a GGUF file") };
    assert_eq!(metadata.require::<u32>("whisper.encoder.mels_count").unwrap(), 80);
    assert_eq!(
        metadata.require::<Vec<&str>>("tokenizer.ggml.tokens").unwrap()[50258],
        "<|startoftranscript|>"
    );
}

/// Whichever way a file of whisper.cpp is made, its bytes are the same, and it holds what the GGUF file holds.
#[test]
fn files_of_whisper_cpp_hold_what_gguf_holds() {
    for recipe in [Recipe::F16, Recipe::Q8_0, Recipe::Q5_0] {
        let [gguf, bin, again, through] =
            ["a.gguf", "b.bin", "c.bin", "d.bin"].map(|name| Scratch::new(&format!("{recipe}-{name}")));
        let path = folder("tiny-whisper");
        make(&path, &gguf, recipe).unwrap();
        let summary = make(&path, &bin, recipe).unwrap();
        assert_eq!(summary.fallbacks, 0);
        make(&bin.0, &again, recipe).unwrap();
        make(&gguf.0, &through, recipe).unwrap();
        let bytes = std::fs::read(&bin.0).unwrap();
        assert!(bytes == std::fs::read(&again.0).unwrap() && bytes == std::fs::read(&through.0).unwrap());
        let (gguf, bin) = (Checkpoint::open(&gguf.0).unwrap(), Checkpoint::open(&bin.0).unwrap());
        assert_eq!(gguf.tensors().len(), bin.tensors().len());
        for tensor in gguf.tensors() {
            let found = bin.tensor(&tensor.name).unwrap_or_else(|| panic!("{}", tensor.name));
            assert_eq!((&found.shape, found.format), (&tensor.shape, tensor.format), "{}", tensor.name);
            assert!(values(found) == values(tensor), "{}", tensor.name);
        }
        let format = |name: &str| bin.tensor(name).unwrap().format;
        assert_eq!(format("decoder.token_embedding.weight"), recipe.main_format());
        assert_eq!(format("encoder.conv2.weight"), StorageFormat::F16);
        assert_eq!(format("decoder.positional_embedding"), StorageFormat::F32);
        let keys = |checkpoint: &Checkpoint| {
            let Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("a GGUF file") };
            let tokens: Vec<String> = metadata.require("tokenizer.ggml.tokens").unwrap();
            let layers: u32 = metadata.require("whisper.decoder.block_count").unwrap();
            (tokens, layers)
        };
        assert!(keys(&gguf) == keys(&bin));
    }
}

/// GGUF files of every container, in a type that keeps the weights and in one that rounds them, beside the golden logits of the
/// containers themselves.
#[test]
fn converted_files_compute_what_their_sources_compute() {
    for (name, recipe, bound) in [
        ("hugging-face", Recipe::F16, 1e-4),
        ("mlx-npz", Recipe::F16, 1e-4),
        ("mlx-4bit", Recipe::F32, 1e-4),
        ("mlx", Recipe::Q8_0, 3e-2),
    ] {
        let output = Scratch::new(&format!("{name}.gguf"));
        let path = folder("random-speech").join(name);
        make(&path, &output, recipe).unwrap_or_else(|error| panic!("{name}: {error}"));
        let model = load_speech_strictly(&output.0);
        let golden = Golden::read(&path.join("golden.safetensors"));
        let mut runner = SpeechRunner::new(&model);
        runner.encode(0, golden.floats("mel"));
        let logits = runner.logits(0, &golden.ids("ids")).concat();
        let comparison = compare(&logits, &golden.floats("logits"));
        println!("{name}: {comparison}");
        assert!(comparison.within(Tolerance(bound)), "{name}: {comparison}");
    }
}

/// Types and forms that whisper.cpp does not read are refused by name, and no file is left behind.
#[test]
fn what_whisper_cpp_does_not_read_is_refused() {
    let output = Scratch::new("refused.bin");
    for (recipe, named) in [
        (Recipe::Q4_K_M, "decoder.blocks.0.attn.key.weight: Q5_0 of shape [192, 192], expected Q4_K"),
        (Recipe::BF16, "BF16: whisper.cpp runs no files of this type"),
        (Recipe::F32, "F32: whisper.cpp runs no files of this type"),
    ] {
        let error = make(&folder("tiny-whisper"), &output, recipe).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
        assert!(!output.0.exists());
    }
}
