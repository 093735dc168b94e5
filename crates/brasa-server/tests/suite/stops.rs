//! Stop texts: which one ended an answer, and where none is found.

use serde_json::{Value, json};

use super::client::server;

fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// If several stop texts occur, the one that is complete first is named, in every form.
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
