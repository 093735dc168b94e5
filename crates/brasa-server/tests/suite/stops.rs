//! Stop texts: which one ended an answer, and where none is found.

use std::fs;
use std::path::{Path, PathBuf};

use brasa_server::{ModelData, ModelSource, ServerOptions};
use serde_json::{Value, json};

use super::client::{Running, models, options, server};

/// tiny-gemma4, two of whose tokens are named as Gemma 4 names its marks of thoughts, which are control tokens.
fn thinker() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("server-thinker");
    fs::create_dir_all(&folder).unwrap();
    for file in fs::read_dir(models().join("tiny-gemma4")).unwrap() {
        let path = file.unwrap().path();
        let copy = folder.join(path.file_name().unwrap());
        match fs::read_to_string(&path) {
            Ok(text) if path.extension().is_some_and(|end| end == "json") => {
                let text = text.replace("<|think|>", "<|channel>").replace("<unused1>", "<channel|>");
                fs::write(copy, text).unwrap();
            }
            _ => drop(fs::copy(&path, copy).unwrap()),
        }
    }
    folder
}

fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The text of a message's answer.
fn text(answer: &Value) -> String {
    let blocks = answer["content"].as_array().unwrap().iter();
    blocks.filter_map(|block| block["text"].as_str()).collect()
}

/// A stop text is named behind thoughts whose marks are control tokens, too.
#[test]
fn a_stop_behind_thoughts_is_named() {
    let server = Running::start(ServerOptions {
        models: vec![ModelSource { id: "thinker".into(), data: ModelData::Path(thinker()) }],
        ..options()
    });
    let ask = json!({"messages": [{"role": "user", "content": "What is a river?"}], "max_tokens": 40, "temperature": 0});
    // The marks are the likeliest tokens until they have been said once.
    let thinks = json!({"logit_bias": {"7": 90, "8": 60}, "frequency_penalty": 100.0});
    for (body, thoughts) in [(ask.clone(), false), (with(&ask, &thinks), true)] {
        let whole = server.post("/v1/messages", &body).json(200);
        assert_eq!(whole["content"][0]["type"] == "thinking", thoughts, "{whole}");
        let said = text(&whole);
        let letters: Vec<char> = said.chars().collect();
        let stop: String = letters[letters.len() / 2..][..4].iter().collect();
        let stopped = server.post("/v1/messages", &with(&body, &json!({"stop_sequences": [stop]}))).json(200);
        assert_eq!(
            (&stopped["stop_reason"], &stopped["stop_sequence"]),
            (&json!("stop_sequence"), &json!(stop))
        );
        let before = said.find(&stop).unwrap();
        assert_eq!(text(&stopped).trim_end(), said[..before].trim_end(), "{stopped}");
    }
    // The marks are no text: a stop within one does not end the thoughts.
    let marked = with(&with(&ask, &thinks), &json!({"stop_sequences": ["channel"]}));
    let whole = server.post("/v1/messages", &marked).json(200);
    assert_eq!(whole["stop_sequence"], Value::Null, "{whole}");
    server.stop();
}

/// Of several stop texts the one that is complete first is named, in every form.
#[test]
fn the_stop_that_is_complete_first_is_named() {
    let body = json!({"prompt": "An ember is", "n_predict": 40, "temperature": 0});
    let whole = server().post("/completion", &body).json(200);
    let text = whole["content"].as_str().unwrap();
    let word = &text[8..16];
    for (stops, first) in [
        (vec![word, &word[..3]], &word[..3]),
        (vec![&word[..1], &word[..2]], &word[..1]),
        (vec![&word[2..4], &word[1..4], &word[..5]], &word[1..4]),
    ] {
        let answer = server().post("/completion", &with(&body, &json!({"stop": stops}))).json(200);
        let before = text.find(first).unwrap();
        assert_eq!(answer["content"], text[..before], "{stops:?}");
        assert_eq!(
            (&answer["stop_type"], &answer["stopping_word"]),
            (&json!("word"), &json!(first)),
            "{stops:?}"
        );
    }
    // The model's own end can be ignored; a stop text cannot.
    let ignoring = json!({"stop": [word], "ignore_eos": true});
    assert_eq!(server().post("/completion", &with(&body, &ignoring)).json(200)["stopping_word"], word);
}
