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

/// Greedy settings of every form.
fn settings() -> Value {
    json!({"max_tokens": 8, "temperature": 0, "ignore_eos": true})
}

/// Greedy settings of llama.cpp's forms.
fn native() -> Value {
    with(settings(), &json!({"return_tokens": true}))
}

/// The continuation of token ids.
fn continued(prompt: &[Value]) -> Value {
    coder().post("/completion", &with(json!({"prompt": prompt}), &native())).json(200)
}

#[test]
fn a_gap_is_filled_between_the_marks_of_the_family() {
    let [prefix, suffix, middle, file] = MARKS.map(ids);
    assert!([&prefix, &suffix, &middle, &file].iter().all(|mark| mark.len() == 1));
    let (before, after) = ("fn two() -> u32 {", "}\n");
    let gap = json!({"input_prefix": before, "input_suffix": after});
    let parts = [&prefix[..], &ids(before), &suffix, &ids(after), &middle];
    let expected = continued(&parts.concat());
    let ask = |more: &Value| coder().post("/infill", &with(with(gap.clone(), &native()), more));
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
fn a_request_as_editors_make_it_is_answered() {
    // llama.vim's, while somebody types.
    let fields = [
        "content",
        "timings/prompt_n",
        "timings/predicted_ms",
        "truncated",
        "tokens_cached",
        "nothing/there",
    ];
    let body = json!({"id_slot": 0, "input_prefix": "fn two() -> u32 {\n", "input_suffix": "\n}\n",
        "input_extra": [{"text": "fn one() {}", "time": [1, 2], "filename": "one.rs"}], "prompt": "    ", "n_predict": 16,
        "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.90, "samplers": ["top_k", "top_p", "infill"], "stream": false,
        "cache_prompt": true, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "response_fields": fields});
    let answer = coder().post("/infill", &body).json(200);
    let names: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(names, fields[..5].iter().collect::<Vec<_>>());
    assert!(answer["timings/prompt_n"].as_u64().unwrap() > 0, "{answer}");
    // And to fill the cache ahead.
    let ahead = json!({"n_predict": 0, "samplers": [], "response_fields": [""]});
    assert_eq!(coder().post("/infill", &with(body.clone(), &ahead)).json(200), json!({}));
    let again = coder().post("/infill", &body).json(200);
    assert!(again["tokens_cached"].as_u64().unwrap() > 10, "{again}");
    assert_eq!(again["content"], answer["content"]);
    // The server knows all these fields, those inside objects too.
    let log = coder().log.lock().unwrap().concat();
    let mut names = body.as_object().unwrap().keys().map(String::as_str).chain(["input_extra[].time"]);
    assert!(names.all(|name| !log.contains(&json!({"unknown_field": name}).to_string())), "{log}");
}

/// An answer that is forced to be `text`, whole, and in parts.
fn forced(text: &str, more: &Value) -> Value {
    let body =
        json!({"prompt": "a", "n_predict": 60, "temperature": 0, "grammar": format!("root ::= {text:?}")});
    let body = with(body, more);
    let whole = coder().post("/completion", &body).json(200);
    let streamed = coder().post("/completion", &with(body, &json!({"stream": true})));
    let parts = streamed.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let parts: Vec<Value> = parts.map(|part| serde_json::from_str(part).unwrap()).collect();
    let text: String = parts.iter().map(|part| part["content"].as_str().unwrap()).collect();
    assert_eq!((&whole["content"], &whole["stop_type"]), (&json!(text), &parts.last().unwrap()["stop_type"]));
    whole
}

#[test]
fn a_text_ends_where_a_line_leaves_its_block() {
    for (text, indent, expected) in [
        ("a {\n    b\n  c\n", 4, "a {\n    b\n  "),
        ("a {\n    b\n  c\n", 2, "a {\n    b\n  c\n"),
        ("a {\n    b\n  c\n", 0, "a {\n    b\n  c\n"),
        ("a\n\n  b", 2, "a\n"),
        ("\tb\n\tc\nd", 1, "\tb\n\tc\n"),
        ("no second line", 8, "no second line"),
    ] {
        let answer = forced(text, &json!({"n_indent": indent}));
        assert_eq!(answer["content"], expected, "{text:?} {indent}");
        assert_eq!(answer["stop_type"], if expected == text { "eos" } else { "limit" }, "{text:?} {indent}");
    }
    let refused = coder().post("/completion", &json!({"prompt": "a", "n_indent": -1}));
    assert_eq!(refused.error(400).1.as_deref(), Some("n_indent"));
}

#[test]
fn a_text_of_several_lines_has_a_limit_of_time() {
    let body = |root: &str| {
        let grammar = format!("root ::= {root}");
        json!({"prompt": "a", "n_predict": 100, "temperature": 0, "ignore_eos": true, "t_max_predict_ms": 1, "grammar": grammar})
    };
    let answer = coder().post("/completion", &body("\"a\\n\" [0-9]*")).json(200);
    assert!(answer["tokens_predicted"].as_u64().unwrap() < 100, "{answer}");
    assert_eq!(answer["stop_type"], "limit");
    // The first line has none.
    let answer = coder().post("/completion", &body("[0-9]*")).json(200);
    assert_eq!(answer["tokens_predicted"], 100, "{answer}");
}

#[test]
fn filters_that_a_list_of_samplers_leaves_out_do_nothing() {
    let ask = |samplers: Value| {
        coder().post("/completion", &json!({"prompt": "a", "n_predict": 1, "samplers": samplers}))
    };
    for (samplers, expected, temperature) in [
        (
            json!(["top_k", "top_p", "min_p", "temperature"]),
            json!(["top_k", "top_p", "min_p", "temperature"]),
            0.8,
        ),
        (json!(["top_k", "top_p"]), json!(["top_k", "top_p"]), 0.8),
        (json!(["min_p", "temp", "xtc", "top-k"]), json!(["min_p", "temperature", "xtc", "top_k"]), 0.8),
        (json!([]), json!([]), 0.8),
        (json!(["top_k", "infill"]), json!(["top_k", "temperature"]), 0.0),
    ] {
        let settings = ask(samplers.clone()).json(200)["generation_settings"].take();
        assert_eq!(settings["samplers"], expected, "{samplers}");
        let found = settings["temperature"].as_f64().unwrap();
        assert!((found - temperature).abs() < 1e-6, "{samplers}: {found}, expected {temperature}");
    }
    // Without a temperature tokens are drawn, and without filters from all.
    let text = |samplers: Value| {
        let body = json!({"prompt": "a", "n_predict": 12, "seed": 4, "temperature": 0, "samplers": samplers});
        coder().post("/completion", &body).json(200)["content"].clone()
    };
    assert_eq!(text(json!(["temperature"])), text(json!(["top_k", "temperature", "min_p"])));
    assert_ne!(text(json!(["temperature"])), text(json!([])));
    for wrong in [json!(["min_p", "temperature", "magic"]), json!(["top_k", "top_k"])] {
        assert_eq!(ask(wrong).error(400).1.as_deref(), Some("samplers"));
    }
}

#[test]
fn filling_is_refused_without_tokens_for_it() {
    let answer = server().post("/infill", &json!({"input_prefix": "a", "input_suffix": "b"}));
    assert_eq!(answer.error(501).2, "not_supported");
    let body = json!({"prompt": "a", "suffix": "b", "max_tokens": 1});
    assert_eq!(server().post("/v1/completions", &body).error(501).2, "not_supported");
}
