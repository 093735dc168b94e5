//! Requests that are broken at random. Each gets an answer or an error in JSON, soon, and none makes the server fail.

use std::sync::LazyLock;
use std::time::Duration;

use brasa_fuzz::{Fuzzer, Rng, sweeps};
use brasa_server::ServerOptions;
use serde_json::{Map, Value, json};

use super::client::{Answer, Running, options};

/// A server whose requests end soon whatever they ask for.
fn hasty() -> &'static Running {
    static SERVER: LazyLock<Running> = LazyLock::new(|| {
        Running::start(ServerOptions {
            request_timeout: Duration::from_millis(40),
            default_max_tokens: Some(2),
            slots: true,
            ..options()
        })
    });
    &SERVER
}

/// Every endpoint that reads a body, with a body that uses many fields.
fn requests() -> Vec<(&'static str, Value)> {
    let tool = json!({"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]});
    let function =
        json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": tool}});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "ember?"}]},
        {"role": "assistant", "content": null, "tool_calls":
            [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"word\": \"a\"}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "coal"},
    ]);
    let sampling = json!({"max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3,
        "stop": ["x"], "logit_bias": {"5": 1.5}, "repeat_penalty": 1.1, "presence_penalty": 0.1, "n": 1});
    let with = |parts: &[&Value]| {
        let fields = parts.iter().filter_map(|part| part.as_object()).flatten();
        Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
    };
    let chat = json!({"messages": messages, "tools": [function], "tool_choice": "auto", "logprobs": true,
        "top_logprobs": 2, "stream_options": {"include_usage": true}, "chat_template_kwargs": {"enable_thinking": false},
        "response_format": {"type": "text"}});
    let anthropic = json!({"max_tokens": 2, "system": [{"type": "text", "text": "Be brief."}], "messages": [
        {"role": "user", "content": "ember?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"word": "a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "coal"}]}],
        "tools": [{"name": "f", "input_schema": tool}], "tool_choice": {"type": "auto"}, "stop_sequences": ["x"],
        "thinking": {"type": "disabled"}});
    let responses = json!({"max_output_tokens": 2, "instructions": "Be brief.", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "ember?"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "coal"}],
        "tools": [{"type": "function", "name": "f", "parameters": tool}], "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"}, "include": [], "truncation": "disabled"});
    let stream = json!({"stream": true});
    vec![
        ("/v1/chat/completions", with(&[&chat, &sampling])),
        ("/v1/chat/completions", with(&[&chat, &stream])),
        ("/v1/chat/completions/input_tokens", chat.clone()),
        ("/v1/messages", anthropic.clone()),
        ("/v1/messages", with(&[&anthropic, &stream])),
        ("/v1/messages/count_tokens", anthropic),
        ("/v1/responses", responses.clone()),
        ("/v1/responses", with(&[&responses, &stream])),
        ("/v1/responses/input_tokens", responses),
        (
            "/v1/completions",
            with(&[&json!({"prompt": ["ember", [5, "is", 7]], "echo": true, "logprobs": 1}), &sampling]),
        ),
        (
            "/completion",
            with(&[&json!({"prompt": "ember", "n_predict": 2, "n_probs": 2, "stream": true}), &sampling]),
        ),
        (
            "/infill",
            json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f", "text": "t"}], "n_predict": 2}),
        ),
        (
            "/tokenize",
            json!({"content": "ember", "add_special": true, "parse_special": true, "with_pieces": true}),
        ),
        ("/v1/tokenize", json!({"text": "ember"})),
        ("/detokenize", json!({"tokens": [1, 2, 3]})),
        (
            "/v1/embeddings",
            json!({"input": ["ember", [5, "is", 7]], "encoding_format": "base64", "dimensions": 512, "user": "u"}),
        ),
        ("/embedding", json!({"content": ["ember", "coal"], "embd_normalize": -1})),
        (
            "/v1/rerank",
            json!({"query": "coal", "documents": ["ember", {"text": "bird"}], "top_n": 1, "return_documents": true}),
        ),
        ("/rerank", json!({"query": "coal", "texts": ["ember"], "return_text": true, "raw_scores": false})),
        ("/apply-template", chat),
        ("/slots/0?action=save", json!({"filename": "x"})),
        ("/models/load", json!({"model": "x"})),
        ("/v1/models/load", json!({"path": "x"})),
        ("/props", json!({})),
        ("/lora-adapters", json!([{"id": 0, "scale": 0.5}])),
    ]
}

/// Sends a body; describes the answer, which has to be well formed.
fn outcome(path: &str, body: &[u8]) -> String {
    let answer = hasty().send("POST", path, &[("content-type", "application/json")], body);
    let shown = String::from_utf8_lossy(body);
    // A fault of the server would be 500.
    assert!([200, 400, 403, 404, 413, 501, 503, 504].contains(&answer.status), "{path} {shown}: {answer:?}");
    if answer.status == 200 {
        let is_stream =
            answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        if is_stream {
            check_events(&answer);
        } else {
            answer.json(200);
        }
        return "answered".into();
    }
    let (_, param, code) = answer.error(answer.status);
    format!("{code} {}", param.unwrap_or_default())
}

fn check_events(answer: &Answer) {
    for data in answer.body.lines().filter_map(|line| line.strip_prefix("data: ")) {
        assert!(data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok(), "{data}");
    }
}

/// Values that readers of fields stumble over.
fn odd_values() -> Vec<Value> {
    let deep = (0..100).fold(json!({}), |inner, _| json!({"properties": {"a": inner}, "items": [1]}));
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(0.5),
        json!(1e308),
        json!(-1e-320),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(4_294_967_296_u64),
        json!(""),
        json!("\u{0}"),
        json!("none"),
        json!("{{ 7 }}<|im_start|>"),
        json!("ä\u{301}🜂".repeat(300)),
        json!([]),
        json!([[]]),
        json!([null]),
        json!(vec![1; 600]),
        json!({}),
        json!({"type": "object"}),
        json!({"type": ["nothing", 7]}),
        deep,
    ]
}

/// Replaces, removes, repeats or moves a random part of `body`.
fn change(body: &mut Value, odd: &[Value], rng: &mut Rng) {
    let mut places = Vec::new();
    collect(body, String::new(), &mut places);
    let source = rng.choose(&places).clone();
    let other = body.pointer(&source).cloned().unwrap_or_default();
    let place = rng.choose(&places).clone();
    let Some(found) = body.pointer_mut(&place) else { return };
    match (rng.below(5), found) {
        (0, found) => *found = other,
        (1, Value::Object(map)) => {
            let names: Vec<String> = map.keys().cloned().collect();
            if !names.is_empty() {
                map.remove(rng.choose(&names));
            }
        }
        (1, Value::Array(items)) => drop(items.pop()),
        (2, Value::Array(items)) => items.extend(std::iter::repeat_n(other, 1 + rng.below(40))),
        (_, found) => *found = rng.choose(odd).clone(),
    }
}

/// The JSON pointers of every part of `value`.
fn collect(value: &Value, place: String, places: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(name, inner)| collect(inner, format!("{place}/{name}"), places));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(at, inner)| collect(inner, format!("{place}/{at}"), places));
        }
        _ => {}
    }
    places.push(place);
}

#[test]
fn odd_fields_get_an_answer_or_an_error() {
    let rounds = if sweeps("many odd requests") { 2000 } else { 5 };
    let (mut rng, odd) = (Rng::new(9), odd_values());
    let requests = requests();
    for (path, body) in &requests {
        outcome(path, body.to_string().as_bytes());
        for _ in 0..rounds {
            let mut body = body.clone();
            for _ in 0..=rng.below(3) {
                change(&mut body, &odd, &mut rng);
            }
            outcome(path, body.to_string().as_bytes());
        }
        // The engine still answers.
        assert_eq!(hasty().get("/health").status, 200, "{path}");
    }
}

#[test]
fn broken_json_gets_an_error() {
    let runs = if sweeps("many broken bodies") { 3000 } else { 4 };
    for (path, body) in requests() {
        let name = format!("bodies{}", path.replace(['/', '?', '='], "-"));
        let words = ["null", "-1", "1e999", "\"", "\\ud800", "{", "}", "[", "]", "true", "\u{0}"];
        Fuzzer::new(name).seed(body.to_string()).words(words).runs(runs).run(|body| outcome(path, body));
    }
}
