//! The committed vocabularies and checkpoints.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};

use brasa_formats::{Bytes, Inspection};
use brasa_tokenizer::{GgufVocabulary, Tokenizer};

pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

pub fn unpacked(path: &Path) -> Vec<u8> {
    let packed = std::fs::read(path).expect("fixture");
    let mut unpacked = Vec::new();
    lzma_rs::xz_decompress(&mut packed.as_slice(), &mut unpacked).expect("xz");
    unpacked
}

/// The tokenizer of `models/NAME`, or of `models/tokenizers/ggml-vocab-….gguf.xz`.
pub fn tokenizer(name: &str) -> Tokenizer {
    if !name.starts_with("ggml-vocab-") {
        return Tokenizer::from_directory(&models().join(name)).expect("tokenizer");
    }
    Tokenizer::from_inspection(&inspection(name), None).expect("tokenizer")
}

pub fn vocabulary(name: &str) -> GgufVocabulary {
    vocabulary_of(&inspection(name))
}

/// The vocabulary of a GGUF file.
pub fn vocabulary_of_file(path: &Path) -> GgufVocabulary {
    let bytes: Bytes = std::fs::read(path).expect("fixture").into();
    vocabulary_of(&Inspection::of_gguf_bytes(&bytes).expect("gguf"))
}

fn vocabulary_of(inspection: &Inspection) -> GgufVocabulary {
    let Some(brasa_formats::Metadata::Gguf(metadata)) = inspection.metadata() else { panic!("no metadata") };
    GgufVocabulary::from_metadata(metadata).expect("vocabulary")
}

fn inspection(name: &str) -> Inspection {
    let bytes: Bytes = unpacked(&models().join("tokenizers").join(format!("{name}.gguf.xz"))).into();
    Inspection::of_gguf_bytes(&bytes).expect("gguf")
}
