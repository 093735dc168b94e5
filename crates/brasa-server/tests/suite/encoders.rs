//! Text encoders behind the server's routes, beside a language model, against the vectors of sentence-transformers.

use std::sync::LazyLock;

use brasa::{LoadOptions, Precision};
use brasa_graph::testing::{Tolerance, compare};
use brasa_server::{ModelData, ModelSource, ServerOptions};
use serde_json::{Value, json};

use super::client::{MODEL, Running, models, options, until};

/// A server with encoders in front and a language model behind them.
fn server() -> &'static Running {
    static SERVER: LazyLock<Running> = LazyLock::new(|| {
        let text = options();
        let path = |name: &str| ModelData::Path(models().join("random-encoders").join(name));
        let mut all: Vec<ModelSource> = ["bert", "nomic-bert", "roberta"]
            .map(|name| ModelSource { id: name.into(), data: path(name) })
            .into();
        all.extend(text.models.clone());
        let load = LoadOptions { precision: Precision::Reference, ..text.load.clone() };
        Running::start(ServerOptions { models: all, load, ..text })
    });
    &SERVER
}

fn golden(name: &str) -> Value {
    let path = models().join("random-encoders").join(name).join("embeddings.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// The vectors of an answer are those of a golden file.
fn check(answer: &Value, expected: &Value) {
    let data = answer["data"].as_array().unwrap();
    let expected = expected.as_array().unwrap();
    assert_eq!(data.len(), expected.len());
    for (index, (item, expected)) in data.iter().zip(expected).enumerate() {
        assert_eq!(item["index"], index);
        let comparison = compare(&floats(&item["embedding"]), &floats(expected));
        assert!(comparison.within(Tolerance(1e-4)), "text {index}: {comparison}");
    }
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    let golden = golden("bert");
    let body = json!({"model": "bert", "input": golden["texts"], "truncate": true});
    let answer = server().post("/v1/embeddings", &body).json(200);
    check(&answer, &golden["vectors"]);
    assert_eq!(answer["model"], "bert");
    // The longest text is cut to the 24 tokens that the checkpoint reads.
    let lengths = golden["ids"].as_array().unwrap().iter().map(|ids| ids.as_array().unwrap().len());
    let tokens: usize = lengths.map(|length| length.min(24)).sum();
    assert_eq!(answer["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
    let mut query = body.clone();
    query["prompt_name"] = "query".into();
    check(&server().post("/v1/embeddings", &query).json(200), &golden["query"]);
    // Token ids are taken as they are.
    let ids: Vec<&Value> = golden["ids"].as_array().unwrap()[1..3].iter().collect();
    let answer = server().post("/v1/embeddings", &json!({"model": "bert", "input": ids})).json(200);
    check(&answer, &json!(golden["vectors"].as_array().unwrap()[1..3]));
}

/// Many clients at once get the vectors that each gets alone.
#[test]
fn clients_share_steps() {
    let golden = golden("nomic-bert");
    let texts = golden["texts"].as_array().unwrap();
    std::thread::scope(|scope| {
        let ask = |client: usize| {
            let own: Vec<&Value> = texts.iter().cycle().skip(client % 4).take(4).collect();
            let expected: Vec<&Value> =
                golden["query"].as_array().unwrap().iter().cycle().skip(client % 4).take(4).collect();
            let answer =
                server().post("/v1/embeddings", &json!({"model": "nomic-bert", "input": own})).json(200);
            check(&answer, &json!(expected));
        };
        (0..12).for_each(|client| drop(scope.spawn(move || ask(client))));
    });
}

#[test]
fn vectors_are_cut_only_to_declared_lengths() {
    let ask = |model: &str, dimensions: usize| {
        server().post("/v1/embeddings", &json!({"model": model, "input": "x", "dimensions": dimensions}))
    };
    let cut = ask("roberta", 8).json(200);
    let cut = floats(&cut["data"][0]["embedding"]);
    let length: f32 = cut.iter().map(|x| x * x).sum();
    assert!(cut.len() == 8 && (length - 1.0).abs() < 1e-5, "{cut:?}");
    assert_eq!(floats(&ask("roberta", 24).json(200)["data"][0]["embedding"]).len(), 24);
    for (model, dimensions) in [("roberta", 9), ("bert", 8)] {
        assert_eq!(ask(model, dimensions).error(400).1.as_deref(), Some("dimensions"), "{model}");
    }
}

#[test]
fn what_an_encoder_cannot_do_is_refused_by_name() {
    let long = json!({"model": "bert", "input": "ember ".repeat(60)});
    let answer = server().post("/v1/embeddings", &long);
    assert!(answer.body.contains("reads at most 24"), "{}", answer.body);
    assert_eq!(answer.error(400).2, "context_length_exceeded");
    for (input, param) in [
        (json!([]), "input"),
        (json!([5, -1]), "input"),
        (json!([5, "x"]), "input"),
        (json!([[]]), "input"),
        (json!({"a": 1}), "input"),
        (json!([[9999]]), "input"),
        (json!(vec!["x"; 2049]), "input"),
    ] {
        let answer = server().post("/v1/embeddings", &json!({"model": "bert", "input": input}));
        assert_eq!(answer.error(400).1.as_deref(), Some(param), "{input}");
    }
    let unknown = json!({"model": "bert", "input": "x", "prompt_name": "passage"});
    let answer = server().post("/v1/embeddings", &unknown);
    assert!(answer.status == 400 && answer.body.contains("it has document, query"), "{}", answer.body);
    let none = json!({"model": MODEL, "input": "x", "prompt_name": "query"});
    let answer = server().post("/v1/embeddings", &none);
    assert!(answer.status == 400 && answer.body.contains("no prompt query: it has none"), "{}", answer.body);

    let message = json!([{"role": "user", "content": "Hello"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"model": "bert", "messages": message})),
        ("/v1/messages", json!({"model": "bert", "messages": message, "max_tokens": 4})),
        ("/v1/responses", json!({"model": "bert", "input": "Hello"})),
        ("/v1/completions", json!({"model": "bert", "prompt": "Hello"})),
        ("/completion", json!({"model": "bert", "prompt": "Hello"})),
        ("/infill", json!({"model": "bert", "input_prefix": "a", "input_suffix": "b"})),
        ("/apply-template", json!({"model": "bert", "messages": message})),
    ] {
        let answer = server().post(path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(answer.body.contains("`bert` is a text encoder"), "{path}: {}", answer.body);
        assert!(answer.body.contains("wrong_model_kind"), "{path}: {}", answer.body);
    }
}

#[test]
fn models_tell_their_kind() {
    let list = server().get("/v1/models").json(200);
    let kinds: Vec<(&str, &str)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), model["kind"].as_str().unwrap()))
        .collect();
    assert_eq!(
        kinds,
        [("bert", "encoder"), ("nomic-bert", "encoder"), ("roberta", "encoder"), (MODEL, "text")]
    );
    assert_eq!(list["data"][0]["meta"]["n_ctx"], 24);
    assert_eq!(server().get("/props?model=bert").json(200)["kind"], "encoder");
    assert_eq!(server().get("/slots?model=bert").json(200), json!([]));
    assert_eq!(server().get("/health").json(200)["models"], 4);
    let metrics = server().get("/metrics");
    assert!(metrics.body.contains("brasa:memory_bytes{model_name=\"bert\",part=\"weights\"}"));
    let ids = server().post("/tokenize", &json!({"model": "bert", "content": "Ember", "add_special": true}));
    let ids = ids.json(200)["tokens"].clone();
    assert_eq!(ids, golden("bert")["ids"][2]);
    let text = server().post("/detokenize", &json!({"model": "bert", "tokens": ids})).json(200);
    assert!(text["content"].as_str().unwrap().contains("ember"), "{text}");
}

/// Encoders of a folder are known as such before they are loaded, and parts of a model are no models.
#[test]
fn a_folders_encoders_are_loaded_when_they_are_asked_for() {
    let server = Running::start(ServerOptions {
        models: Vec::new(),
        models_dir: Some(models().join("random-encoders")),
        max_loaded: 1,
        ..options()
    });
    let entries = || server.get("/v1/models").json(200)["data"].as_array().unwrap().clone();
    assert!(entries().iter().all(|model| model["kind"] == "encoder"), "{:?}", entries());
    assert!(!entries().iter().any(|model| model["id"].as_str().unwrap().contains("Dense")));
    let ask = |model: &str| server.post("/v1/embeddings", &json!({"model": model, "input": "x"})).json(200);
    ask("gte");
    ask("roberta");
    let status =
        |id: &str| entries().iter().find(|model| model["id"] == id).unwrap()["status"]["value"].clone();
    // One at a time: the first has made room.
    until("the first sleeps", || status("gte") == "sleeping");
    assert_eq!(status("roberta"), "loaded");
    server.stop();
}

#[test]
fn documents_are_judged_by_a_cross_encoder() {
    let judges = ServerOptions {
        models: Vec::new(),
        models_dir: Some(models().join("random-encoders")),
        load: LoadOptions { precision: Precision::Reference, ..options().load },
        ..options()
    };
    let server = Running::start(judges);
    let path = models().join("random-encoders/xlm-roberta-judge/pairs.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let scores = floats(&golden["scores"]);
    let body = json!({"model": "xlm-roberta-judge", "query": golden["query"], "documents": golden["documents"],
        "truncate": true});
    let answer = server.post("/v1/rerank", &body).json(200);
    let results = answer["results"].as_array().unwrap();
    assert_eq!((results.len(), &answer["model"]), (scores.len(), &json!("xlm-roberta-judge")));
    let score = |result: &Value| result["relevance_score"].as_f64().unwrap() as f32;
    assert!(results.is_sorted_by(|a, b| score(a) >= score(b)));
    let in_order: Vec<f32> = (0..scores.len())
        .map(|index| score(results.iter().find(|result| result["index"] == index).unwrap()))
        .collect();
    let comparison = compare(&in_order, &scores);
    assert!(comparison.within(Tolerance(1e-4)), "{comparison}");
    let tokens: usize =
        golden["ids"].as_array().unwrap().iter().map(|ids| ids.as_array().unwrap().len()).sum();
    assert_eq!(answer["usage"]["total_tokens"], tokens);

    let mut whole = body.clone();
    whole["truncate"] = false.into();
    assert_eq!(server.post("/v1/rerank", &whole).error(400).2, "context_length_exceeded");
    let ask =
        |model: &str| server.post("/v1/rerank", &json!({"model": model, "query": "a", "documents": ["b"]}));
    assert!(ask("bert").body.contains("has no head"), "{}", ask("bert").body);
    assert_eq!(ask("bert").status, 400);
    server.stop();
}

/// A language model that embeds follows its files too: prompts by name, and an end that stays where a text is cut.
#[test]
fn a_language_model_has_prompts() {
    let path = models().join("random-embedders/qwen3-embedding");
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(path.join("embeddings.json")).unwrap()).unwrap();
    let load = LoadOptions { precision: Precision::Reference, context: Some(128), ..options().load };
    let models = vec![ModelSource { id: "qwen3".into(), data: ModelData::Path(path) }];
    let server = Running::start(ServerOptions { models, load, ..options() });
    for (prompt, expected) in golden["prompted"].as_object().unwrap() {
        let body = json!({"input": golden["texts"], "prompt_name": prompt});
        check(&server.post("/v1/embeddings", &body).json(200), expected);
    }
    check(&server.post("/v1/embeddings", &json!({"input": golden["texts"]})).json(200), &golden["vectors"]);
    let long = json!({"input": "ember ".repeat(200), "truncate": true});
    assert_eq!(server.post("/v1/embeddings", &long).json(200)["usage"]["prompt_tokens"], 128);
    server.stop();
}
