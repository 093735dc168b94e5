//! The trained checkpoints in `models/`: the same ids as transformers gives their prompts.

use std::path::PathBuf;

use brasa_tokenizer::{AddSpecial, ParseSpecial, Tokenizer};
use serde_json::Value;

fn check(name: &str, bos: Option<&str>, ends: &[&str]) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
    let tokenizer = Tokenizer::from_directory(&folder).expect("tokenizer");
    let reference = std::fs::read_to_string(folder.join("reference.json")).expect("reference");
    let reference: Value = serde_json::from_str(&reference).expect("json");
    let prompts = reference["prompts"].as_array().expect("prompts");
    assert!(prompts.len() > 3);
    for prompt in prompts {
        let text = prompt["text"].as_str().expect("text");
        let expected: Vec<u32> = serde_json::from_value(prompt["input_ids"].clone()).expect("ids");
        let (add, parse) = match prompt["kind"].as_str() {
            Some("chat") => (AddSpecial::No, ParseSpecial::Yes),
            _ => (AddSpecial::AsModel, ParseSpecial::No),
        };
        assert_eq!(tokenizer.encode(text, add, parse).expect("encode"), expected, "{name}: {text:?}");
        // Adding specials to a rendered chat must not double BOS.
        if add == AddSpecial::No && bos.is_some() {
            assert_eq!(tokenizer.encode(text, AddSpecial::AsModel, parse).expect("encode"), expected);
        }
        let greedy: Vec<u32> = serde_json::from_value(prompt["greedy_ids"].clone()).expect("ids");
        let text = prompt["greedy_text"].as_str().expect("text");
        let decoded = tokenizer.decode(&greedy, false).expect("decode");
        assert_eq!(decoded, text, "{name}");
    }
    let special = tokenizer.special_tokens();
    assert_eq!(special.bos, bos.map(|bos| tokenizer.token_to_id(bos).expect("bos")));
    let mut ends: Vec<u32> = ends.iter().map(|end| tokenizer.token_to_id(end).expect("end")).collect();
    ends.sort_unstable();
    assert_eq!(special.end_of_generation, ends, "{name}");
    assert!(tokenizer.chat_template_source().is_some());
}

#[test]
fn lexicon_qwen3() {
    check("lexicon-qwen3", None, &["<|im_end|>", "<|endoftext|>"]);
}

#[test]
fn tiny_llama() {
    check("tiny-llama", Some("<|begin_of_text|>"), &["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"]);
}

#[test]
fn tiny_qwen2() {
    check("tiny-qwen2", None, &["<|im_end|>", "<|endoftext|>"]);
}

#[test]
fn tiny_qwen3moe() {
    check("tiny-qwen3moe", None, &["<|im_end|>", "<|endoftext|>"]);
}

#[test]
fn tiny_gemma3() {
    check("tiny-gemma3", Some("<bos>"), &["<eos>", "<end_of_turn>"]);
}

#[test]
fn tiny_gemma4() {
    check("tiny-gemma4", Some("<bos>"), &["<eos>", "<turn|>"]);
}

#[test]
fn tiny_gemma4moe() {
    check("tiny-gemma4moe", Some("<bos>"), &["<eos>", "<turn|>"]);
}
