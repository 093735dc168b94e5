//! Status routes of the server.

use std::time::Duration;

use brasa::{LoadOptions, Speculation};
use brasa_server::ServerOptions;
use serde_json::json;

use super::client::{MODEL, Running, models, options, server, until};
use super::device::Device;

#[test]
fn health_and_properties() {
    assert_eq!(server().get("/health").json(200), json!({"status": "ok", "models": 1}));
    let props = server().get("/props").json(200);
    assert_eq!(props["model_alias"], MODEL);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512);
    assert!(props["chat_template"].as_str().unwrap().contains("messages"));
    assert_eq!(props["modalities"], json!({"vision": false, "audio": false}));
    server().post("/props", &json!({})).error(501);
}

#[test]
fn the_default_settings_are_those_of_a_request_that_sets_none() {
    let mut told = server().get("/props").json(200)["default_generation_settings"]["params"].take();
    let mut used = server()
        .post("/completion", &json!({"prompt": "ember", "n_predict": -1, "stop": "e"}))
        .json(200)["generation_settings"]
        .take();
    for settings in [&mut told, &mut used] {
        // Every request has a seed of its own.
        settings["seed"].take();
        settings["stop"].take();
    }
    assert_eq!(told, used);
    assert_eq!((&told["top_k"], &told["repeat_last_n"]), (&json!(40), &json!(64)));
}

#[test]
fn slots_are_places_of_the_engine() {
    let slots = server().get("/slots").json(200);
    assert_eq!(slots.as_array().unwrap().len(), 16);
    assert_eq!(server().get("/slots?fail_on_no_slot=1").status, 200);
    for action in ["save", "restore", "erase"] {
        let answer = server().post(&format!("/slots/0?action={action}"), &json!({"filename": "../x"}));
        assert_eq!(answer.error(501).1.as_deref(), Some("action"));
    }
    server().post("/slots/0?action=melt", &json!({})).error(400);
    assert_eq!(server().get("/lora-adapters").json(200), json!([]));
    server().post("/lora-adapters", &json!([])).error(501);
}

#[test]
fn metrics_have_both_sets_of_names() {
    server()
        .post("/v1/completions", &json!({"prompt": "ember", "max_tokens": 3, "ignore_eos": true}))
        .json(200);
    let text = server().get("/metrics").body;
    for name in [
        "llamacpp:prompt_tokens_total",
        "llamacpp:prompt_seconds_total",
        "llamacpp:tokens_predicted_total",
        "llamacpp:tokens_predicted_seconds_total",
        "llamacpp:prompt_tokens_seconds",
        "llamacpp:predicted_tokens_seconds",
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        "llamacpp:n_decode_total",
        "llamacpp:n_busy_slots_per_decode",
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_sum",
        "vllm:request_queue_time_seconds_bucket",
        "brasa:memory_bytes",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing:\n{text}");
    }
    let line = format!("vllm:generation_tokens_total{{model_name=\"{MODEL}\"}} ");
    let tokens = text.lines().find_map(|known| known.strip_prefix(&line)).unwrap();
    assert!(tokens.parse::<f64>().unwrap() >= 3.0);
    let json = server().get("/v1/metrics").json(200);
    assert!(json["models"][MODEL]["total_completion_tokens"].as_u64().unwrap() >= 3);
}

#[test]
fn memory_is_told_by_its_parts() {
    let alone = server().get("/props").json(200)["memory_bytes"].clone();
    assert!(alone["weights"].as_u64() > Some(1 << 20) && alone["cache"].is_u64(), "{alone}");
    assert!(alone.get("draft_weights").is_none(), "{alone}");

    let load = LoadOptions {
        draft_model: Some(models().join("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf")),
        ..options().load
    };
    let drafting = Running::start(ServerOptions { load, ..options() });
    let parts = drafting.get("/props").json(200)["memory_bytes"].clone();
    assert_eq!(parts["draft_weights"], alone["weights"], "{parts}");
    assert!(parts["draft_cache_limit"].as_u64() > Some(0), "{parts}");
    // Cache is taken when the first texts come: both routes tell of it once it is there.
    drafting.post("/v1/completions", &json!({"prompt": "ember", "max_tokens": 3})).json(200);
    until("both routes tell the same parts", || {
        let parts = drafting.get("/props").json(200)["memory_bytes"].clone();
        let text = drafting.get("/metrics").body;
        parts["cache"].as_u64() > Some(0)
            && parts.as_object().unwrap().iter().all(|(part, bytes)| {
                let line = format!("brasa:memory_bytes{{model_name=\"{MODEL}\",part=\"{part}\"}} {bytes}");
                text.lines().any(|known| known == line)
            })
    });
}

#[test]
fn guessed_tokens_are_counted() {
    let speculation = Speculation { adaptive: false, ..Speculation::LOOKUP };
    let load = LoadOptions { speculation, ..options().load };
    let server = Running::start(ServerOptions { load, ..options() });
    let value = |name: &str| {
        let text = server.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let names = [
        ["llamacpp:n_draft_total ", "vllm:spec_decode_num_draft_tokens_total{"],
        ["llamacpp:n_draft_accepted_total ", "vllm:spec_decode_num_accepted_tokens_total{"],
    ];
    for name in names.concat() {
        assert!(value(name).abs() < 0.5, "{name}");
    }
    let prompt = "An ember is a small piece of coal. ".repeat(5);
    let body = json!({"prompt": prompt, "n_predict": 40, "temperature": 0, "ignore_eos": true});
    let timings = server.post("/completion", &body).json(200)["timings"].clone();
    for (names, key) in names.iter().zip(["draft_n", "draft_n_accepted"]) {
        let told = timings[key].as_f64().unwrap();
        assert!(told > 0.0, "{timings}");
        for name in names {
            until(name, || (value(name) - told).abs() < 0.5);
        }
    }
    server.stop();
}

#[test]
fn times_between_tokens_are_those_of_the_engine() {
    let device = Device::new();
    let server = Running::start(device.options());
    device.pace(Duration::from_millis(20));
    let body = json!({"prompt": "An ember is", "n_predict": 6, "ignore_eos": true});
    let timings = server.post("/completion", &body).json(200)["timings"].clone();
    let text = server.get("/metrics").body;
    let value = |name: &str| {
        let start = format!("{name}{{model_name=\"{MODEL}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse::<f64>().unwrap()
    };
    // Five gaps lie between six tokens, and are the whole time of decoding.
    assert!((value("vllm:inter_token_latency_seconds_count") - 5.0).abs() < 0.5);
    let sum = value("vllm:inter_token_latency_seconds_sum");
    assert!(
        sum >= 0.1 && (sum * 1e3 - timings["predicted_ms"].as_f64().unwrap()).abs() < 1e-3,
        "{sum} {timings}"
    );
    for key in [
        "cache_n",
        "prompt_n",
        "prompt_ms",
        "prompt_per_second",
        "predicted_n",
        "predicted_ms",
        "predicted_per_second",
    ] {
        assert!(timings[key].is_number(), "{key}: {timings}");
    }
    server.stop();
}
