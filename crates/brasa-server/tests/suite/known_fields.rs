//! Fields of other servers' requests: each is honoured or refused by name, and none is passed over.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::client::{Answer, server};
use super::fields::documented;

/// The fields of other servers' requests, by whose they are.
const FIELDS: &str = include_str!("../data/request_fields.json");

/// A form of request, and whose fields it may have.
struct Form {
    path: &'static str,
    body: &'static str,
    fields: &'static [&'static str],
}

const CHAT: &str = r#"{"messages": [{"role": "user", "content": "ember"}], "max_tokens": 1}"#;

const FORMS: &[Form] = &[
    Form {
        path: "/v1/chat/completions",
        body: CHAT,
        fields: &["openai_chat", "vllm", "vllm_chat", "llama_cpp"],
    },
    Form {
        path: "/v1/completions",
        body: r#"{"prompt": "ember", "max_tokens": 1}"#,
        fields: &["openai_completions", "vllm", "vllm_completions", "llama_cpp"],
    },
    Form {
        path: "/completion",
        body: r#"{"prompt": "ember", "n_predict": 1}"#,
        fields: &["llama_cpp", "vllm"],
    },
    Form {
        path: "/v1/responses",
        body: r#"{"input": "ember", "max_output_tokens": 1}"#,
        fields: &["responses", "vllm"],
    },
    Form { path: "/v1/messages", body: CHAT, fields: &["messages", "vllm"] },
    Form { path: "/v1/embeddings", body: r#"{"input": "ember"}"#, fields: &["embeddings"] },
];

fn ask(form: &Form, field: &str, value: Value) -> Answer {
    let mut body: Value = serde_json::from_str(form.body).unwrap();
    body[field] = value;
    server().post(form.path, &body)
}

/// Each field is told to be wrong for one of two values that no field can have, or changes nothing and is said to.
#[test]
fn no_field_of_another_server_is_passed_over() {
    let lists: BTreeMap<&str, Vec<String>> = serde_json::from_str(FIELDS).unwrap();
    let inert: BTreeSet<&str> = documented("Inert").into_iter().collect();
    let mut wrong = Vec::new();
    for form in FORMS {
        let names: BTreeSet<&str> =
            form.fields.iter().flat_map(|list| lists[list].iter().map(String::as_str)).collect();
        for name in names {
            let told = [json!(-7.5), json!({"x": [1]})].into_iter().any(|value| {
                let answer = ask(form, name, value);
                let error = (answer.status == 400).then(|| answer.json(400)["error"]["param"].clone());
                error.is_some_and(|param| param.as_str().is_some_and(|param| param.starts_with(name)))
            });
            if told == inert.contains(name) {
                wrong.push((form.path, name));
            }
        }
    }
    assert!(wrong.is_empty(), "passed over, or inert by the documentation alone: {wrong:?}");
}

#[test]
fn values_that_ask_for_nothing_pass() {
    let neutral = json!({
        "use_beam_search": false, "length_penalty": 1.0, "skip_special_tokens": true, "spaces_between_special_tokens": true,
        "include_reasoning": true, "add_generation_prompt": true, "continue_final_message": false, "echo": false,
        "add_special_tokens": false, "documents": null, "chat_template": null, "mm_processor_kwargs": {}, "best_of": 1,
        "stop_token_ids": [], "bad_words": [], "min_tokens": 0, "ignore_eos": false, "return_token_ids": false,
        "top_n_sigma": -1.0, "typical_p": 1.0, "adaptive_target": -1.0, "thinking_budget_tokens": -1, "reasoning_format": "auto",
        "parse_tool_calls": true, "min_keep": 0, "n_keep": 0, "t_max_predict_ms": -1, "post_sampling_probs": false,
        "prediction": {"type": "content", "content": "coal"}, "id_slot": -1, "separate_reasoning": true,
    });
    let mut body: Value = serde_json::from_str(CHAT).unwrap();
    body.as_object_mut().unwrap().extend(neutral.as_object().unwrap().clone());
    server().post("/v1/chat/completions", &body).json(200);
}

/// A completion of a fixed text by likeliest tokens, with further fields.
fn completion(more: &Value) -> Value {
    let mut body =
        json!({"prompt": "An ember is", "max_tokens": 12, "temperature": 0, "return_token_ids": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server().post("/v1/completions", &body).json(200)["choices"][0].clone()
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn token_ids_are_returned_whole_and_streamed() {
    let choice = completion(&json!({}));
    let (prompt, answer) = (ids(&choice["prompt_token_ids"]), ids(&choice["token_ids"]));
    let tokens =
        server().post("/tokenize", &json!({"content": "An ember is", "add_special": true})).json(200);
    assert_eq!(prompt, ids(&tokens["tokens"]));
    let text = server().post("/detokenize", &json!({"tokens": answer})).json(200);
    assert_eq!(text["content"], choice["text"]);
    let body = json!({"prompt": "An ember is", "max_tokens": 12, "temperature": 0, "return_token_ids": true, "stream": true});
    let events = server().post("/v1/completions", &body).events();
    let streamed: Vec<u64> = events.iter().flat_map(|event| ids(&event["choices"][0]["token_ids"])).collect();
    assert_eq!(streamed, answer);
    assert_eq!(ids(&events[0]["choices"][0]["prompt_token_ids"]), prompt);
    assert!(events[1..].iter().all(|event| event["choices"][0]["prompt_token_ids"].is_null()));
}

#[test]
fn an_answer_ends_with_one_of_its_stop_token_ids() {
    let whole = ids(&completion(&json!({}))["token_ids"]);
    let end = whole[4];
    let first = whole.iter().position(|id| *id == end).unwrap();
    let choice = completion(&json!({"stop_token_ids": [end]}));
    assert_eq!(ids(&choice["token_ids"])[..first], whole[..first]);
    assert_eq!(choice["finish_reason"], "stop");
    assert!(completion(&json!({}))["text"].as_str().unwrap().starts_with(choice["text"].as_str().unwrap()));
    // It is shown if that is wanted, and counts although the model's own end does not.
    let shown =
        completion(&json!({"stop_token_ids": [end], "include_stop_str_in_output": true, "ignore_eos": true}));
    let last = server().post("/detokenize", &json!({"tokens": [end]})).json(200)["content"].clone();
    assert_eq!(shown["text"], format!("{}{}", choice["text"].as_str().unwrap(), last.as_str().unwrap()));
    // Before `min_tokens` it is not drawn.
    let later = ids(&completion(&json!({"stop_token_ids": [end], "min_tokens": 8}))["token_ids"]);
    assert!(later.len() >= 8 && !later[..8].contains(&end), "{later:?}");
}

#[test]
fn an_answer_is_made_of_allowed_tokens_alone() {
    let whole = ids(&completion(&json!({}))["token_ids"]);
    let allowed = [whole[1], whole[3], 7];
    let made = ids(&completion(&json!({"allowed_token_ids": allowed, "ignore_eos": true}))["token_ids"]);
    assert_eq!(made.len(), 12);
    assert!(made.iter().all(|id| allowed.contains(id)), "{made:?} of {allowed:?}");
    // A grammar holds beside them.
    let digits = json!({"structured_outputs": {"regex": "[0-9]{3}"}, "bad_words": ["1", "2", "3", "4", "5", "6", "8", "9", "0"]});
    assert_eq!(completion(&digits)["text"], "777");
    for (field, value) in [
        ("allowed_token_ids", json!([])),
        ("allowed_token_ids", json!([4_000_000])),
        ("allowed_token_ids", json!(["a"])),
        ("stop_token_ids", json!([-1])),
        ("bad_words", json!([" "])),
        ("bad_words", json!([7])),
    ] {
        let body = json!({"prompt": "x", "max_tokens": 1, field: value});
        assert_eq!(server().post("/v1/completions", &body).error(400).1.as_deref(), Some(field), "{value}");
    }
}

#[test]
fn bad_words_do_not_occur() {
    let whole = completion(&json!({}))["text"].as_str().unwrap().to_owned();
    let words: Vec<&str> =
        whole.split(|letter: char| !letter.is_alphabetic()).filter(|word| word.len() > 3).collect();
    let other = completion(&json!({"bad_words": words}))["text"].as_str().unwrap().to_owned();
    assert!(!words.is_empty() && words.iter().all(|word| !other.contains(word)), "{words:?} in {other:?}");
}

#[test]
fn the_stop_text_is_shown_if_it_is_wanted() {
    let whole = completion(&json!({}))["text"].as_str().unwrap().to_owned();
    let stop = whole.split(' ').rfind(|word| word.len() > 2).unwrap();
    let (before, _) = whole.split_once(stop).unwrap();
    assert_eq!(completion(&json!({"stop": [stop]}))["text"], before);
    let with = completion(&json!({"stop": [stop], "include_stop_str_in_output": true}));
    assert_eq!((&with["text"], &with["finish_reason"]), (&json!(format!("{before}{stop}")), &json!("stop")));
    // In chats too, whole and streamed.
    let mut body = json!({"messages": [{"role": "user", "content": "ember"}], "max_tokens": 30, "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": false}});
    let chat = server().post("/v1/chat/completions", &body).json(200);
    let whole = chat["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let stop = whole.split(' ').nth(2).unwrap();
    let (before, _) = whole.split_once(stop).unwrap();
    body.as_object_mut()
        .unwrap()
        .extend([("stop".into(), json!([stop])), ("include_stop_str_in_output".into(), json!(true))]);
    let chat = server().post("/v1/chat/completions", &body).json(200);
    assert_eq!(chat["choices"][0]["message"]["content"], format!("{before}{stop}"));
    body["stream"] = true.into();
    let events = server().post("/v1/chat/completions", &body).events();
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, format!("{before}{stop}"));
}

#[test]
fn prompts_are_cut_and_written_as_they_are_wanted() {
    let prompt = |more: Value| {
        let mut body =
            json!({"max_tokens": 1, "prompt": "An ember is a small piece", "return_token_ids": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ids(&server().post("/v1/completions", &body).json(200)["choices"][0]["prompt_token_ids"])
    };
    let whole = prompt(json!({}));
    assert_eq!(prompt(json!({"truncate_prompt_tokens": 3})), whole[whole.len() - 3..]);
    assert_eq!(prompt(json!({"truncate_prompt_tokens": 3, "truncation_side": "right"})), whole[..3]);
    assert_eq!(prompt(json!({"truncate_prompt_tokens": 300})), whole);
    let long = json!({"truncate_prompt_tokens": -1, "prompt": "word ".repeat(2000)});
    assert_eq!(prompt(long).len(), 511);
    let plain = server().post("/tokenize", &json!({"content": "An ember is a small piece"})).json(200);
    assert_eq!(prompt(json!({"add_special_tokens": false})), ids(&plain["tokens"]));
}

#[test]
fn control_tokens_are_shown_if_they_are_wanted() {
    let mark = server().post("/tokenize", &json!({"content": "<|im_start|>"})).json(200)["tokens"].clone();
    assert_eq!(mark.as_array().unwrap().len(), 1);
    let made = json!({"allowed_token_ids": mark, "max_tokens": 2});
    assert_eq!(completion(&made)["text"], "");
    let mut shown = made;
    shown["skip_special_tokens"] = false.into();
    assert_eq!(completion(&shown)["text"], "<|im_start|><|im_start|>");
}

#[test]
fn a_request_says_how_its_conversation_goes_on() {
    let prompt = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "ember"}, {"role": "assistant", "content": "A small"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server().post("/apply-template", &body);
        if answer.status == 200 {
            Ok(answer.json(200)["prompt"].as_str().unwrap().to_owned())
        } else {
            Err(answer.error(400).1.unwrap())
        }
    };
    let continued = prompt(json!({})).unwrap();
    assert!(continued.ends_with("A small"), "{continued}");
    assert_eq!(
        prompt(json!({"continue_final_message": true, "add_generation_prompt": false})).unwrap(),
        continued
    );
    let opened = prompt(json!({"continue_final_message": false})).unwrap();
    assert!(
        opened.contains("A small<|im_end|>") && opened.contains("assistant\n<think>")
            || opened.ends_with("assistant\n"),
        "{opened}"
    );
    let bare = prompt(json!({"add_generation_prompt": false})).unwrap();
    assert!(bare.trim_end().ends_with("A small<|im_end|>"), "{bare}");
    let name = "continue_final_message";
    assert_eq!(prompt(json!({name: true, "add_generation_prompt": true})).unwrap_err(), name);
    assert_eq!(
        prompt(json!({name: true, "messages": [{"role": "user", "content": "x"}]})).unwrap_err(),
        name
    );
    assert_eq!(prompt(json!({"documents": [{"text": "x"}]})).unwrap_err(), "documents");
    assert_eq!(prompt(json!({"documents": ["x"]})).unwrap_err(), "documents[0]");
}

#[test]
fn thoughts_are_left_out_if_they_are_not_wanted() {
    let ask = |stream: bool| {
        let body = json!({"messages": [{"role": "user", "content": "ember"}], "max_tokens": 12, "temperature": 0,
            "enable_thinking": true, "include_reasoning": false, "stream": stream});
        server().post("/v1/chat/completions", &body)
    };
    let whole = ask(false).json(200);
    assert!(whole["choices"][0]["message"]["reasoning_content"].is_null(), "{whole}");
    assert!(!ask(true).body.contains("reasoning_content"));
    for more in [
        json!({"enable_thinking": false}),
        json!({"thinking": {"type": "disabled"}}),
        json!({"reasoning": {"effort": "none"}}),
        json!({"reasoning": {"enabled": true}}),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "ember"}], "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server().post("/v1/chat/completions", &body).json(200);
    }
}
