//! Mutated tokenizer files, vocabularies and templates: read or refused, never a panic, in bounded time.

use std::path::{Path, PathBuf};

use brasa_formats::gguf::{Array, Metadata};
use brasa_fuzz::Fuzzer;
use brasa_tokenizer::{
    AddSpecial, AnswerEvent, AnswerParser, ChatOptions, ChatTemplate, GgufVocabulary, HfFiles, Message,
    ParseSpecial, ThoughtMarks, Tokenizer, ToolChoice, ToolFormat,
};

use crate::common;

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
        .seed(seed.replacen("gpt2", "t5", 1))
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

/// The input is the table of characters, behind a small unigram vocabulary.
#[test]
fn fuzz_charsmap() {
    let seed = common::vocabulary_of_file(&common::models().join("gguf-encoders/xlm-roberta.gguf"));
    let vocabulary = GgufVocabulary { precompiled_charsmap: Vec::new(), ..seed.clone() };
    let exercise = |table: &[u8]| {
        let source = GgufVocabulary { precompiled_charsmap: table.into(), ..vocabulary.clone() };
        let tokenizer = match Tokenizer::from_gguf(&source, None) {
            Ok(tokenizer) => tokenizer,
            Err(error) => return error.to_string(),
        };
        let texts = ["\u{FF21}\u{FF22}\u{FB01} …①\u{3000}\t e\u{301}\0x", "né🙂\u{301}\u{0}\n\n  x"];
        let outcome = texts.map(|text| match tokenizer.encode(text, AddSpecial::No, ParseSpecial::No) {
            Ok(ids) => format!("{ids:?}"),
            Err(error) => error.to_string(),
        });
        outcome.concat()
    };
    assert_ne!(exercise(&seed.precompiled_charsmap), exercise(&[]), "the table changes texts");
    let words = [&[0xFF, 0xFF, 0xFF, 0x7F][..], &[0, 0, 0, 0x80], &[0, 1, 0, 0], &[0x21, 0x03, 0, 0x80]];
    fuzzer("charsmap").seed(seed.precompiled_charsmap.clone()).words(words).longest_input(4096).run(exercise);
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

/// The first byte, from `0` on, chooses the form of calls, the second the length of the fragments; the rest is the answer.
#[test]
fn fuzz_answers() {
    let tools = [serde_json::json!({"type": "function", "function": {"name": "f", "parameters": {
        "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}}}}})];
    let tokenizer = Tokenizer::from_directory(&folder("../../../models/tiny-llama")).expect("tokenizer");
    let marks = ThoughtMarks::of(Some("<think>"), &tokenizer);
    let formats = [
        "hermes",
        "llama-3",
        "mistral",
        "qwen3-coder",
        "glm",
        "minimax-m2",
        "gemma-4",
        "functiongemma",
        "lfm2",
        "deepseek",
        "kimi-k2",
        "phi-4-mini",
        "generic",
        "gpt-oss",
        "command-r",
    ];
    let seeds = [
        "0\x03<think>x</think>y <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, \"\\u00e9\"]}}</tool_call> z",
        "1\x05[f(a='x\\n', b=[1, {'c': (True, None)}]), f()]",
        "1\x05{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}; {\"name\": \"f\"}",
        "2\x07[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"a\": 1}[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]",
        "3\x01<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=b>2</parameter>\n</function>\n</tool_call>",
        "4\x02<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
        "6\x09<|tool_call>call:f{a:<|\"|>x<|\"|>,b:-1.5,c:{d:[true,null]}}<tool_call|>",
        "9\x02<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ];
    let mut fuzzer = fuzzer("answers").runs(4_000);
    for seed in seeds {
        fuzzer = fuzzer.seed(seed);
    }
    fuzzer
        .words([
            "<tool_call>",
            "</tool_call>",
            "[TOOL_CALLS]",
            "<function=f>",
            "</parameter>",
            "\"f\"",
            "{}",
            "</think>",
            "<|\"|>",
            "f(",
        ])
        .longest_input(1024)
        .run(|data| {
            let text = String::from_utf8_lossy(data);
            let format = data.first().map_or(0, |byte| usize::from(byte.wrapping_sub(b'0')));
            let format = formats[format % formats.len()];
            let length = usize::from(data.get(1).copied().unwrap_or(1)).max(1);
            let format = ToolFormat::by_name(format).expect("format");
            let parser = AnswerParser::new(format, marks, "", &tools, &ToolChoice::Auto);
            let text: Vec<char> = text.chars().skip(2).collect();
            let (whole, _) = outline(parser.clone(), &[text.iter().collect()]);
            let fragments: Vec<String> =
                text.chunks(length).map(|letters| letters.iter().collect()).collect();
            let (cut, kinds) = outline(parser, &fragments);
            assert_eq!(whole, cut);
            kinds
        });
}

/// The events of an answer with those of a kind put together, and their kinds alone. Complete calls have an object for arguments.
fn outline(mut parser: AnswerParser, fragments: &[String]) -> (Vec<(char, usize, String)>, String) {
    let mut events: Vec<AnswerEvent> = fragments.iter().flat_map(|fragment| parser.push(fragment)).collect();
    events.extend(parser.finish());
    let mut outline: Vec<(char, usize, String)> = Vec::new();
    for event in events {
        let (kind, index, text) = match event {
            AnswerEvent::Reasoning(text) => ('r', 0, text),
            AnswerEvent::Content(text) => ('c', 0, text),
            AnswerEvent::CallBegin { index, name } => ('b', index, name),
            AnswerEvent::CallArguments { index, text } => ('a', index, text),
            AnswerEvent::CallEnd { index } => ('e', index, String::new()),
            other => panic!("{other:?}"),
        };
        match outline.last_mut() {
            Some(last) if last.0 == kind && last.1 == index => last.2.push_str(&text),
            _ => outline.push((kind, index, text)),
        }
    }
    for pair in outline.windows(2) {
        if let [('a', _, arguments), ('e', ..)] = pair
            && arguments.len() <= 96
        {
            let value: serde_json::Value = serde_json::from_str(arguments).expect("json");
            assert!(value.is_object());
        }
    }
    let kinds = outline.iter().map(|event| event.0).collect();
    (outline, kinds)
}
