//! Adapters that requests choose, and those that the server applies.

use std::path::{Path, PathBuf};

use brasa::formats::{AdapterFile, AdapterForm, Bytes, Checkpoint, Existing, LowRankPair, Payload};
use brasa::formats::{StorageFormat, Tensor};
use brasa::{AdapterSource, LoadOptions};
use brasa_server::{ModelData, ModelSource, ServerOptions};
use serde_json::{Value, json};

use super::client::{Running, models, options, server};

/// An adapter of the attention's output of tiny-llama that turns the model upside down.
pub fn adapter(name: &str, seed: usize) -> PathBuf {
    adapter_in(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("server-adapters"), name, seed)
}

/// Like [`adapter`], in a folder of one's own.
pub fn adapter_in(folder: &Path, name: &str, seed: usize) -> PathBuf {
    let base = Checkpoint::open(models().join("tiny-llama")).unwrap();
    let tensor = |shape: [usize; 2], salt: usize| {
        let noise = |at: usize| ((at * 7919 + salt * 104_729 + seed * 1_299_709) % 1009) as f32 / 504.5 - 1.0;
        let bytes: Vec<u8> = (0..shape[0] * shape[1]).flat_map(|at| noise(at).to_le_bytes()).collect();
        let payload = Payload::Blocks(Bytes::from(bytes));
        Tensor { name: "t".into(), shape: shape.to_vec(), format: StorageFormat::F32, payload }
    };
    let of = |base: &&Tensor| base.name.ends_with("o_proj.weight");
    let pair = |(at, base): (usize, &Tensor)| LowRankPair {
        name: base.name.strip_suffix(".weight").unwrap().into(),
        a: tensor([2, base.shape[1]], 2 * at),
        b: tensor([base.shape[0], 2], 2 * at + 1),
        scale: 0.3,
        magnitude: None,
    };
    let pairs = base.tensors().iter().filter(of).enumerate().map(pair).collect();
    let path = folder.join(name);
    let file =
        AdapterFile { form: AdapterForm::Mlx, architecture: None, base: None, num_layers: None, pairs };
    file.write(&path, Existing::Replace).unwrap();
    path
}

fn start(adapters: Vec<AdapterSource>, by_request: bool) -> Running {
    let path = models().join("tiny-llama");
    Running::start(ServerOptions {
        models: vec![ModelSource { id: "tiny".into(), data: ModelData::Path(path) }],
        load: LoadOptions { adapters, adapters_by_request: by_request, ..options().load },
        ..options()
    })
}

pub fn text(server: &Running, more: &Value) -> String {
    let mut body =
        json!({"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/completions", &body).json(200)["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn requests_and_the_operator_choose() {
    let sources = [("bard", 1), ("clerk", 2)].map(|(name, seed)| AdapterSource::new(adapter(name, seed)));
    // Each alone, and the base.
    let alone = |adapters: Vec<AdapterSource>| {
        let server = start(adapters, false);
        let text = text(&server, &json!({}));
        server.stop();
        text
    };
    let base = alone(Vec::new());
    let [bard, clerk] = sources.clone().map(|source| alone(vec![source]));
    assert!(base != bard && bard != clerk && clerk != base);

    let server = start(sources.to_vec(), true);
    assert_eq!(text(&server, &json!({"lora": [{"id": 0, "scale": 1.0}]})), bard);
    assert_eq!(text(&server, &json!({"lora": [{"id": 1, "scale": 1}]})), clerk);
    assert_eq!(text(&server, &json!({"lora": []})), base);
    assert_eq!(text(&server, &json!({"model": "tiny:clerk"})), clerk);
    assert_eq!(text(&server, &json!({"model": "tiny:bard"})), bard);
    let both = json!({"lora": [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 1.0}]});
    assert_eq!(text(&server, &json!({"model": "tiny"})), text(&server, &both));

    let listed = server.get("/lora-adapters").json(200);
    let of = |list: &Value| -> Vec<(i64, String, f64)> {
        let form = |of: &Value| {
            (of["id"].as_i64().unwrap(), of["name"].as_str().unwrap().into(), of["scale"].as_f64().unwrap())
        };
        list.as_array().unwrap().iter().map(form).collect()
    };
    assert_eq!(of(&listed), [(0, "bard".into(), 1.0), (1, "clerk".into(), 1.0)]);
    server.post("/lora-adapters", &json!([{"id": 1, "scale": 1.0}])).json(200);
    assert_eq!(of(&server.get("/lora-adapters").json(200))[0].2.to_bits(), 0.0_f64.to_bits());
    assert_eq!(text(&server, &json!({})), clerk);
    assert_eq!(text(&server, &json!({"lora": [{"id": 0, "scale": 1.0}]})), bard);
    let list = server.get("/v1/models").json(200);
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["tiny", "tiny:bard", "tiny:clerk"]);
    server.stop();
}

#[test]
fn wrong_choices_are_refused() {
    let server = start(vec![AdapterSource::new(adapter("one", 3))], true);
    let refuse = |path: &str, body: Value| server.post(path, &body).error(400);
    let completion = |more: Value| {
        let mut body = json!({"prompt": "x", "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        refuse("/v1/completions", body)
    };
    let (_, param, _) = completion(json!({"lora": [{"id": 4, "scale": 1.0}]}));
    assert_eq!(param.as_deref(), Some("lora"));
    completion(json!({"lora": [{"id": 0}]}));
    completion(json!({"lora": [{"id": 0, "scale": 1.0, "rank": 2}]}));
    completion(json!({"lora": 3}));
    completion(json!({"model": "tiny:one", "lora": []}));
    // A name that is neither the model's nor an adapter's is not answered by the base.
    for name in ["two", "tiny:two", "gpt-9"] {
        let answer = server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1, "model": name}));
        assert_eq!(answer.error(404).2, "model_not_found", "{name}");
        assert!(name == "tiny:two" || answer.body.contains("tiny, tiny:one"), "{}", answer.body);
    }
    refuse("/lora-adapters", json!([{"id": 1, "scale": 1.0}]));
    refuse("/lora-adapters", json!({"id": 1}));
    let read = |path: &str, mut body: Value, more: Value| {
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        refuse(path, body)
    };
    for (path, body) in readers() {
        for lora in [json!([{"id": 4, "scale": 1.0}]), json!([{"id": 0}]), json!(3)] {
            let (_, param, _) = read(path, body.clone(), json!({"lora": lora}));
            assert!(param.is_none_or(|param| param.starts_with("lora")), "{path} {lora}");
        }
        read(path, body, json!({"model": "tiny:one", "lora": []}));
    }
    server.stop();
}

#[test]
fn a_server_without_adapters_says_so() {
    assert_eq!(server().get("/lora-adapters").json(200), json!([]));
    server().post("/lora-adapters", &json!([])).error(501);
    let body = json!({"prompt": "x", "max_tokens": 1, "lora": [{"id": 0, "scale": 1.0}]});
    server().post("/v1/completions", &body).error(400);
    server().post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1, "lora": []})).json(200);
}

/// The paths that read texts, with a request of each.
fn readers() -> [(&'static str, Value); 4] {
    let documents = json!(["A cat sat.", "It rains on the hill."]);
    [
        ("/v1/embeddings", json!({"input": ["Once upon a time", "there was a cat"]})),
        ("/embedding", json!({"content": "Once upon a time"})),
        ("/v1/rerank", json!({"query": "What sat?", "documents": documents, "raw_scores": true})),
        ("/score", json!({"text_1": "What sat?", "text_2": documents, "raw_scores": true})),
    ]
}

/// Vectors, scores and rankings are those of the request's adapters, as a server computes them that has these alone.
#[test]
fn texts_are_read_with_the_requests_adapters() {
    let sources = [("reader", 1), ("critic", 2)].map(|(name, seed)| AdapterSource::new(adapter(name, seed)));
    let answer = |server: &Running, path: &str, body: &Value, more: Value| -> Vec<f64> {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post(path, &body).json(200);
        let mut found = Vec::new();
        numbers(answer.get("data").or(answer.get("results")).unwrap_or(&answer), &mut found);
        found
    };
    let alone = |adapters: Vec<AdapterSource>| {
        let server = start(adapters, false);
        let found = readers().map(|(path, body)| answer(&server, path, &body, json!({})));
        server.stop();
        found
    };
    let base = alone(Vec::new());
    let [reader, critic] = sources.clone().map(|source| alone(vec![source]));
    let server = start(sources.to_vec(), true);
    // A bank of adapters sums in another order than one that all texts have.
    let off = |a: &[f64], b: &[f64]| {
        assert_eq!(a.len(), b.len());
        let largest = b.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
        a.iter().zip(b).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f64::max)
    };
    for (at, (path, body)) in readers().iter().enumerate() {
        let all = [&base[at], &reader[at], &critic[at]];
        for pair in [[0, 1], [1, 2], [2, 0]] {
            assert!(off(all[pair[0]], all[pair[1]]) > 1e-2, "{path}: {all:?}");
        }
        let check = |more: Value, expected: &[f64]| {
            let off = off(&answer(&server, path, body, more.clone()), expected);
            assert!(off < 1e-3, "{path} {more}: off by {off:e}");
        };
        check(json!({"lora": [{"id": 0, "scale": 1.0}]}), &reader[at]);
        check(json!({"lora": [{"id": 1, "scale": 1.0}]}), &critic[at]);
        check(json!({"model": "tiny:critic"}), &critic[at]);
        check(json!({"lora": []}), &base[at]);
        // A request that chooses none has what the operator applies.
        for (id, expected) in [(0, &reader[at]), (1, &critic[at])] {
            server.post("/lora-adapters", &json!([{"id": id, "scale": 1.0}])).json(200);
            check(json!({}), expected);
        }
    }
    server.stop();
}

/// All numbers of an answer, in order.
fn numbers(value: &Value, found: &mut Vec<f64>) {
    match value {
        Value::Number(number) => found.extend(number.as_f64()),
        Value::Array(items) => items.iter().for_each(|item| numbers(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| numbers(field, found)),
        _ => {}
    }
}

/// The scores of a prompt are those of the request's adapters.
#[test]
fn echoed_prompts_are_scored_with_the_requests_adapters() {
    let server = start(vec![AdapterSource { path: adapter("echo", 7), scale: 0.0 }], true);
    let score = |more: Value| {
        let mut body = json!({"prompt": "Once upon a time", "max_tokens": 0, "echo": true, "logprobs": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post("/v1/completions", &body).json(200);
        answer["choices"][0]["logprobs"]["token_logprobs"].to_string()
    };
    let plain = score(json!({}));
    assert_eq!(score(json!({"lora": [{"id": 0, "scale": 0.0}]})), plain);
    assert_ne!(score(json!({"lora": [{"id": 0, "scale": 1.0}]})), plain);
    server.stop();
}
