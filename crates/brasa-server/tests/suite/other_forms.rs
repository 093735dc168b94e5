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
    server().post("/v1/responses", &json!({"input": "x", "tools": [{"type": "computer"}]})).error(400);
}

#[test]
fn a_request_as_codex_makes_it_is_answered() {
    let text = |role: &str, text: &str| {
        let kind = if role == "assistant" { "output_text" } else { "input_text" };
        json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
    };
    let parameters =
        json!({"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]});
    let skipped = ["web_search", "namespace", "image_generation"];
    let mut tools =
        vec![json!({"type": "function", "name": "exec", "strict": false, "parameters": parameters})];
    tools.extend(skipped.map(|kind| json!({"type": kind, "name": "other"})));
    tools.push(json!({"type": "custom", "name": "apply_patch", "format": {"type": "text"}}));
    let body = json!({
        "model": "gpt-5", "instructions": "You are an agent.", "max_output_tokens": 2,
        "input": [
            text("developer", "Ask before you write."), text("user", "List the files."),
            {"type": "reasoning", "summary": [], "content": null, "encrypted_content": null},
            {"type": "function_call", "name": "exec", "call_id": "c1", "arguments": "{\"cmd\": \"ls\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a.rs"}]},
            {"type": "custom_tool_call", "name": "apply_patch", "call_id": "c2", "status": "completed", "input": "*** Begin Patch\n*** End Patch"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done!"},
            text("assistant", "There is one."), text("developer", "It is late."), text("user", "Thank you."),
        ],
        "tools": tools, "tool_choice": "auto", "parallel_tool_calls": true, "reasoning": {"effort": "low", "summary": "auto"},
        "store": false, "stream": true, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "text": {"verbosity": "low"}, "service_tier": "auto", "client_metadata": {"x": "y"},
    });
    let answer = server().post("/v1/responses", &body);
    let events = answer.named_events();
    assert_eq!(events.last().unwrap().0, "response.incomplete", "{}", answer.body);
    for kind in skipped {
        server().logged(|line| line["skipped_tool"] == kind);
    }
}

#[test]
fn a_request_as_claude_code_makes_it_is_answered() {
    let cached = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let tool = json!({"name": "Bash", "description": "Runs", "input_schema": {"type": "object"}, "input_examples": []});
    let body = json!({
        "model": "claude", "max_tokens": 2, "stream": true, "metadata": {"user_id": "u"},
        "system": [cached("x-anthropic-billing-header: cc_version=2; cch=1;"), cached("You are an agent.")],
        "messages": [
            {"role": "user", "content": [cached("List the files.")]},
            {"role": "system", "content": "Files are in /src."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I list.", "signature": ""},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [cached("a.rs")]}, cached("Go on.")]},
            {"role": "system", "content": [cached("It is late.")]},
        ],
        "tools": [tool], "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    });
    let answer = server().send("POST", "/v1/messages?beta=true", &[], body.to_string().as_bytes());
    let events = answer.named_events();
    assert_eq!(events.last().unwrap().0, "message_stop", "{}", answer.body);
    // Reminders reach the model where they stand.
    let count =
        |body: &Value| server().post("/v1/messages/count_tokens", body).json(200)["input_tokens"].as_u64();
    let mut without = body.clone();
    without["messages"].as_array_mut().unwrap().remove(1);
    assert!(count(&without) < count(&body));
    let wrong = message(&json!({"messages": [{"role": "tool", "content": "x"}]}));
    assert_eq!(server().post("/v1/messages", &wrong).json(400)["error"]["param"], "messages[0].role");
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
