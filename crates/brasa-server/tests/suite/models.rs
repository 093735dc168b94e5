//! Several models: names, loading, unloading.

use std::time::Duration;

use brasa_server::ServerOptions;
use serde_json::{Value, json};

use super::client::{MODEL, Running, models, options, server, until};

/// The state of a model.
fn status(server: &Running, id: &str) -> Value {
    let list = server.get("/v1/models").json(200);
    let found = list["data"].as_array().unwrap().iter().find(|model| model["id"] == id).unwrap();
    found["status"]["value"].clone()
}

#[test]
fn with_one_model_any_name_is_its_name() {
    let list = server().get("/v1/models").json(200);
    let model = &list["data"][0];
    assert_eq!(
        (&model["id"], &model["object"], &model["owned_by"]),
        (&json!(MODEL), &json!("model"), &json!("brasa"))
    );
    assert!(
        model["meta"]["n_vocab"].as_u64().unwrap() > 0 && model["meta"]["n_params"].as_u64().unwrap() > 0
    );
    assert_eq!(model["status"]["value"], "loaded");
    let answer = server()
        .post("/v1/completions", &json!({"model": "gpt-9", "prompt": "x", "max_tokens": 1}))
        .json(200);
    assert_eq!(answer["model"], MODEL);
    assert_eq!(server().get("/v1/models/anything").json(200)["id"], MODEL);
}

#[test]
fn a_folders_models_are_loaded_when_they_are_asked_for() {
    let folder = models();
    let server = Running::start(ServerOptions {
        models: Vec::new(),
        models_dir: Some(folder.clone()),
        max_loaded: 1,
        unload_idle_after: Some(Duration::from_millis(300)),
        ..options()
    });
    let list = server.get("/v1/models").json(200);
    assert!(list["data"].as_array().unwrap().len() > 3, "{list}");
    assert_eq!(status(&server, "tiny-llama"), "unloaded");
    let ask = |model: &str| {
        server.post("/v1/completions", &json!({"model": model, "prompt": "a", "max_tokens": 1}))
    };
    assert_eq!(ask("gpt-9").error(404).2, "model_not_found");
    assert_eq!(ask("tiny-llama").json(200)["model"], "tiny-llama");
    ask("tiny-qwen2").json(200);
    // One at a time: the first has made room.
    assert_eq!(status(&server, "tiny-llama"), "sleeping");
    until("the idle model sleeps", || status(&server, "tiny-qwen2") == "sleeping");
    assert_eq!(server.post("/models/load", &json!({"model": "tiny-llama"})).json(200)["success"], true);
    assert_eq!(server.post("/models/unload", &json!({"model": "tiny-llama"})).json(200)["success"], true);
    assert_eq!(status(&server, "tiny-llama"), "unloaded");
    let path = "tiny-llama";
    let loaded = server.post("/v1/models/load", &json!({"path": path})).json(200);
    assert_eq!((&loaded["id"], &loaded["status"]), (&json!("tiny-llama"), &json!("loaded")));
    assert_eq!(server.post("/v1/models/load", &json!({"path": "../Cargo.toml"})).status, 403);
    server.post("/models/load", &json!({})).error(400);
    server.stop();
}

#[test]
fn a_model_that_is_unloaded_under_a_request_lets_it_finish() {
    let server = Running::start(options());
    let body = json!({"prompt": "An ember is", "n_predict": 100, "ignore_eos": true});
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.post("/completion", &body));
        until("the request runs", || server.get("/slots").json(200)[0]["is_processing"] == true);
        server.post("/models/unload", &json!({"model": MODEL})).json(200);
        assert_eq!(asked.join().unwrap().json(200)["tokens_predicted"], 100);
    });
    assert_eq!(status(&server, MODEL), "unloaded");
    server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).json(200);
    server.stop();
}
