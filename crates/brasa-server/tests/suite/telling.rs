//! Streams that tell of their making: times with each part, and how far a prompt has come.

use std::sync::LazyLock;
use std::time::Duration;

use brasa::LoadOptions;
use brasa_server::ServerOptions;
use serde_json::{Value, json};

use super::client::{Answer, Running, options, server};
use super::device::Device;

/// A server that computes prompts in small steps, and whose tokens come one after the other.
fn stepwise() -> &'static Running {
    static SERVER: LazyLock<Running> = LazyLock::new(|| {
        let device = Device::new();
        device.pace(Duration::from_millis(20));
        let load = LoadOptions { chunk: Some(32), ..device.options().load };
        Running::start(ServerOptions { load, ..options() })
    });
    &SERVER
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The forms of request that can tell, with a long prompt of which nothing is cached.
fn requests() -> [(&'static str, Value); 3] {
    let text = "ember ".repeat(100);
    let rest = json!({"max_tokens": 9, "temperature": 0, "ignore_eos": true, "cache_prompt": false});
    [
        ("/v1/chat/completions", with(json!({"messages": [{"role": "user", "content": text}]}), &rest)),
        ("/v1/completions", with(json!({"prompt": text}), &rest)),
        ("/completion", with(json!({"prompt": text}), &rest)),
    ]
}

/// The data of all events.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let data = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// The text of a part, in whichever form it is.
fn text(part: &Value) -> &str {
    let choice = &part["choices"][0];
    let texts = [&part["content"], &choice["text"], &choice["delta"]["content"]];
    texts.into_iter().find_map(Value::as_str).unwrap_or_default()
}

#[test]
fn a_stream_tells_how_far_its_prompt_has_come() {
    for (path, body) in requests() {
        let plain = events(&stepwise().post(path, &with(body.clone(), &json!({"stream": true}))));
        assert!(plain.iter().all(|part| part["prompt_progress"].is_null()), "{path}");
        let asked = with(body, &json!({"stream": true, "return_progress": true}));
        let told = events(&stepwise().post(path, &asked));
        let texts = |parts: &[Value]| parts.iter().map(text).collect::<String>();
        assert_eq!(texts(&told), texts(&plain), "{path}");
        let progress: Vec<&Value> =
            told.iter().map(|part| &part["prompt_progress"]).filter(|told| !told.is_null()).collect();
        let last = told.iter().rposition(|part| !part["prompt_progress"].is_null()).unwrap();
        assert!(told[..=last].iter().all(|part| text(part).is_empty()), "{path}: no text comes before");
        let numbers = |key: &str| -> Vec<u64> {
            progress.iter().map(|progress| progress[key].as_u64().unwrap()).collect()
        };
        let (total, processed) = (numbers("total"), numbers("processed"));
        assert!(total[0] > 64 && total.iter().all(|tokens| *tokens == total[0]), "{path} {total:?}");
        assert_eq!((processed[0], processed[processed.len() - 1]), (0, total[0]), "{path}");
        // Each step has at most 32 rows.
        let steps: Vec<u64> = processed.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.iter().all(|step| (1..=32).contains(step)), "{path} {steps:?}");
        assert!(numbers("cache").iter().all(|tokens| *tokens == 0), "{path}");
        let times: Vec<f64> = progress.iter().map(|progress| progress["time_ms"].as_f64().unwrap()).collect();
        assert!(times.is_sorted(), "{path} {times:?}");
        // A whole answer has no parts that could tell.
        let whole = stepwise().post(path, &with(asked, &json!({"stream": false}))).json(200);
        assert!(whole["prompt_progress"].is_null(), "{path}");
    }
}

#[test]
fn progress_says_what_the_cache_had() {
    let prompt = "harbor: a place where ships are safe. ".repeat(8);
    let body = json!({"prompt": prompt, "n_predict": 1, "stream": true, "return_progress": true});
    let progress = |body: &Value| {
        let parts = events(&stepwise().post("/completion", body));
        parts.iter().map(|part| part["prompt_progress"].clone()).find(|told| !told.is_null()).unwrap()
    };
    assert_eq!(progress(&body)["cache"], 0);
    let again = progress(&body);
    // The last token is computed always.
    assert_eq!(again["cache"].as_u64().unwrap(), again["total"].as_u64().unwrap() - 1);
    assert_eq!(again["processed"], again["cache"]);
}

#[test]
fn each_part_tells_its_times() {
    for (path, body) in requests() {
        let asked = with(body.clone(), &json!({"stream": true, "timings_per_token": true}));
        let parts = events(&stepwise().post(path, &asked));
        let with_text: Vec<&Value> = parts.iter().filter(|part| !text(part).is_empty()).collect();
        assert!(with_text.len() > 1, "{path}");
        let tokens: Vec<u64> =
            with_text.iter().map(|part| part["timings"]["predicted_n"].as_u64().unwrap()).collect();
        assert!(tokens.is_sorted() && (1..=9).contains(&tokens[0]), "{path} {tokens:?}");
        let last = parts.iter().rfind(|part| !part["timings"].is_null()).unwrap();
        assert_eq!(last["timings"]["predicted_n"], 9, "{path}");
        for key in ["cache_n", "prompt_n", "prompt_ms", "prompt_per_second", "predicted_per_second"] {
            assert!(with_text.iter().all(|part| part["timings"][key].is_number()), "{path} {key}");
        }
        assert!(with_text.iter().all(|part| part["timings"]["prompt_n"] == last["timings"]["prompt_n"]));
        // Without the field, the end alone tells.
        let parts = events(&stepwise().post(path, &with(body, &json!({"stream": true}))));
        assert_eq!(parts.iter().filter(|part| !part["timings"].is_null()).count(), 1, "{path}");
    }
}

#[test]
fn forms_without_a_place_for_times_refuse_them() {
    let messages = json!({"messages": [{"role": "user", "content": "ember"}], "max_tokens": 1});
    for (path, body) in [("/v1/messages", messages), ("/v1/responses", json!({"input": "ember"}))] {
        for name in ["timings_per_token", "return_progress"] {
            let answer = server().post(path, &with(body.clone(), &json!({name: true}))).json(400);
            assert_eq!(answer["error"]["param"], name, "{path}");
            let neutral = with(body.clone(), &json!({name: false, "max_output_tokens": 1}));
            server().post(path, &neutral).json(200);
        }
    }
}
