//! `/v1/chat/completions`.

use serde_json::{Value, json};

use super::client::{MODEL, server};

fn question() -> Value {
    json!({
        "messages": [{"role": "user", "content": "What does \"ember\" mean?"}],
        "temperature": 0,
        "max_tokens": 12,
    })
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The joined texts of a stream's deltas.
fn streamed(events: &[Value], index: usize, key: &str) -> String {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    let choices = choices.filter(|choice| choice["index"] == index);
    choices.filter_map(|choice| choice["delta"][key].as_str()).collect()
}

#[test]
fn an_answer_has_every_field_of_the_form() {
    let answer = server().post("/v1/chat/completions", &question()).json(200);
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], MODEL);
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["system_fingerprint"].as_str().unwrap().starts_with("brasa-"));
    let choice = &answer["choices"][0];
    assert!(choice["message"]["content"].as_str().unwrap().contains("ember"), "{choice}");
    assert_eq!(choice["message"]["refusal"], Value::Null);
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    let tokens = |key: &str| answer["usage"][key].as_u64().unwrap();
    assert_eq!(tokens("total_tokens"), tokens("prompt_tokens") + 12);
    assert_eq!(answer["timings"]["predicted_n"], 12);
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let body = with(question(), &json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 60}));
    let whole = server().post("/v1/chat/completions", &body).json(200);
    let body = with(body, &json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = server().post("/v1/chat/completions", &body).events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
    let (last, parts) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    let choice = &whole["choices"][0];
    assert_eq!(streamed(parts, 0, "content"), choice["message"]["content"].as_str().unwrap());
    let finishes: Vec<&Value> = parts.iter().map(|event| &event["choices"][0]["finish_reason"]).collect();
    assert_eq!(finishes.last().unwrap(), &&choice["finish_reason"]);
    assert_eq!(finishes.iter().filter(|finish| !finish.is_null()).count(), 1);
    for event in &parts[1..parts.len() - 1] {
        assert_ne!(event["choices"][0]["delta"], json!({}), "an empty delta");
    }
    let logprobs = parts.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    let logprobs: Vec<Value> = logprobs.flatten().cloned().collect();
    assert_eq!(Value::Array(logprobs), choice["logprobs"]["content"]);
}

#[test]
fn probabilities_are_those_of_the_drawn_token() {
    let body = with(question(), &json!({"logprobs": true, "top_logprobs": 3}));
    let answer = server().post("/v1/chat/completions", &body).json(200);
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 12);
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // At temperature 0 the drawn token is the likeliest.
        assert_eq!(top[0]["token"], token["token"]);
        assert_eq!(top[0]["logprob"], token["logprob"]);
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
}

#[test]
fn choices_differ_by_seed_and_repeat_with_it() {
    let body =
        with(question(), &json!({"n": 3, "temperature": 4, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 7}));
    let texts = |answer: &Value| {
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["message"]["content"].clone()).collect::<Vec<_>>()
    };
    let first = server().post("/v1/chat/completions", &body).json(200);
    let again = server().post("/v1/chat/completions", &body).json(200);
    assert_eq!(texts(&first), texts(&again));
    assert_eq!(texts(&first).len(), 3);
    assert_ne!(texts(&first)[0], texts(&first)[1]);
    let indices: Vec<_> =
        first["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [0, 1, 2]);
    let events = server().post("/v1/chat/completions", &with(body, &json!({"stream": true}))).events();
    for (index, text) in texts(&first).iter().enumerate() {
        assert_eq!(&json!(streamed(&events, index, "content")), text);
    }
}

#[test]
fn a_stop_text_ends_the_answer_before_it() {
    let whole = server().post("/v1/chat/completions", &question()).json(200);
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let stop = text.split(' ').nth(3).unwrap();
    let body = with(question(), &json!({"stop": [stop]}));
    let answer = server().post("/v1/chat/completions", &body).json(200);
    assert_eq!(answer["choices"][0]["message"]["content"], text.split(stop).next().unwrap());
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[test]
fn roles_and_parts_become_one_prompt() {
    let render = |messages: Value| {
        server().post("/apply-template", &json!({"messages": messages})).json(200)["prompt"].clone()
    };
    let plain =
        render(json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a\nb"}]));
    assert!(plain.as_str().unwrap().contains("Be brief."));
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let other =
        render(json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]));
    assert_eq!(plain, other);
}

#[test]
fn the_template_is_applied_as_it_is_for_an_answer() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let turns = [
        json!({"role": "developer", "content": "Be brief."}),
        json!({"role": "user", "content": [{"type": "text", "text": "ember?"}]}),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "c", "content": "coal"}),
        json!({"role": "assistant", "content": "An ember"}),
    ];
    let function = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    for count in 1..=turns.len() {
        let body = json!({"messages": turns[..count], "tools": [function]});
        let prompt = server().post("/apply-template", &body).json(200)["prompt"].clone();
        let text = prompt.as_str().unwrap();
        let tokens = server().post("/tokenize", &json!({"content": text, "parse_special": true})).json(200);
        let expected = server().post("/v1/chat/completions/input_tokens", &body).json(200);
        assert_eq!(tokens["count"], expected["input_tokens"], "{text}");
        for part in ["\"name\":\"f\"", "Be brief.", "ember?", "\"a\":1", "coal"].iter().take(count + 1) {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.ends_with("An ember"), count == turns.len(), "{text}");
    }
}

#[test]
fn an_answer_that_has_begun_goes_on() {
    let mut body = question();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": "An ember is"}));
    let answer = server().post("/v1/chat/completions", &body).json(200);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!text.contains("An ember is") && !text.is_empty(), "{text}");
}

#[test]
fn a_second_request_finds_the_prompt_in_the_cache() {
    let question = "What does \"harbor\" mean? ".repeat(24);
    let body = json!({"messages": [{"role": "user", "content": question}], "max_tokens": 1});
    let ask = |body: &Value| {
        let answer = server().post("/v1/chat/completions", body).json(200);
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    ask(&body);
    assert!(ask(&body) > 0);
    assert_eq!(ask(&with(body.clone(), &json!({"cache_salt": "mine"}))), 0);
    assert_eq!(ask(&with(body, &json!({"cache_prompt": false}))), 0);
}

#[test]
fn tokens_are_counted_as_they_are_used() {
    let count = server().post("/v1/chat/completions/input_tokens", &question()).json(200);
    let answer = server().post("/v1/chat/completions", &question()).json(200);
    assert_eq!(count["input_tokens"], answer["usage"]["prompt_tokens"]);
}
