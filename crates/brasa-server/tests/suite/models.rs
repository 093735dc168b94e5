//! Several models: names, loading, unloading.

use std::io::Read;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use brasa_server::ServerOptions;
use serde_json::{Value, json};

use brasa::LoadOptions;

use super::client::{Answer, MODEL, Running, models, options, server, until};
use super::device::Device;

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
fn any_name_stands_for_the_first_model_if_the_operator_says_so() {
    let server = Running::start(ServerOptions { models_dir: Some(models()), any_model: true, ..options() });
    let body = json!({"model": "gpt-9", "prompt": "x", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &body).json(200)["model"], MODEL);
    let body = json!({"model": "tiny-llama", "prompt": "x", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &body).json(200)["model"], "tiny-llama");
    server.stop();
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
    let missing = ask("gpt-9");
    assert_eq!(missing.error(404).2, "model_not_found");
    assert!(missing.body.contains("lexicon-qwen3"), "{}", missing.body);
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

/// A folder with copies of the smallest model under these names.
fn folder(name: &str, names: &[&str]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("brasa-models-{name}-{}", std::process::id()));
    for model in names {
        let copy = folder.join(model);
        std::fs::create_dir_all(&copy).unwrap();
        for file in std::fs::read_dir(models().join("tiny-llama")).unwrap() {
            let file = file.unwrap();
            if file.file_type().unwrap().is_file() {
                std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
            }
        }
    }
    folder
}

/// A server of the models in a folder, of which so many may be loaded at once.
fn few(device: &Device, folder: &std::path::Path, max_loaded: usize) -> Running {
    let load = LoadOptions { context: Some(128), ..device.options().load };
    let models_dir = Some(folder.to_owned());
    Running::start(ServerOptions { models: Vec::new(), models_dir, max_loaded, load, ..device.options() })
}

/// The names of models that are in this state.
fn in_state(server: &Running, state: &str) -> Vec<String> {
    let list = server.get("/v1/models").json(200);
    let models = list["data"].as_array().unwrap().iter().filter(|model| model["status"]["value"] == state);
    models.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

fn ask(server: &Running, model: &str, tokens: usize) -> TcpStream {
    let body = json!({"model": model, "prompt": "a", "n_predict": tokens, "ignore_eos": true}).to_string();
    server.begin("POST", "/completion", &[], body.as_bytes())
}

fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

#[test]
fn what_is_no_model_leaves_no_name_behind() {
    let folder = folder("junk", &["only"]);
    std::fs::write(folder.join("README.md"), "words\n").unwrap();
    let server = few(&Device::new(), &folder, 1);
    let names = || {
        let list = server.get("/v1/models").json(200);
        list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["only"]);
    let load = |body: Value| server.post("/v1/models/load", &body);
    for path in ["README.md", "only/config.json", "only/../README.md"] {
        for id in [json!(null), json!("gpt-4")] {
            let (_, param, code) = load(json!({"path": path, "id": id})).error(400);
            assert_eq!((param.as_deref(), code.as_str()), (Some("path"), "not_a_model"), "{path}");
        }
    }
    for id in ["", " ", "a\nb", "x\u{7f}", &"y".repeat(129)] {
        assert_eq!(load(json!({"path": "only", "id": id})).error(400).1.as_deref(), Some("id"), "{id:?}");
    }
    assert_eq!(names(), ["only"]);
    // There is one model still, and any name is its name.
    assert_eq!(answer(ask(&server, "gpt-4o-mini", 1)).status, 200);
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn no_more_models_are_loaded_than_may_be() {
    let folder = folder("most", &["a", "b", "c"]);
    let device = Device::new();
    let server = few(&device, &folder, 1);
    // All are asked for at once, while the first of them is being loaded.
    device.hold_loading();
    let asked: Vec<TcpStream> = ["a", "b", "c"].map(|model| ask(&server, model, 2)).into();
    device.until_held();
    until("all are wanted", || in_state(&server, "loading").len() == 3);
    device.release();
    for stream in asked {
        assert_eq!(answer(stream).json(200)["tokens_predicted"], 2);
        assert!(in_state(&server, "loaded").len() <= 1);
    }
    // A model that is busy stays, and another waits for it.
    device.hold(1);
    let busy = ask(&server, "a", 2);
    device.until_held();
    let waits = ask(&server, "b", 2);
    until("the other is wanted", || in_state(&server, "loading") == ["b"]);
    assert_eq!(in_state(&server, "loaded"), ["a"]);
    device.release();
    assert_eq!(answer(busy).status, 200);
    assert_eq!(answer(waits).status, 200);
    assert_eq!(in_state(&server, "loaded"), ["b"]);
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn models_that_stay_busy_let_no_other_be_loaded() {
    let folder = folder("busy", &["a", "b"]);
    let device = Device::new();
    let load = LoadOptions { context: Some(128), ..device.options().load };
    let server = Running::start(ServerOptions {
        models: Vec::new(),
        models_dir: Some(folder.clone()),
        max_loaded: 1,
        request_timeout: Duration::from_millis(500),
        load,
        ..device.options()
    });
    server.post("/models/load", &json!({"model": "a"})).json(200);
    device.hold(1);
    let busy = ask(&server, "a", 2);
    device.until_held();
    let refused = answer(ask(&server, "b", 2));
    assert!([503, 504].contains(&refused.status), "{}", refused.body);
    device.release();
    drop(busy);
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_model_that_is_unloaded_while_it_is_loaded_is_not_loaded() {
    let folder = folder("given-up", &["a"]);
    let device = Device::new();
    let server = few(&device, &folder, 1);
    device.hold_loading();
    let asked = ask(&server, "a", 2);
    device.until_held();
    assert_eq!(in_state(&server, "loading"), ["a"]);
    server.post("/models/unload", &json!({"model": "a"})).json(200);
    assert_eq!(in_state(&server, "unloaded"), ["a"]);
    // Whoever waited hears so while the device still loads, and is told when to ask again.
    let refused = answer(asked);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.error(503).2, "model_unloaded");
    device.release();
    assert_eq!(in_state(&server, "unloaded"), ["a"]);
    // It can be loaded again.
    assert_eq!(answer(ask(&server, "a", 2)).status, 200);
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}
