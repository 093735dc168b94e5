//! Files, texts and templates written by an enemy: errors that say what, in bounded time.

use brasa_tokenizer::{
    AddSpecial, ChatOptions, ChatTemplate, GgufVocabulary, HfFiles, Message, ParseSpecial, Tokenizer,
};

use crate::common;

fn refused(tokenizer: &str) -> String {
    let files = HfFiles { tokenizer, ..HfFiles::default() };
    match Tokenizer::from_json(&files) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{tokenizer} was accepted"),
    }
}

fn model(model: &str) -> String {
    format!(r#"{{"version": "1.0", "model": {model}}}"#)
}

#[test]
fn malformed_tokenizer_json() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (json, message) in [
        (String::new(), "tokenizer.json: EOF while parsing"),
        ("{".to_owned(), "tokenizer.json: EOF while parsing"),
        ("[]".to_owned(), "tokenizer.json: invalid"),
        (deep, "tokenizer.json: "),
        (r#"{"version": "1.0"}"#.to_owned(), "tokenizer.json: missing field `model`"),
        (r#"{"version": "9", "model": {}}"#.to_owned(), "tokenizer.json version `9` is not supported"),
        (model("{}"), "tokenizer.json model"),
        (model(r#"{"type": "Oracle", "vocab": {}}"#), "tokenizer.json model `Oracle` is not supported"),
        (model(r#"{"type": "BPE", "vocab": {"a": -1}, "merges": []}"#), "tokenizer.json model: invalid value"),
        (model(r#"{"type": "BPE", "vocab": {"a": 99999999999}, "merges": []}"#), "tokenizer.json model: invalid"),
        (model(r#"{"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}"#), "id 4294967295 of \"a\""),
        (model(r#"{"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}"#), "needs \"aa\" in the vocabulary"),
        (model(r#"{"type": "BPE", "vocab": {"a": 0}, "merges": ["aa"]}"#), "expected two tokens with one space"),
        (model(r#"{"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}"#), "merge of one token"),
        (
            model(r#"{"type": "BPE", "continuing_subword_prefix": "é", "vocab": {"a": 0, "e": 1}, "merges": ["a e"]}"#),
            "expected the second to begin with \"é\"",
        ),
        (model(r#"{"type": "Unigram", "vocab": [], "unk_id": 7}"#), "tokenizer.json model"),
        (
            r#"{"version": "1.0", "added_tokens": [{"id": 4000000000, "content": "x"}], "model": {"type": "BPE", "vocab": {}, "merges": []}}"#
                .to_owned(),
            "id 4000000000 of \"x\", expected less than",
        ),
        (
            r#"{"version": "1.0", "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}, "model": {"type": "BPE", "vocab": {}, "merges": []}}"#
                .to_owned(),
            "pattern \"(\": ",
        ),
        (
            r#"{"version": "1.0", "decoder": {"type": "CTC"}, "model": {"type": "BPE", "vocab": {}, "merges": []}}"#.to_owned(),
            "decoder `CTC` is not supported",
        ),
    ] {
        let found = refused(&json);
        assert!(found.contains(message), "{}\n  found {found}\n  expected {message}", &json[..json.len().min(200)]);
    }
}

/// Added tokens that name each other, repeat ids and texts, or are empty, do no harm.
#[test]
fn confused_added_tokens() {
    let json = r#"{"version": "1.0", "decoder": {"type": "ByteLevel"}, "added_tokens": [
        {"id": 1, "content": "<a>", "special": true}, {"id": 1, "content": "<b>", "special": true},
        {"id": 2, "content": "<a><b>", "special": false}, {"id": 3, "content": "<a>", "special": true},
        {"id": 4, "content": "", "special": true}, {"id": 9, "content": "x", "lstrip": true, "rstrip": true}],
        "model": {"type": "BPE", "vocab": {"x": 0, "y": 5}, "merges": []}}"#;
    let tokenizer =
        Tokenizer::from_json(&HfFiles { tokenizer: json, ..HfFiles::default() }).expect("tokenizer");
    for text in ["<a><b><a>", "x y x", "", "<b>"] {
        for parse in [ParseSpecial::Yes, ParseSpecial::No] {
            let ids = tokenizer.encode(text, AddSpecial::AsModel, parse).expect("encode");
            tokenizer.decode(&ids, false).expect("decode");
        }
    }
}

#[test]
fn malformed_gguf_vocabularies() {
    let tokens = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let with = |model: &str| GgufVocabulary {
        model: model.to_owned(),
        tokens: tokens(&["a", "b", "ab"]),
        ..GgufVocabulary::default()
    };
    let unigram = || GgufVocabulary { scores: vec![-1.0; 3], ..with("t5") };
    for (vocabulary, message) in [
        (with("t5"), "tokenizer.ggml.scores: no scores found"),
        (GgufVocabulary { unknown: Some(3), ..unigram() }, "tokenizer.ggml.unknown_token_id: no such token"),
        (
            GgufVocabulary { scores: vec![0.0, f32::NAN, 0.0], ..unigram() },
            "tokenizer.ggml.scores: NaN found for token 1, expected a number",
        ),
        (
            GgufVocabulary { tokens: vec!["a".repeat(257); 3], ..unigram() },
            "tokenizer.ggml.tokens: token 0 of 257 bytes, expected at most 256",
        ),
        (
            GgufVocabulary { precompiled_charsmap: vec![0xFF; 9], ..unigram() },
            "tokenizer.ggml.precompiled_charsmap: precompiled_charsmap has a trie of 4294967295 bytes",
        ),
        (with("rwkv"), "tokenizer.ggml.model `rwkv` is not supported"),
        (with("plamo2"), "tokenizer.ggml.model `plamo2` is not supported"),
        (with("hybriddna"), "tokenizer.ggml.model `hybriddna` is not supported"),
        (with("gpt2"), "tokenizer.ggml.merges: no merges found"),
        (with("llama"), "tokenizer.ggml.scores: no scores found"),
        (with("bert"), "tokenizer.ggml.unknown_token_id: no such token"),
        (GgufVocabulary { tokens: Vec::new(), ..with("gpt2") }, "tokenizer.ggml.tokens: no token found"),
        (
            GgufVocabulary { merges: tokens(&["ab"]), ..with("gpt2") },
            "tokenizer.ggml.merges: \"ab\" found, expected two tokens",
        ),
        (
            GgufVocabulary { scores: vec![1.0], ..with("llama") },
            "tokenizer.ggml.scores: 1 values found, expected one for each of 3 tokens",
        ),
        (
            GgufVocabulary { token_types: vec![1, 1], ..with("gpt2") },
            "tokenizer.ggml.token_type: 2 values found, expected one for each of 3 tokens",
        ),
    ] {
        let error = Tokenizer::from_gguf(&vocabulary, None).expect_err(message).to_string();
        assert!(error.starts_with(message), "{error}");
    }
    // Ids out of range, scores that are not numbers, and merges of unknown tokens are passed over.
    let odd = GgufVocabulary {
        scores: vec![f32::NAN, f32::INFINITY, -0.0],
        merges: tokens(&["a b", "b z", "a b"]),
        bos: Some(77),
        eos: Some(u32::MAX),
        ..with("llama")
    };
    for model in ["llama", "gpt2"] {
        let tokenizer =
            Tokenizer::from_gguf(&GgufVocabulary { model: model.to_owned(), ..odd.clone() }, None)
                .expect(model);
        assert_eq!(tokenizer.special_tokens().eos, None);
        assert_eq!(
            tokenizer.encode("ab", AddSpecial::AsModel, ParseSpecial::Yes).expect("encode").last(),
            Some(&2)
        );
    }
}

/// A megabyte of one character, or of two in turn, is encoded and comes back.
#[test]
fn long_runs() {
    const BYTES: usize = 1 << 20;
    for name in ["tiny-llama", "tiny-gemma3", "ggml-vocab-llama-spm", "unigram"] {
        let tokenizer = match name {
            "unigram" => unigram_of_long_tokens(),
            name => common::tokenizer(name),
        };
        for unit in [" ", "a", " \n"] {
            let text = unit.repeat(BYTES / unit.len());
            let ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::No).expect("encode");
            assert!(tokenizer.decode(&ids, false).expect("decode") == text, "{name}: {unit:?} repeated");
        }
    }
}

/// A unigram vocabulary in which many tokens begin at every place of a run.
fn unigram_of_long_tokens() -> Tokenizer {
    let runs = (1..=256).map(|length| "a".repeat(length));
    let tokens: Vec<String> = ["<unk>", "▁", "\n"].map(str::to_owned).into_iter().chain(runs).collect();
    let source = GgufVocabulary {
        model: "t5".to_owned(),
        scores: vec![-1.0; tokens.len()],
        unknown: Some(0),
        add_space_prefix: Some(false),
        tokens,
        ..GgufVocabulary::default()
    };
    Tokenizer::from_gguf(&source, None).expect("a vocabulary")
}

fn rendered(source: &str) -> String {
    let template = match ChatTemplate::new(source, [("bos_token", "<s>")]) {
        Ok(template) => template,
        Err(error) => return error.to_string(),
    };
    match template.render(&[Message::new("user", "hi")], &ChatOptions::default()) {
        Ok(text) => text,
        Err(error) => error.to_string(),
    }
}

#[test]
fn templates_that_never_end() {
    for (source, message) in [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "chat template: stopped because it exceeded its number of steps\nhint: ",
        ),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endfor %}",
            "chat template: stopped because it exceeded its ",
        ),
        (
            "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
            "chat template: stopped because it exceeded its depth of calls",
        ),
        ("{{ raise_exception('roles must alternate') }}", "chat template: roles must alternate"),
        ("a\n{{ messages[0].content.no_such() }}", "chat template: "),
        ("{% if %}", "chat template: syntax error: "),
        ("{% include 'x' %}", "chat template: template not found: "),
        ("{{ messages[5].role.x }}", "chat template: undefined value"),
        ("{{ messages | no_filter }}", "chat template: "),
        ("{{ 'a' * 1000000000 }}", "chat template: invalid operation: repeated string is too large"),
        ("{{ range(1000000000) | list }}", "chat template: invalid operation: "),
    ] {
        let found = rendered(source);
        assert!(found.starts_with(message), "{source}\n  found {found}\n  expected {message}");
    }
    assert!(rendered(&format!("{}1{}", "(".repeat(50_000), ")".repeat(50_000))).contains('1'));
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000));
    assert!(rendered(&deep).starts_with("chat template: "));
    assert!(rendered(&"x".repeat(2 << 20)).starts_with("chat template: 2097152 bytes found"));
}

/// The parts of Python that published templates use, and the tag that marks what to train on.
#[test]
fn small_template_features() {
    for (source, expected) in [
        ("{{ true }} {{ none }} {{ 1.0 }} {{ [1, 'a\"b', None] }}", "True None 1.0 [1, 'a\"b', None]"),
        ("{{ {'a': 'é', 'b': [1e20, 1e-7]} | tojson }}", r#"{"a": "é", "b": [1e+20, 1e-07]}"#),
        ("{{ {'b': 1, 'a': []} | tojson(indent=2, sort_keys=true) }}", "{\n  \"a\": [],\n  \"b\": 1\n}"),
        ("{{ 'é\\u0001' | tojson(ensure_ascii=true) }}", r#""\u00e9\u0001""#),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ '<&>' | tojson }}", "\"<&>\""),
        ("a{%- generation -%} b {%- endgeneration %}c", "abc"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{{ 'a-b-c'.split('-')[-1] }}{{ 'xay'.removeprefix('x') }}{{ 'a|b'.partition('|')[2] }}", "cayb"),
        ("{{ messages[0].items() | list | length }}{{ bos_token }}{{ no_such }}", "2<s>"),
        ("  {% if true %}\n    x\n  {% endif %}\n", "    x\n"),
    ] {
        assert_eq!(rendered(source), expected, "{source}");
    }
}
