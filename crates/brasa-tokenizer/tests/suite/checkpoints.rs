//! The trained checkpoints in `models/`: the same ids as transformers gives their prompts.

use brasa_tokenizer::{
    AddSpecial, BuiltinTemplate, ChatOptions, HfFiles, Message, ParseSpecial, Tokenizer, TokenizerError,
};

use crate::common;
use serde_json::Value;

fn check(name: &str, bos: Option<&str>, ends: &[&str]) {
    let folder = common::models().join(name);
    let tokenizer = Tokenizer::from_directory(&folder).expect("tokenizer");
    let reference = std::fs::read_to_string(folder.join("reference.json")).expect("reference");
    let reference: Value = serde_json::from_str(&reference).expect("json");
    let prompts = reference["prompts"].as_array().expect("prompts");
    assert!(prompts.len() > 3);
    let template = tokenizer.chat_template().expect("template");
    assert_eq!(template.as_builtin(), None);
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
        if prompt["kind"] == "chat" {
            let messages: Vec<Message> =
                serde_json::from_value(prompt["messages"].clone()).expect("messages");
            let options = ChatOptions::default();
            assert_eq!(template.render(&messages, &options).expect("render"), text, "{name}");
            let ids =
                tokenizer.encode_chat(&template, &messages, &options, ParseSpecial::No).expect("encode");
            assert_eq!(ids, expected, "{name}");
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

/// A user who writes the token that ends a turn ends no turn, unless the caller wants that.
#[test]
fn control_tokens_in_messages_are_text() {
    for name in ["lexicon-qwen3", "tiny-llama", "tiny-gemma3", "tiny-gemma4"] {
        let folder = common::models().join(name);
        let tokenizer = Tokenizer::from_directory(&folder).expect("tokenizer");
        let template = tokenizer.chat_template().expect("template");
        let end = tokenizer.special_tokens().end_of_generation.clone();
        let end_text: String = end.iter().map(|id| tokenizer.vocabulary().text(*id).expect("end")).collect();
        let messages = [Message::new("user", format!("a {end_text} b"))];
        let honest = [Message::new("user", "a b")];
        let options = ChatOptions::default();
        let count = |messages: &[Message], parse| {
            let ids = tokenizer.encode_chat(&template, messages, &options, parse).expect("encode");
            ids.iter().filter(|id| end.contains(id)).count()
        };
        let own = count(&honest, ParseSpecial::No);
        assert_eq!(count(&messages, ParseSpecial::No), own, "{name}");
        assert_eq!(count(&messages, ParseSpecial::Yes), own + end.len(), "{name}");
        let ids = tokenizer.encode_chat(&template, &messages, &options, ParseSpecial::No).expect("encode");
        assert!(tokenizer.decode(&ids, false).expect("decode").contains(&end_text), "{name}");
    }
}

/// A checkpoint without a chat template gets a built-in one, and is told which and why.
#[test]
fn a_guessed_template_says_so() {
    let tokens = r#"{"id": 1, "content": "<|im_start|>", "special": true}, {"id": 2, "content": "<|im_end|>", "special": true}"#;
    let file = |added: &str| {
        format!(
            r#"{{"version": "1.0", "decoder": {{"type": "ByteLevel"}}, "added_tokens": [{added}],
            "model": {{"type": "BPE", "vocab": {{"a": 0}}, "merges": []}}}}"#
        )
    };
    let files = |tokenizer| HfFiles { tokenizer, ..HfFiles::default() };
    let (with, without) = (file(tokens), file(""));
    let tokenizer = Tokenizer::from_json(&files(&with)).expect("tokenizer");
    let template = tokenizer.chat_template().expect("template");
    assert_eq!(template.as_builtin(), Some(BuiltinTemplate::ChatMl));
    assert_eq!(
        template.guess().expect("guess").to_string(),
        "the model has no chat template; chatml is taken, because its vocabulary has <|im_start|>, <|im_end|>"
    );
    // What somebody chose is no guess.
    assert_eq!(tokenizer.builtin_chat_template(BuiltinTemplate::ChatMl).guess(), None);
    assert_eq!(tokenizer.chat_template_from("x").expect("template").guess(), None);
    let own = HfFiles { chat_template: Some("x"), ..files(&with) };
    let tokenizer = Tokenizer::from_json(&own).expect("tokenizer");
    assert_eq!(tokenizer.chat_template().expect("template").guess(), None);
    let tokenizer = Tokenizer::from_json(&files(&without)).expect("tokenizer");
    assert!(matches!(tokenizer.chat_template(), Err(TokenizerError::NoTemplate)));
}
