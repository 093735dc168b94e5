//! The small files beside the weights.

use std::fs;

use brasa_formats::{Checkpoint, Container, FormatError, Inspection, Metadata};

use crate::scratch::Scratch;

const EMPTY: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

#[test]
fn present_absent_and_unreadable() {
    let scratch = Scratch::new("present_absent_and_unreadable");
    fs::write(scratch.path("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    fs::write(scratch.path("model.safetensors"), EMPTY).unwrap();
    fs::write(scratch.path("tokenizer.json"), "{\"é\": 1}").unwrap();
    fs::write(scratch.path("chat_template.jinja"), b"caf\xe9").unwrap();
    fs::create_dir(scratch.path("generation_config.json")).unwrap();

    let checkpoint = Checkpoint::open(scratch.path("")).unwrap();
    assert_eq!(checkpoint.sidecar_text("tokenizer.json").unwrap().unwrap(), "{\"é\": 1}");
    assert_eq!(checkpoint.sidecar("chat_template.jinja").unwrap().unwrap(), b"caf\xe9");
    assert_eq!(checkpoint.sidecar("special_tokens_map.json").unwrap(), None);
    assert!(matches!(checkpoint.sidecar("generation_config.json"), Err(FormatError::Io { .. })));
    let error = checkpoint.sidecar_text("chat_template.jinja").unwrap_err().to_string();
    assert!(error.ends_with("chat_template.jinja: byte 3: not UTF-8"), "{error}");
}

#[test]
fn a_file_too_large_is_refused_unread() {
    let scratch = Scratch::new("a_file_too_large_is_refused_unread");
    fs::write(scratch.path("config.json"), "{}").unwrap();
    fs::write(scratch.path("model.safetensors"), EMPTY).unwrap();
    // Sparse: it takes no space.
    fs::File::create(scratch.path("config.json")).unwrap().set_len((16 << 20) + 1).unwrap();
    let error = Checkpoint::open(scratch.path("")).unwrap_err().to_string();
    assert!(error.ends_with("config.json: larger than 16 MiB"), "{error}");
}

#[test]
fn a_tokenizer_needs_no_weights() {
    let scratch = Scratch::new("a_tokenizer_needs_no_weights");
    fs::write(scratch.path("tokenizer.json"), "{}").unwrap();
    let inspection = Inspection::open(scratch.path("")).unwrap();
    assert_eq!(inspection.container(), Container::HuggingFace);
    assert_eq!(inspection.sidecar_text("tokenizer.json").unwrap().unwrap(), "{}");
    assert!(inspection.metadata().is_none());
    assert_eq!(inspection.problems().len(), 2);

    // Weights cut off, and of a foreign scheme: still a config and a tokenizer.
    fs::write(scratch.path("config.json"), r#"{"quantization_config": {"quant_method": "awq"}}"#).unwrap();
    fs::write(scratch.path("model.safetensors"), &EMPTY[..4]).unwrap();
    let inspection = Inspection::open(scratch.path("")).unwrap();
    assert!(matches!(inspection.metadata(), Some(Metadata::Config(_))));
    assert!(inspection.problems()[0].to_string().contains("weights quantised with awq are not read"));
    assert_eq!(inspection.problems().len(), 2);
}

#[test]
fn what_is_not_there_is_an_error() {
    let scratch = Scratch::new("what_is_not_there_is_an_error");
    assert!(matches!(Checkpoint::open(scratch.path("nowhere")), Err(FormatError::Io { .. })));
    assert!(matches!(Checkpoint::open(scratch.path("")), Err(FormatError::Unrecognised(_))));
}
