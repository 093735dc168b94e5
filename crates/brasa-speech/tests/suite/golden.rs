//! Golden values and the vocabulary that they are about.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use brasa_speech::SpeechVocabulary;
use brasa_tokenizer::Tokenizer;
use serde_json::Value;

/// Width of the logits.
pub const VOCAB: usize = 51_865;

/// Results of openai-whisper's functions.
pub static GOLDEN: LazyLock<Value> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/speech.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
});

/// The multilingual vocabulary.
pub static VOCABULARY: LazyLock<SpeechVocabulary> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-whisper");
    let tokenizer = Arc::new(Tokenizer::from_directory(&folder).unwrap());
    SpeechVocabulary::new(tokenizer, VOCAB).unwrap()
});

/// The cases of one kind.
pub fn cases(kind: &str) -> &'static [Value] {
    let cases = GOLDEN[kind].as_array().unwrap();
    assert!(!cases.is_empty(), "{kind}");
    cases
}

/// A list of token ids.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A list of numbers.
pub fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// Asserts that two numbers are as good as equal.
pub fn assert_close(found: f64, expected: &Value, tolerance: f64, label: &str) {
    let expected = expected.as_f64().unwrap();
    assert!((found - expected).abs() <= tolerance, "{label}: found {found}, expected {expected}");
}
