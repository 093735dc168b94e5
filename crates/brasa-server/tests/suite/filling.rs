//! Filling in the middle, by a model whose vocabulary has tokens for it.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use brasa::LoadOptions;
use brasa_server::{ModelData, ModelSource, ServerOptions};
use serde_json::{Value, json};

use super::client::{Running, models, options, server};

/// The tokens of Qwen's coders.
const MARKS: [&str; 4] = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"];

/// A model whose last four tokens are those marks.
fn write_model(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let source = models().join("tiny-qwen2");
    for name in ["config.json", "model.safetensors", "tokenizer_config.json"] {
        fs::copy(source.join(name), folder.join(name)).unwrap();
    }
    let text = fs::read_to_string(source.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    // The last tokens of the vocabulary are what the last merges make.
    let merges = tokenizer["model"]["merges"].as_array_mut().unwrap();
    merges.truncate(merges.len() - MARKS.len());
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let first = vocabulary.len() - MARKS.len();
    vocabulary.retain(|_, id| id.as_u64().unwrap() < first as u64);
    for (id, mark) in (first..).zip(MARKS) {
        tokenizer["model"]["vocab"][mark] = id.into();
        let added = json!({"id": id, "content": mark, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false});
        tokenizer["added_tokens"].as_array_mut().unwrap().insert(id - first, added);
    }
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

fn coder() -> &'static Running {
    static SERVER: LazyLock<Running> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("coder");
        write_model(&folder);
        let load = LoadOptions { context: Some(256), deterministic: true, ..options().load };
        let models = vec![ModelSource { id: "coder".into(), data: ModelData::Path(folder) }];
        Running::start(ServerOptions { models, load, ..options() })
    });
    &SERVER
}

fn ids(text: &str) -> Vec<Value> {
    let answer = coder().post("/tokenize", &json!({"content": text})).json(200);
    answer["tokens"].as_array().unwrap().clone()
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Greedy settings.
fn settings() -> Value {
    json!({"n_predict": 8, "max_tokens": 8, "temperature": 0, "ignore_eos": true, "return_tokens": true})
}

/// The continuation of token ids.
fn continued(prompt: &[Value]) -> Value {
    coder().post("/completion", &with(json!({"prompt": prompt}), &settings())).json(200)
}

#[test]
fn a_gap_is_filled_between_the_marks_of_the_family() {
    let [prefix, suffix, middle, file] = MARKS.map(ids);
    assert!([&prefix, &suffix, &middle, &file].iter().all(|mark| mark.len() == 1));
    let (before, after) = ("fn two() -> u32 {", "}\n");
    let gap = json!({"input_prefix": before, "input_suffix": after});
    let parts = [&prefix[..], &ids(before), &suffix, &ids(after), &middle];
    let expected = continued(&parts.concat());
    let ask = |more: &Value| coder().post("/infill", &with(with(gap.clone(), &settings()), more));
    let filled = ask(&json!({})).json(200);
    assert_eq!(filled["tokens"].as_array().unwrap().len(), 8);
    for name in ["content", "tokens", "tokens_evaluated"] {
        assert_eq!(filled[name], expected[name], "{name}");
    }
    // Streamed.
    let streamed = ask(&json!({"stream": true}));
    let parts = streamed.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let parts = parts.map(|part| serde_json::from_str::<Value>(part).unwrap());
    let text: String = parts.map(|part| part["content"].as_str().unwrap().to_owned()).collect();
    assert_eq!(text, expected["content"].as_str().unwrap());
    // The gap's text has begun, and there are other files.
    let more = json!({"prompt": " 1", "input_extra": [{"filename": "one.rs", "text": "fn one() {}"}]});
    let filled = ask(&more).json(200);
    let parts = [
        &file[..],
        &ids("one.rs\nfn one() {}\n"),
        &prefix,
        &ids(before),
        &suffix,
        &ids(after),
        &middle,
        &ids(" 1"),
    ];
    let expected = continued(&parts.concat());
    assert_eq!(filled["tokens"], expected["tokens"]);
    assert_eq!(filled["tokens_evaluated"], expected["tokens_evaluated"]);
}

#[test]
fn a_completion_has_a_suffix() {
    let gap = json!({"input_prefix": "fn two() -> u32 {", "input_suffix": "}\n"});
    let filled = coder().post("/infill", &with(gap, &settings())).json(200);
    let body = json!({"prompt": "fn two() -> u32 {", "suffix": "}\n"});
    let body = with(body, &settings());
    let answer = coder().post("/v1/completions", &body).json(200);
    assert_eq!(answer["choices"][0]["text"], filled["content"]);
    assert_eq!(answer["usage"]["prompt_tokens"], filled["tokens_evaluated"]);
    let streamed = coder().post("/v1/completions", &with(body.clone(), &json!({"stream": true})));
    let text: String = streamed
        .events()
        .iter()
        .map(|part| part["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, answer["choices"][0]["text"].as_str().unwrap());
    // Only one text has an end, and marks within it are text.
    let refused = coder().post("/v1/completions", &with(body.clone(), &json!({"prompt": ["a", "b"]})));
    assert_eq!(refused.error(400).1.as_deref(), Some("prompt"));
    let refused = coder().post("/v1/completions", &with(body.clone(), &json!({"echo": true})));
    assert_eq!(refused.error(400).1.as_deref(), Some("echo"));
    let marked = coder().post("/v1/completions", &with(body, &json!({"suffix": MARKS[2]}))).json(200);
    assert!(marked["usage"]["prompt_tokens"].as_u64() > answer["usage"]["prompt_tokens"].as_u64());
}

#[test]
fn wrong_gaps_are_refused_by_name() {
    for (body, param) in [
        (json!({}), "input_prefix"),
        (json!({"input_prefix": "a"}), "input_suffix"),
        (json!({"input_prefix": 7, "input_suffix": "b"}), "input_prefix"),
        (json!({"input_prefix": "a", "input_suffix": "b", "prompt": [1]}), "prompt"),
        (
            json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f"}]}),
            "input_extra[0].text",
        ),
    ] {
        assert_eq!(coder().post("/infill", &body).error(400).1.as_deref(), Some(param), "{body}");
    }
}

#[test]
fn filling_is_refused_without_tokens_for_it() {
    let answer = server().post("/infill", &json!({"input_prefix": "a", "input_suffix": "b"}));
    assert_eq!(answer.error(501).2, "not_supported");
    let body = json!({"prompt": "a", "suffix": "b", "max_tokens": 1});
    assert_eq!(server().post("/v1/completions", &body).error(501).2, "not_supported");
}
