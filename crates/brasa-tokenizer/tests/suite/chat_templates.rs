//! Published chat templates: the text that transformers makes of golden conversations (tools/golden/chat_templates.py).

use std::collections::BTreeMap;
use std::path::PathBuf;

use brasa_tokenizer::{
    ChatOptions, ChatTemplate, CivilTime, HfFiles, Message, ThoughtMarks, Tokenizer, TokenizerError,
};
use serde_json::Value;

fn folder() -> PathBuf {
    std::env::var_os("BRASA_CHAT_GOLDEN")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/chat"), PathBuf::from)
}

#[test]
fn published_templates_render_as_in_transformers() {
    let packed = std::fs::read(folder().join("golden.json.xz")).expect("golden");
    let mut unpacked = Vec::new();
    lzma_rs::xz_decompress(&mut packed.as_slice(), &mut unpacked).expect("xz");
    let golden: Value = serde_json::from_slice(&unpacked).expect("json");
    let tokens: Vec<(&str, &str)> = golden["tokens"]
        .as_object()
        .expect("tokens")
        .iter()
        .map(|(role, text)| (role.as_str(), text.as_str().expect("text")))
        .collect();
    let conversations: BTreeMap<String, Vec<Message>> =
        serde_json::from_value(golden["conversations"].clone()).expect("conversations");
    let mut wrong = Vec::new();
    let mut templates: BTreeMap<&str, Result<ChatTemplate, TokenizerError>> = BTreeMap::new();
    let cases = golden["cases"].as_array().expect("cases");
    for case in cases {
        let name = case[0].as_str().expect("name");
        let (conversation, setting) = (case[1].as_str().expect("name"), case[2].as_str().expect("name"));
        let template = templates.entry(name).or_insert_with(|| {
            let source =
                std::fs::read_to_string(folder().join(format!("templates/{name}.jinja"))).expect("template");
            ChatTemplate::new(&source, tokens.iter().copied())
        });
        let setting_values = &golden["settings"][setting];
        let options = ChatOptions {
            add_generation_prompt: setting_values["add_generation_prompt"].as_bool().unwrap_or(true),
            tools: setting_values["tools"].as_array().map(Vec::as_slice),
            thinking: setting_values["enable_thinking"].as_bool(),
            // 2024-07-26 12:34:56
            time: Some(CivilTime::from_unix(1_721_997_296)),
            ..ChatOptions::default()
        };
        let rendered = match template {
            Ok(template) => {
                template.render(&conversations[conversation], &options).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if rendered.as_deref().ok() != case[3].as_str() {
            let difference = difference(case[3].as_str(), &rendered);
            wrong.push(format!("{name} / {conversation} / {setting}: {difference}"));
        }
    }
    for text in &wrong {
        println!("{text}");
    }
    assert!(wrong.is_empty(), "{} of {} cases differ", wrong.len(), cases.len());
    assert!(cases.len() > 1_000);
}

#[test]
fn marks_of_thoughts_are_found_in_published_templates_and_vocabularies() {
    let tokenizer = |tokens: &[&str]| {
        let vocabulary: serde_json::Map<String, Value> =
            tokens.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), id.into())).collect();
        let special: Vec<Value> = tokens
            .iter()
            .zip(0..)
            .map(|(token, id)| serde_json::json!({"id": id, "content": token, "special": true}))
            .collect();
        let model = serde_json::json!({"type": "BPE", "vocab": vocabulary, "merges": []});
        let file = serde_json::json!({"model": model, "added_tokens": special}).to_string();
        Tokenizer::from_json(&HfFiles { tokenizer: &file, ..HfFiles::default() }).expect("tokenizer")
    };
    let (plain, thinking) = (tokenizer(&["a"]), tokenizer(&["<think>", "</think>"]));
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder().join("templates")).expect("folder") {
        let path = entry.expect("entry").path();
        let source = std::fs::read_to_string(&path).expect("template");
        // What the template says comes before what the vocabulary says.
        let of_both = ThoughtMarks::of(Some(&source), &thinking).expect("marks");
        let marks = ThoughtMarks::of(Some(&source), &plain);
        assert_eq!(of_both.start, marks.map_or("<think>", |marks| marks.start), "{}", path.display());
        let name = path.file_stem().and_then(|name| name.to_str()).expect("name").to_owned();
        found.entry(marks.map_or("none", |marks| marks.start)).or_default().push(name);
    }
    let counts: Vec<(&str, usize)> = found.iter().map(|(&marks, names)| (marks, names.len())).collect();
    assert_eq!(
        counts,
        [
            ("<think>", 12),
            ("<|START_THINKING|>", 1),
            ("<|channel>thought", 2),
            ("<|channel|>analysis<|message|>", 1),
            ("[THINK]", 1),
            ("none", 12),
        ],
        "{found:#?}"
    );
    assert_eq!(ThoughtMarks::of(None, &plain), None);
    let gemma = tokenizer(&["<think>", "</think>", "<|channel>", "<channel|>"]);
    let marks = ThoughtMarks::of(None, &gemma).expect("marks");
    assert_eq!((marks.end, marks.token_ids(&gemma)), ("<channel|>", vec![2, 3]));
    // Control tokens are no text, but for those of the marks.
    let mut stream = gemma.decode_stream(true).showing(marks.token_ids(&gemma).into());
    assert_eq!(stream.push(1).expect("id") + &stream.push(3).expect("id"), "<channel|>");
}

/// Both texts from shortly before the first difference on.
fn difference(expected: Option<&str>, found: &Result<String, String>) -> String {
    match (expected, found) {
        (None, Ok(_)) => "expected an error".to_owned(),
        (_, Err(error)) => format!("unexpected error: {error}"),
        (Some(expected), Ok(found)) => {
            let same = expected.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
            let from = |text: &str| text.chars().skip(same.saturating_sub(20)).take(60).collect::<String>();
            format!("expected …{:?}…, found …{:?}…", from(expected), from(found))
        }
    }
}
