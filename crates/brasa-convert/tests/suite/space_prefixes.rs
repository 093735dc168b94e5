//! The space in front of texts, which SentencePiece vocabularies put by several rules.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use brasa_convert::{Event, Options, Recipe, convert};
use brasa_formats::Checkpoint;
use brasa_tokenizer::{AddSpecial, ParseSpecial, Tokenizer};
use serde_json::{Value, json};

/// Merges, which with the letters and bytes are the vocabulary.
const MERGES: [(&str, &str); 6] =
    [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a"), ("▁", "▁"), ("▁▁", "▁▁")];

fn tokenizer(normalizer: &Value, pre_tokenizer: &Value) -> Value {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let letters = ["▁", "t", "h", "e", "a", "."].map(str::to_owned);
    let merged = MERGES.map(|(left, right)| format!("{left}{right}"));
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let tokens = special.into_iter().chain(bytes).chain(letters).chain(merged);
    let vocab: serde_json::Map<String, Value> =
        tokens.enumerate().map(|(id, token)| (token, id.into())).collect();
    let added = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
            "merges": MERGES.map(|(left, right)| format!("{left} {right}"))},
    })
}

/// Converts the weights of `tiny-llama` with this tokenizer; returns both tokenizers and the warnings.
fn converted(folder: &Path, tokenizer: &Value) -> (Tokenizer, Tokenizer, Vec<String>) {
    let input = folder.join("in");
    std::fs::create_dir_all(&input).unwrap();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-llama");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(models.join(name), input.join(name)).unwrap();
    }
    std::fs::write(input.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": true, "add_eos_token": false});
    std::fs::write(input.join("tokenizer_config.json"), config.to_string()).unwrap();
    let output: PathBuf = folder.join("out.gguf");
    let mut warnings = Vec::new();
    let options = Options { existing: brasa_formats::Existing::Replace, ..Options::new(Recipe::F16) };
    convert(&input, &output, &options, &mut |event| {
        if let Event::Warning(warning) = event {
            warnings.push(warning);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    let open = |path: &Path| Tokenizer::from_checkpoint(&Checkpoint::open(path).unwrap(), None).unwrap();
    (open(&input), open(&output), warnings)
}

#[test]
fn ids_are_those_of_the_folder() {
    let folder = std::env::temp_dir().join(format!("brasa-convert-{}-prefixes", std::process::id()));
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
    let marked = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    for (rule, tokenizer, warning) in [
        ("each", tokenizer(&marked, &Value::Null), None),
        ("first", tokenizer(&Value::Null, &metaspace("first")), Some("`prepend_scheme: first`")),
        ("always", tokenizer(&Value::Null, &metaspace("always")), Some("`prepend_scheme: always`")),
    ] {
        let (ours, written, warnings) = converted(&folder, &tokenizer);
        match warning {
            None => assert_eq!(warnings, [""; 0], "{rule}"),
            Some(words) => {
                assert!(warnings.len() == 1 && warnings[0].contains(words), "{rule}: {warnings:?}");
            }
        }
        for text in [
            "",
            " ",
            "the",
            " the",
            "  the",
            "    the at",
            "</s> the",
            "</s>the",
            "</s>  the",
            "a</s> the</s>the",
            "<s></s>at",
            "é</s>\n the.",
            " </s> ",
            "the the\tthe",
        ] {
            for (add, parse) in [(AddSpecial::AsModel, ParseSpecial::No), (AddSpecial::No, ParseSpecial::Yes)]
            {
                let (expected, found) =
                    (ours.encode(text, add, parse).unwrap(), written.encode(text, add, parse).unwrap());
                assert_eq!(found, expected, "{rule}: {text:?}");
                assert_eq!(
                    written.decode(&found, true).unwrap(),
                    ours.decode(&expected, true).unwrap(),
                    "{rule}: {text:?}"
                );
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A pre-tokenizer of another name than the folder's cuts other tokens, and the conversion says so.
#[test]
fn other_tokens_are_told() {
    let folder = std::env::temp_dir().join(format!("brasa-convert-{}-told", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let mut warnings = Vec::new();
    let options = Options { pre_tokenizer: Some("default".into()), ..Options::new(Recipe::F16) };
    convert(&models.join("tiny-llama"), &folder.join("out.gguf"), &options, &mut |event| {
        if let Event::Warning(warning) = event {
            warnings.push(warning);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].contains("texts have other tokens in GGUF, such as"),
        "{warnings:?}"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}
