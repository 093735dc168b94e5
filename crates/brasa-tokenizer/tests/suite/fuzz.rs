//! Mutated tokenizer files, vocabularies and templates: read or refused, never a panic, in bounded time.

use std::path::{Path, PathBuf};

use brasa_formats::gguf::{Array, Metadata};
use brasa_fuzz::Fuzzer;
use brasa_tokenizer::{
    AddSpecial, ChatOptions, ChatTemplate, GgufVocabulary, HfFiles, Message, ParseSpecial, Tokenizer,
};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Reading a small tokenizer and encoding a few texts takes some tens of microseconds.
fn fuzzer(name: &str) -> Fuzzer {
    Fuzzer::new(name).runs(20_000)
}

const TEXTS: [&str; 4] = ["", "ab hello <s>▁ 12", "né🙂\u{301}\u{0}\n\n  x'll", "[CLS]hello##ab"];

/// Encodes and decodes a few texts; the outcome is their ids or the error.
fn exercise(tokenizer: &Tokenizer) -> String {
    let mut outcome = String::new();
    for text in TEXTS {
        for parse in [ParseSpecial::Yes, ParseSpecial::No] {
            match tokenizer.encode(text, AddSpecial::AsModel, parse) {
                Ok(ids) => outcome.push_str(&tokenizer.decode(&ids, false).unwrap_or_else(|e| e.to_string())),
                Err(error) => outcome.push_str(&error.to_string()),
            }
        }
    }
    let last = tokenizer.vocabulary().len() as u32;
    let _ = tokenizer.decode(&[0, 1, 2, last.saturating_sub(1), last], true);
    outcome
}

#[test]
fn fuzz_tokenizer_json() {
    fuzzer("tokenizer-json")
        .seed_directory(folder("hostile"), ".json")
        .seed_directory(folder("hostile/files"), ".json")
        .words([
            "\"type\":",
            "\"Sequence\"",
            "\"Split\"",
            "\"Regex\":",
            "\"ByteLevel\"",
            "\"Metaspace\"",
            "\"Prepend\"",
            "\"Strip\"",
            "\"NFKC\"",
            "\"content\":",
            "\"id\":",
            "null",
            "true",
            "\"Precompiled\"",
            "\"merges\":",
            "\"byte_fallback\":true",
            "\"TemplateProcessing\"",
            "\"Digits\"",
            "\"Punctuation\"",
            "\\\\s+(?!\\\\S)",
            "{18446744073709551615}",
            "{999999}",
            "\"Replace\"",
            "\"pattern\":",
            "\"String\":\"\"",
            "\"precompiled_charsmap\":",
            "\"/////wAAAAA=\"",
            "\"Unigram\"",
            "(?<=",
            "\\\\1",
        ])
        .longest_input(4096)
        .run(|data| {
            let text = String::from_utf8_lossy(data);
            match Tokenizer::from_json(&HfFiles { tokenizer: &text, ..HfFiles::default() }) {
                Ok(tokenizer) => exercise(&tokenizer),
                Err(error) => error.to_string(),
            }
        });
}

#[test]
fn fuzz_tokenizer_config() {
    let tokenizer = std::fs::read_to_string(folder("hostile/byte_level.json")).expect("seed");
    let seed = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": [{"name": "default", "template": "x"}],
        "eos_token_id": [1, 2], "added_tokens_decoder": {"7": {"content": "<x>", "special": true, "lstrip": true}}}"#;
    fuzzer("tokenizer-config").seed(seed).longest_input(4096).run(|data| {
        let text = String::from_utf8_lossy(data);
        let files = HfFiles {
            tokenizer: &tokenizer,
            tokenizer_config: Some(&text),
            generation_config: Some(&text),
            ..HfFiles::default()
        };
        match Tokenizer::from_json(&files) {
            Ok(tokenizer) => exercise(&tokenizer),
            Err(error) => error.to_string(),
        }
    });
}

#[test]
fn fuzz_gguf_vocabulary() {
    // Each line: a token, its score's sign and its type; a line with a space in it is a merge.
    let seed = "gpt2\nllama-bpe\na\t1\nb\t1\nab\t1\n<s>\t3\n<0x41>\t6\n▁\t1\n▁a\t4\na b\n";
    fuzzer("gguf-vocabulary")
        .seed(seed)
        .seed(seed.replacen("gpt2", "llama", 1))
        .seed(seed.replacen("gpt2", "gemma4", 1))
        .seed(seed.replacen("gpt2", "bert", 1).replace("<s>\t3", "[UNK]\t2"))
        .words(["deepseek-coder", "tiny_aya", "falcon", "\t2", "\t4", "##"])
        .longest_input(4096)
        .run(|data| {
            let text = String::from_utf8_lossy(data);
            let mut lines = text.lines();
            let mut metadata = Metadata::new();
            metadata.insert("tokenizer.ggml.model", lines.next().unwrap_or_default());
            metadata.insert("tokenizer.ggml.pre", lines.next().unwrap_or_default());
            let (tokens, merges): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.contains('\t'));
            let split: Vec<(&str, i32)> = tokens
                .iter()
                .filter_map(|line| line.split_once('\t'))
                .map(|(text, kind)| (text, kind.parse().unwrap_or(1)))
                .collect();
            let scores = split.iter().enumerate().map(|(index, token)| index as f32 * token.1 as f32);
            metadata.insert("tokenizer.ggml.scores", Array::of::<f32>(scores));
            metadata.insert("tokenizer.ggml.token_type", Array::of::<i32>(split.iter().map(|token| token.1)));
            metadata.insert("tokenizer.ggml.tokens", Array::of_strings(split.iter().map(|token| token.0)));
            metadata.insert("tokenizer.ggml.merges", Array::of_strings(merges));
            metadata.insert("tokenizer.ggml.unknown_token_id", 3_u32);
            match GgufVocabulary::from_metadata(&metadata)
                .and_then(|source| Tokenizer::from_gguf(&source, None))
            {
                Ok(tokenizer) => exercise(&tokenizer),
                Err(error) => error.to_string(),
            }
        });
}

#[test]
fn fuzz_chat_template() {
    let messages = [
        Message::new("system", "s"),
        Message::new("user", "a\nb"),
        Message::new("assistant", "<think>c</think>d"),
    ];
    // Each input gets a thread, which takes longer than most templates.
    fuzzer("chat-template")
        .runs(6_000)
        .seed_directory(folder("chat/templates"), "Qwen3-0.6B.jinja")
        .seed_directory(folder("chat/templates"), "gemma-2-2b-it.jinja")
        .seed_directory(folder("chat/templates"), "Llama-3.2-3B-Instruct.jinja")
        .words([
            "{%- for x in messages %}",
            "{% endfor %}",
            "{{ ",
            " }}",
            "| tojson",
            "namespace(",
            "loop.index0",
            "range(",
            "~",
            "not ",
            "[[",
            " * 99999999",
            ".replace('', ",
            "|format(",
            "%2000000000s",
            "{% set n.s = n.s + n.s %}",
            "{% set n = namespace(s='x') %}",
            "{% macro f(x) %}",
            "{% endmacro %}",
            "{% elif x %}",
            "|batch(",
            "|indent(",
            "[::-1]",
            " recursive",
            "loop(",
        ])
        .longest_input(6144)
        .run(|data| {
            let text = String::from_utf8_lossy(data);
            let rendered = ChatTemplate::new(&text, [("bos_token", "<s>")])
                .and_then(|template| template.render(&messages, &ChatOptions::default()));
            rendered.unwrap_or_else(|error| error.to_string())
        });
}
