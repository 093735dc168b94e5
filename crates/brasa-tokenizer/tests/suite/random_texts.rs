//! Random difficult texts: the ids of the tokenizers library and of llama.cpp (tools/golden/random_texts.py).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use brasa_formats::Inspection;
use brasa_tokenizer::{AddSpecial, ParseSpecial, Tokenizer};

use crate::common;
use serde_json::Value;

type Golden = BTreeMap<String, Vec<Vec<Value>>>;

fn golden() -> Golden {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/random/golden.json.xz");
    serde_json::from_slice(&common::unpacked(&path)).expect("golden")
}

fn check(name: &str, tokenizer: &Tokenizer, cases: &[Vec<Value>]) {
    for case in cases {
        if let [text, add, parse, ids] = case.as_slice() {
            let text = text.as_str().expect("text");
            let expected: Vec<u32> = serde_json::from_value(ids.clone()).expect("ids");
            let add = if add == &Value::Bool(true) { AddSpecial::AsModel } else { AddSpecial::No };
            let parse = if parse == &Value::Bool(true) { ParseSpecial::Yes } else { ParseSpecial::No };
            let ids = tokenizer.encode(text, add, parse).expect("encode");
            assert_eq!(ids, expected, "{name}: {text:?}, {add:?}, {parse:?}");
        } else if let [ids, skip, text] = case.as_slice() {
            let ids: Vec<u32> = serde_json::from_value(ids.clone()).expect("ids");
            let decoded = tokenizer.decode(&ids, skip.as_bool().expect("flag")).expect("decode");
            assert_eq!(&decoded, text, "{name}: {ids:?}, {skip}");
        } else {
            panic!("{name}: {case:?}");
        }
    }
}

#[test]
fn random_texts_as_elsewhere() {
    let golden = golden();
    assert_eq!(golden.len(), 11);
    for (name, cases) in golden {
        check(&name, &common::tokenizer(&name), &cases);
    }
}

/// A checkpoint keeps its ids when it becomes a GGUF file.
#[test]
fn converted_checkpoints_keep_their_ids() {
    let golden = golden();
    for name in ["tiny-llama", "tiny-gemma3", "tiny-gemma4"] {
        let output = std::env::temp_dir().join(format!("brasa-{name}-{}.gguf", std::process::id()));
        let options = brasa_convert::Options::new(brasa_convert::Recipe::F16);
        let quiet = &mut |_: brasa_convert::Event<'_>| ControlFlow::Continue(());
        brasa_convert::convert(&common::models().join(name), &output, &options, quiet).expect("conversion");
        let inspection = Inspection::open(&output).expect("file");
        let tokenizer = Tokenizer::from_inspection(&inspection, None).expect("tokenizer");
        std::fs::remove_file(&output).expect("temporary file");
        check(name, &tokenizer, &golden[name]);
        let original = common::tokenizer(name);
        assert_eq!(tokenizer.special_tokens(), original.special_tokens(), "{name}");
        assert_eq!(tokenizer.chat_template_source(), original.chat_template_source(), "{name}");
    }
}

/// Ids whose bytes are not text: whatever the order, streamed equals whole and lossy decoding of the bytes.
#[test]
fn bytes_that_are_not_text() {
    for name in ["tiny-llama", "tiny-gemma3", "ggml-vocab-llama-spm"] {
        let tokenizer = common::tokenizer(name);
        let size = tokenizer.vocabulary().len() as u32;
        let mut state = 12345_u32;
        for _ in 0..200 {
            let ids: Vec<u32> = (0..30)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // The first few hundred are bytes in all of these.
                    (state >> 8) % if state & 4 == 0 { 260 } else { size }
                })
                .collect();
            let mut bytes: Vec<u8> = Vec::new();
            for id in &ids {
                bytes.extend_from_slice(&tokenizer.piece_bytes(*id).expect("piece"));
            }
            let whole = tokenizer.decode(&ids, false).expect("decode");
            let mut lossy = String::from_utf8_lossy(&bytes).into_owned();
            if name == "ggml-vocab-llama-spm" {
                lossy = lossy.strip_prefix(' ').map(str::to_owned).unwrap_or(lossy);
            }
            assert_eq!(whole, lossy, "{name}: {ids:?}");
        }
    }
}

#[test]
fn text_that_is_not_utf8() {
    let tokenizer = common::tokenizer("tiny-llama");
    let encode =
        |text: &[u8]| tokenizer.encode_bytes(text, AddSpecial::No, ParseSpecial::No).expect("encode");
    assert_eq!(encode(b"a\xFF\xE4\xBDb"), encode("a\u{FFFD}\u{FFFD}b".as_bytes()));
    assert_eq!(
        encode("naïve\n".as_bytes()).len(),
        tokenizer.encode("naïve\n", AddSpecial::No, ParseSpecial::No).expect("encode").len()
    );
}

/// No piece of a stream ends inside a character.
#[test]
fn streams_hold_back_half_characters() {
    let tokenizer = common::tokenizer("tiny-llama");
    let ids = tokenizer.encode("né🙂汉", AddSpecial::No, ParseSpecial::No).expect("encode");
    let mut stream = tokenizer.decode_stream(true);
    let mut pieces = Vec::new();
    for id in &ids {
        pieces.push(stream.push(*id).expect("known"));
    }
    assert!(pieces.iter().any(String::is_empty), "{pieces:?}");
    assert_eq!(pieces.concat(), "né🙂汉");
    assert_eq!(stream.finish(), "");
    // An unfinished character shows as one mark at the end.
    let half = tokenizer.encode("🙂", AddSpecial::No, ParseSpecial::No).expect("encode");
    assert!(half.len() > 1);
    assert_eq!(tokenizer.decode(&half[..1], true).expect("decode"), "\u{FFFD}");
    assert!(tokenizer.decode(&[u32::MAX], true).is_err());
}
