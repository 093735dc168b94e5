//! `/v1/responses` and `/v1/messages`.

use serde_json::{Value, json};

use super::client::server;

const QUESTION: &str = "What does \"ember\" mean?";

/// The answer that the chat form gives.
fn chat_answer() -> String {
    let body =
        json!({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 8});
    let answer = server().post("/v1/chat/completions", &body).json(200);
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn a_response_says_what_a_chat_says() {
    let item =
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]});
    for input in [json!(QUESTION), json!([item])] {
        let body = json!({"input": input, "temperature": 0, "max_output_tokens": 8});
        let answer = server().post("/v1/responses", &body).json(200);
        assert_eq!(answer["object"], "response");
        assert_eq!(answer["status"], "incomplete");
        assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(answer["output"][0]["content"][0]["text"], chat_answer());
        assert_eq!(answer["usage"]["output_tokens"], 8);
    }
}

#[test]
fn the_events_of_a_response_build_it() {
    let body = json!({"input": QUESTION, "temperature": 0, "max_output_tokens": 8, "stream": true});
    let events = server().post("/v1/responses", &body).named_events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(
        names[names.len() - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
    for (number, (name, event)) in events.iter().enumerate() {
        assert_eq!((&event["sequence_number"], &event["type"]), (&json!(number), &json!(name)));
    }
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let text: String = deltas.map(|(_, event)| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text, chat_answer());
    assert_eq!(events.last().unwrap().1["response"]["output"][0]["content"][0]["text"], text);
}

#[test]
fn responses_keep_nothing() {
    let answer = server().post("/v1/responses", &json!({"input": "x", "previous_response_id": "resp_1"}));
    assert_eq!(answer.error(400).2, "previous_response_not_found");
    let probabilities = json!(["reasoning.encrypted_content", "message.output_text.logprobs"]);
    for (name, value) in
        [("background", json!(true)), ("conversation", json!("conv_1")), ("include", probabilities)]
    {
        let answer = server().post("/v1/responses", &json!({"input": "x", name: value}));
        assert_eq!(answer.error(400).1.as_deref(), Some(name));
    }
    let tools =
        json!([{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let body = json!({"input": "x", "max_output_tokens": 1, "tools": tools});
    server().post("/v1/responses", &body).json(200);
    assert_eq!(server().logged(|line| !line["skipped_tool"].is_null())["skipped_tool"], "web_search");
    server().post("/v1/responses", &json!({"input": "x", "tools": [{"type": "computer"}]})).error(400);
}

#[test]
fn tokens_of_a_response_are_counted_as_they_are_used() {
    let body = json!({"input": QUESTION, "instructions": "Be brief.", "max_output_tokens": 1});
    let count = server().post("/v1/responses/input_tokens", &body).json(200);
    let answer = server().post("/v1/responses", &body).json(200);
    let expected =
        json!({"object": "response.input_tokens", "input_tokens": answer["usage"]["input_tokens"]});
    assert_eq!(count, expected);
}

#[test]
fn a_message_has_one_form() {
    let format = json!({"type": "json_schema", "schema": {"type": "object"}});
    let body = message(&json!({"output_config": {"format": format}, "output_format": format}));
    let answer = server().post("/v1/messages", &body).json(400);
    assert!(answer["error"]["message"].as_str().unwrap().contains("both ask"), "{answer}");
}

fn message(more: &Value) -> Value {
    let mut body = json!({"model": "any", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 8});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_message_says_what_a_chat_says() {
    let answer = server().post("/v1/messages", &message(&json!({}))).json(200);
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(answer["content"][0]["text"], chat_answer());
    assert_eq!(answer["stop_reason"], "max_tokens");
    let events = server().post("/v1/messages", &message(&json!({"stream": true}))).named_events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let deltas = events.iter().filter(|(name, _)| name == "content_block_delta");
    let text: String = deltas.map(|(_, event)| event["delta"]["text"].as_str().unwrap()).collect();
    assert_eq!(text, chat_answer());
    let total = |usage: &Value| {
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    let count = server().post("/v1/messages/count_tokens", &message(&json!({}))).json(200);
    assert_eq!(count["input_tokens"], total(&answer["usage"]));
}

#[test]
fn a_stop_sequence_is_named() {
    let text = chat_answer();
    let stop = text.split(' ').nth(2).unwrap();
    let answer = server().post("/v1/messages", &message(&json!({"stop_sequences": [stop]}))).json(200);
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
}

#[test]
fn a_line_that_changes_with_every_request_is_left_out() {
    let count = |system: Value| {
        server().post("/v1/messages/count_tokens", &message(&json!({"system": system}))).json(200)
    };
    let plain = count(json!("Be brief."));
    assert_eq!(plain, count(json!("x-anthropic-billing-header: cc_version=1; cch=8f2a;\nBe brief.")));
    assert_eq!(
        plain,
        count(
            json!([{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "Be brief."}])
        )
    );
}

#[test]
fn errors_have_anthropics_form() {
    let answer = server().post("/v1/messages", &json!({"messages": []}));
    let body = answer.json(400);
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
    assert_eq!(body["request_id"].as_str(), answer.header("x-request-id"));
    let blocks = json!([{"role": "user", "content": [{"type": "image", "source": {}}]}]);
    let answer = server().post("/v1/messages", &message(&json!({"messages": blocks}))).json(400);
    assert_eq!(answer["error"]["param"], "messages[0].content[0].type");
}
