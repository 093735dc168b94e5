//! Vocabularies of published models, and the ids that the models' own tokenizers give to difficult texts.

use std::path::PathBuf;

use brasa_formats::{Bytes, Inspection};
use brasa_tokenizer::{AddSpecial, ParseSpecial, Tokenizer};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tokenizers")
}

fn open(name: &str) -> Tokenizer {
    let packed = std::fs::read(folder().join(format!("{name}.gguf.xz"))).expect("fixture");
    let mut unpacked = Vec::new();
    lzma_rs::xz_decompress(&mut packed.as_slice(), &mut unpacked).expect("xz");
    let bytes: Bytes = unpacked.into();
    let inspection = Inspection::of_gguf_bytes(&bytes).expect("gguf");
    Tokenizer::from_inspection(&inspection, None).expect("tokenizer")
}

fn cases(name: &str) -> Vec<(String, Vec<u32>)> {
    let texts = std::fs::read_to_string(folder().join(format!("{name}.gguf.inp"))).expect("texts");
    let ids = std::fs::read_to_string(folder().join(format!("{name}.gguf.out"))).expect("ids");
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let ids: Vec<Vec<u32>> =
        ids.lines().map(|line| line.split_whitespace().map(|id| id.parse().expect("id")).collect()).collect();
    // The file ends with a separator, after which no text follows.
    texts.into_iter().map(str::to_owned).zip(ids).collect()
}

/// How the text comes back.
enum Back {
    Same,
    /// Unknown characters and the distinction of white space are lost.
    Words,
}

fn check(name: &str, back: &Back) {
    let tokenizer = open(name);
    let cases = cases(name);
    assert!(cases.len() > 40, "{name}: {} cases", cases.len());
    for (text, expected) in cases {
        let ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::No).expect("encode");
        assert_eq!(ids, expected, "{name}: ids of {text:?}");
        let decoded = tokenizer.decode(&ids, false).expect("decode");
        match back {
            Back::Same => assert_eq!(decoded, text, "{name}: text of {ids:?}"),
            Back::Words => {
                let words = |text: &str| text.to_lowercase().split_whitespace().collect::<String>();
                let (decoded, text) = (words(&decoded), words(&text));
                if text.is_ascii() {
                    assert_eq!(decoded, text, "{name}: text of {ids:?}");
                }
            }
        }
        let mut stream = tokenizer.decode_stream(false);
        let mut streamed = String::new();
        for id in &ids {
            streamed.push_str(&stream.push(*id).expect("known id"));
        }
        streamed.push_str(&stream.finish());
        assert_eq!(streamed, decoded, "{name}: streamed text of {ids:?}");
    }
}

#[test]
fn bert_bge() {
    check("ggml-vocab-bert-bge", &Back::Words);
}

#[test]
fn deepseek_coder() {
    check("ggml-vocab-deepseek-coder", &Back::Same);
}

#[test]
fn gemma_4() {
    check("ggml-vocab-gemma-4", &Back::Same);
}

#[test]
fn gpt_2() {
    check("ggml-vocab-gpt-2", &Back::Same);
}

#[test]
fn llama_bpe() {
    check("ggml-vocab-llama-bpe", &Back::Same);
}

#[test]
fn llama_spm() {
    check("ggml-vocab-llama-spm", &Back::Same);
}

#[test]
fn phi_3() {
    check("ggml-vocab-phi-3", &Back::Same);
}

#[test]
fn qwen2() {
    check("ggml-vocab-qwen2", &Back::Same);
}

#[test]
fn starcoder() {
    check("ggml-vocab-starcoder", &Back::Same);
}
