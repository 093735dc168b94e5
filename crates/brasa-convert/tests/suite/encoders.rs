//! Folders of text encoders as GGUF files, beside those that llama.cpp's own script makes of them
//! (`tools/golden/models/gguf_encoders.py`).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use brasa_convert::{ConvertError, Event, Options, Recipe, convert};
use brasa_formats::gguf::{Metadata, Value};
use brasa_formats::{Checkpoint, Existing, Metadata as Description, StorageFormat};
use brasa_golden::folder;

use super::scratch;

fn convert_to(name: &str, recipe: Recipe) -> Result<(Checkpoint, Vec<String>), ConvertError> {
    let output: PathBuf = scratch().join(format!(
        "brasa-encoder-{}-{}-{recipe}.gguf",
        std::process::id(),
        name.replace('/', "-")
    ));
    let options = Options { existing: Existing::Replace, ..Options::new(recipe) };
    let mut warnings = Vec::new();
    let made = convert(&folder(name), &output, &options, &mut |event| {
        if let Event::Warning(warning) = event {
            warnings.push(warning);
        }
        ControlFlow::Continue(())
    });
    let checkpoint = made.map(|_| Checkpoint::open(&output).unwrap());
    let _ = std::fs::remove_file(&output);
    Ok((checkpoint?, warnings))
}

fn keys(checkpoint: &Checkpoint) -> BTreeMap<&str, &Value> {
    let Description::Gguf(metadata) = checkpoint.metadata() else { panic!("a GGUF file") };
    Metadata::iter(metadata).collect()
}

/// Every tensor byte by byte, and every key but those whose difference is known:
/// - `general.name`, of which the script makes a version and a base name too, is the folder's, and the script was told `tokenizer.ggml.pre`;
/// - the script no longer writes `cls_token_id`, and for Nomic BERT writes the width of heads, which transformers' configuration has;
/// - for ModernBERT it writes epsilon under a second name, and how a head pools where there is none;
/// - of SentencePiece's own file, which the script reads and we do not, the mask has no name.
#[test]
fn files_are_those_of_llama_cpp() {
    for (name, own) in [
        ("random-encoders/bert", "bert"),
        ("random-encoders/jina-v2", "jina-bert-v2"),
        ("random-encoders/nomic-bert", "nomic-bert"),
        ("gguf-encoders/modern-bert", "modern-bert"),
        ("gguf-encoders/modern-bert-first-judge", "modern-bert-first-judge"),
        ("gguf-encoders/modern-bert-judge", "modern-bert-judge"),
        ("gguf-encoders/roberta", "roberta"),
        ("gguf-encoders/xlm-roberta", "xlm-roberta"),
        ("gguf-encoders/xlm-roberta-judge", "xlm-roberta-judge"),
    ] {
        let (ours, _) = convert_to(name, Recipe::F32).unwrap_or_else(|error| panic!("{name}: {error}"));
        let theirs = Checkpoint::open(folder("gguf-encoders").join(format!("{own}.gguf"))).unwrap();
        let known = |key: &str| {
            matches!(
                key,
                "general.name"
                    | "general.version"
                    | "general.basename"
                    | "tokenizer.ggml.pre"
                    | "tokenizer.ggml.cls_token_id"
            ) || key.starts_with("nomic-bert.attention.") && key.ends_with("_length")
                || matches!(key, "modern-bert.attention.layer_norm_rms_epsilon")
                || own == "modern-bert" && key == "modern-bert.classifier.pooling_type"
                || own.starts_with("xlm-roberta")
                    && matches!(key.rsplit('.').next(), Some("tokens" | "scores" | "token_type"))
        };
        let (a, b) = (keys(&ours), keys(&theirs));
        let mut names: Vec<&str> = a.keys().chain(b.keys()).copied().filter(|key| !known(key)).collect();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() > 20, "{name}: {names:?}");
        for key in names {
            assert_eq!(a.get(key), b.get(key), "{name}: {key}");
        }
        let tokens = |keys: &BTreeMap<&str, &Value>| match keys["tokenizer.ggml.tokens"] {
            Value::Array(array) => array.strings().unwrap().map(<[u8]>::to_vec).collect::<Vec<_>>(),
            _ => panic!("no tokens"),
        };
        let (mut a, mut b) = (tokens(&a), tokens(&b));
        if own.starts_with("xlm-roberta") {
            assert_eq!((a.pop().unwrap(), b.pop().unwrap()), (b"<mask>".to_vec(), b"[PAD384]".to_vec()));
        }
        assert!(a == b, "{name}: tokens");
        assert_eq!(ours.tensors().len(), theirs.tensors().len(), "{name}");
        for tensor in theirs.tensors() {
            let found = ours.tensor(&tensor.name).unwrap_or_else(|| panic!("{name}: {}", tensor.name));
            assert_eq!(
                (&found.shape, found.format),
                (&tensor.shape, tensor.format),
                "{name}: {}",
                tensor.name
            );
            let mut rows =
                [vec![0.0; tensor.rows() * tensor.row_len()], vec![0.0; found.rows() * found.row_len()]];
            tensor.decode_rows(0..tensor.rows(), &mut rows[0]).unwrap();
            found.decode_rows(0..found.rows(), &mut rows[1]).unwrap();
            assert!(rows[0] == rows[1], "{name}: {}", tensor.name);
        }
    }
}

/// Tables of positions and of parts, and whatever is no matrix, keep all their bits, as in llama.cpp; a file is converted again.
#[test]
fn what_is_not_quantised() {
    let (file, warnings) = convert_to("random-encoders/bert", Recipe::Q8_0).unwrap();
    assert!(warnings.iter().any(|warning| warning.starts_with("prompts (document, query)")), "{warnings:?}");
    assert!(warnings.iter().any(|warning| warning.starts_with("max_seq_length is 24")), "{warnings:?}");
    for (name, format) in [
        ("token_embd.weight", StorageFormat::Q8_0),
        ("blk.0.attn_q.weight", StorageFormat::Q8_0),
        // Rows of 48 are no whole number of blocks.
        ("blk.0.ffn_down.weight", StorageFormat::F16),
        ("position_embd.weight", StorageFormat::F32),
        ("token_types.weight", StorageFormat::F32),
        ("token_embd_norm.weight", StorageFormat::F32),
        ("blk.0.attn_q.bias", StorageFormat::F32),
    ] {
        assert_eq!(file.tensor(name).unwrap().format, format, "{name}");
    }
    let (file, warnings) = convert_to("gguf-encoders/nomic-bert.gguf", Recipe::Q5_0).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(file.tensor("blk.1.attn_qkv.weight").unwrap().format, StorageFormat::Q5_0);
}

/// Settings of an encoder that GGUF cannot say are refused by name.
#[test]
fn what_has_no_gguf_form_is_refused() {
    for (name, named) in [
        ("random-encoders/jina-v2-code", "a Jina v2 with norms of queries and keys has no GGUF form"),
        ("random-encoders/bert-judge", "hidden_act: gelu_pytorch_tanh has no GGUF form"),
        ("random-encoders/gte", "gte has no GGUF form"),
        ("random-encoders/roberta", "a dense layer behind the pooling has no GGUF form"),
        ("random-encoders/xlm-roberta-judge", "normalizer {\"type\":\"NFKC\"}: this has no GGUF form"),
    ] {
        let error = convert_to(name, Recipe::F16).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(named), "{name}: {error}");
    }
}
