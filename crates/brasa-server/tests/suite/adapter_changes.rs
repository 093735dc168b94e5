//! Adapters that are loaded, exchanged and unloaded while the server runs.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use brasa::{AdapterSource, LoadOptions};
use brasa_server::{ModelData, ModelSource, ServerOptions};
use serde_json::{Value, json};

use super::adapters::{adapter_in, text};
use super::client::{Running, models, options};

/// A folder for adapters, empty.
fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("server-lora-dir").join(test);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn start(lora_dir: Option<&Path>, adapters: Vec<AdapterSource>, more: ServerOptions) -> Running {
    let by_request = !adapters.is_empty();
    Running::start(ServerOptions {
        models: vec![ModelSource { id: "tiny".into(), data: ModelData::Path(models().join("tiny-llama")) }],
        load: LoadOptions { adapters, adapters_by_request: by_request, ..options().load },
        lora_dir: lora_dir.map(Into::into),
        ..more
    })
}

fn load(server: &Running, name: &str, path: &str) -> Value {
    server.post("/v1/load_lora_adapter", &json!({"lora_name": name, "lora_path": path})).json(200)
}

fn unload(server: &Running, name: &str) -> Value {
    server.post("/v1/unload_lora_adapter", &json!({"lora_name": name})).json(200)
}

fn ids(server: &Running) -> Vec<String> {
    let list = server.get("/v1/models").json(200);
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().into()).collect()
}

/// The message of an error, and the field that it is about.
fn said(body: &Value) -> (String, Option<String>) {
    let text = |key: &str| body["error"][key].as_str().map(str::to_owned);
    (text("message").unwrap(), text("param"))
}

/// The texts of the base and of two adapters, by servers that have nothing else.
fn expected(folder: &Path) -> [String; 3] {
    let sources =
        [("one", 1), ("two", 2)].map(|(name, seed)| vec![AdapterSource::new(adapter_in(folder, name, seed))]);
    let [one, two] = sources;
    [Vec::new(), one, two].map(|adapters| {
        let name = adapters.first().map(AdapterSource::name);
        let server = start(None, adapters, options());
        let said = text(&server, &name.map_or(json!({}), |name| json!({"model": format!("tiny:{name}")})));
        server.stop();
        said
    })
}

#[test]
fn adapters_are_loaded_exchanged_and_unloaded() {
    let folder = folder("exchanged");
    let [base, one, two] = expected(&folder);
    assert!(base != one && one != two && two != base);
    let server = start(Some(&folder), Vec::new(), options());
    assert_eq!(server.get("/lora-adapters").json(200), json!([]));
    assert_eq!(ids(&server), ["tiny"]);
    let answer = load(&server, "bard", "one");
    assert_eq!(
        (&answer["id"], &answer["model"], &answer["rank"]),
        (&json!(0), &json!("tiny:bard"), &json!(2))
    );
    assert_eq!(ids(&server), ["tiny", "tiny:bard"]);
    assert_eq!(text(&server, &json!({})), base);
    // By each of its names.
    for chosen in
        [json!({"model": "tiny:bard"}), json!({"model": "bard"}), json!({"lora": [{"id": 0, "scale": 1}]})]
    {
        assert_eq!(text(&server, &chosen), one, "{chosen}");
    }
    let listed = server.get("/lora-adapters").json(200);
    assert_eq!((&listed[0]["name"], &listed[0]["scale"]), (&json!("bard"), &json!(0.0)));
    // By an absolute path too, under a name of its own.
    assert_eq!(load(&server, "clerk", folder.join("two").to_str().unwrap())["id"], 1);
    assert_eq!(text(&server, &json!({"model": "tiny:clerk"})), two);
    // What the operator applies.
    server.post("/lora-adapters", &json!([{"id": 1, "scale": 1.0}])).json(200);
    assert_eq!(text(&server, &json!({})), two);
    assert_eq!(text(&server, &json!({"lora": []})), base);
    // The same name again.
    assert_eq!(load(&server, "bard", "two")["id"], 0);
    assert_eq!(text(&server, &json!({"model": "tiny:bard"})), two);
    let kept = json!({"lora_name": "bard", "lora_path": "one", "load_inplace": false});
    let (message, param) = said(&server.post("/v1/load_lora_adapter", &kept).json(400));
    assert!(message.contains("loaded already") && param.as_deref() == Some("lora_name"), "{message}");
    assert_eq!(unload(&server, "clerk")["id"], 1);
    assert_eq!(ids(&server), ["tiny", "tiny:bard"]);
    assert_eq!(text(&server, &json!({})), base, "what was applied is gone");
    let body = json!({"model": "tiny:clerk", "prompt": "x", "max_tokens": 1});
    let (message, _) = said(&server.post("/v1/completions", &body).json(404));
    assert!(message.contains("has no adapter `clerk`"), "{message}");
    server.post("/v1/unload_lora_adapter", &json!({"lora_name": "clerk"})).error(404);
    // A model that is loaded again has what it had.
    server.post("/models/unload", &json!({"model": "tiny"})).json(200);
    server.post("/models/load", &json!({"model": "tiny"})).json(200);
    assert_eq!(text(&server, &json!({"model": "tiny:bard"})), two);
    server.stop();
}

/// Clients ask while adapters come, change and go: every answer is that of one of the two files, or says that there is no such adapter.
#[test]
fn answers_under_load_are_of_one_adapter() {
    let folder = folder("load");
    let [base, one, two] = expected(&folder);
    let server = start(Some(&folder), Vec::new(), options());
    load(&server, "bard", "one");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..3 {
            let (server, over, base, one, two) = (&server, &over, &base, &one, &two);
            scope.spawn(move || {
                let (mut answers, name) = (0, ["tiny", "tiny:bard", "bard"][client]);
                while !over.load(Ordering::Relaxed) {
                    let body = json!({"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "ignore_eos": true,
                        "model": name});
                    let answer = server.post("/v1/completions", &body).json(200);
                    let said = answer["choices"][0]["text"].as_str().unwrap().to_owned();
                    let right = if client == 0 { said == *base } else { said == *one || said == *two };
                    assert!(right, "client {client}: {said:?}");
                    answers += 1;
                }
                assert!(answers > 0);
            });
        }
        for round in 0..8 {
            load(&server, "bard", ["two", "one"][round % 2]);
            let right = [&two, &one][round % 2];
            assert_eq!(text(&server, &json!({"model": "tiny:bard"})), *right, "round {round}");
            load(&server, "passing", ["one", "two"][round % 2]);
            unload(&server, "passing");
        }
        over.store(true, Ordering::Relaxed);
    });
    server.stop();
}

#[test]
fn only_files_of_the_folder_are_loaded() {
    let folder = folder("inside");
    let (inside, outside) = (folder.join("inside"), folder.join("outside"));
    fs::create_dir_all(&inside).unwrap();
    adapter_in(&inside, "good", 1);
    let bad = adapter_in(&outside, "bad", 2);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&bad, inside.join("link")).unwrap();
        fs::create_dir_all(inside.join("mixed")).unwrap();
        for file in ["adapter_config.json", "adapters.safetensors"] {
            std::os::unix::fs::symlink(bad.join(file), inside.join("mixed").join(file)).unwrap();
        }
    }
    let server = start(Some(&inside), Vec::new(), options());
    let refused = |path: &str| {
        let body = json!({"lora_name": "x", "lora_path": path});
        let (message, param) = said(&server.post("/v1/load_lora_adapter", &body).json(403));
        assert!(message.contains("--lora-dir") && param.as_deref() == Some("lora_path"), "{path}: {message}");
    };
    for path in
        ["../outside/bad", "good/../../outside/bad", "link", "mixed", "nothing", "", ".", "/etc/passwd"]
    {
        refused(path);
    }
    refused(bad.to_str().unwrap());
    let post = |body: Value| said(&server.post("/v1/load_lora_adapter", &body).json(400));
    post(json!({"lora_name": "x"}));
    post(json!({"lora_path": "good"}));
    for name in ["", "a:b", "../x"] {
        let (message, _) = post(json!({"lora_name": name, "lora_path": "good"}));
        assert!(message.contains("is no name of an adapter"), "{message}");
    }
    post(json!({"lora_name": "x", "lora_path": "good", "scale": "much"}));
    // A file that is no adapter.
    fs::write(inside.join("broken.gguf"), b"GGUF and nothing").unwrap();
    let (_, param) = post(json!({"lora_name": "x", "lora_path": "broken.gguf"}));
    assert_eq!(param.as_deref(), Some("lora_path"));
    assert_eq!(ids(&server), ["tiny"]);
    load(&server, "good", "good/../good");
    server.stop();
}

#[test]
fn servers_load_adapters_only_if_they_may() {
    let folder = folder("refused");
    adapter_in(&folder, "one", 1);
    let body = json!({"lora_name": "one", "lora_path": "one"});
    let server = start(None, Vec::new(), options());
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
        let (message, _) = said(&server.post(path, &body).json(403));
        assert!(message.contains("--lora-dir"), "{message}");
    }
    server.stop();
    let public =
        ServerOptions { host: IpAddr::from([0, 0, 0, 0]), allow_public_without_key: true, ..options() };
    let server = start(Some(&folder), Vec::new(), public);
    let local = Running { address: ([127, 0, 0, 1], server.address.port()).into(), ..server };
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
        let (message, _) = said(&local.post(path, &body).json(403));
        assert!(message.contains("--api-key"), "{message}");
    }
    local.stop();
    let missing = ServerOptions { lora_dir: Some(folder.join("nothing")), ..options() };
    let refused = brasa_server::Server::bind(missing).map(drop).unwrap_err();
    assert!(refused.to_string().ends_with("no folder for adapters"), "{refused}");
}
