//! Language models that embed, against sentence-transformers: prompts, pooling and dense layers of the files beside them. The checkpoints
//! and their vectors are made by `tools/golden/models/random_embedders.py`.

use brasa::{EmbedOptions, Embedder, LoadOptions, Model, Pooling, Precision, RerankOptions, TokensOptions};
use brasa_golden::folder;
use brasa_graph::testing::{Tolerance, compare};
use serde_json::Value;

fn load(name: &str, options: &LoadOptions) -> Embedder {
    let path = folder("random-embedders").join(name);
    Embedder::load_with_progress(path, options, |_| std::ops::ControlFlow::Continue(())).unwrap()
}

fn exact() -> LoadOptions {
    LoadOptions { precision: Precision::Reference, strict: true, ..LoadOptions::default() }
}

fn golden(name: &str) -> Value {
    let path = folder("random-embedders").join(name).join("embeddings.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn floats(vectors: &Value) -> Vec<f32> {
    let rows = vectors.as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
    rows.map(|x| x.as_f64().unwrap() as f32).collect()
}

fn check(name: &str, pooling: Pooling) {
    let golden = golden(name);
    let texts: Vec<&str> =
        golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    for (options, bound) in [(exact(), 1e-4), (LoadOptions::default(), 3e-2)] {
        let model = load(name, &options);
        assert_eq!((model.warnings(), model.pooling()), (&[][..], pooling), "{name}");
        let tokens = |options: &TokensOptions| -> Vec<Vec<u32>> {
            texts.iter().map(|text| model.tokens(text, options).unwrap()).collect()
        };
        let plain = tokens(&TokensOptions::default());
        assert_eq!(serde_json::to_value(&plain).unwrap(), golden["ids"], "{name}");
        let check = |ids: Vec<Vec<u32>>, expected: &Value, what: &str| {
            let vectors = model.embed(ids, &EmbedOptions::default()).unwrap();
            let found: Vec<f32> = vectors.flat_map(Result::unwrap).collect();
            let comparison = compare(&found, &floats(expected));
            println!("{name}, {what}: {comparison}");
            assert!(comparison.within(Tolerance(bound)), "{name}, {what}: {comparison}");
        };
        check(plain, &golden["vectors"], "no prompt");
        for (prompt, expected) in golden["prompted"].as_object().unwrap() {
            let options = TokensOptions { prompt: Some(prompt.clone()), truncate: false };
            check(tokens(&options), expected, prompt);
        }
    }
}

#[test]
fn qwen3_embedding() {
    check("qwen3-embedding", Pooling::Last);
}

#[test]
fn embedding_gemma() {
    check("embedding-gemma", Pooling::Mean);
}

/// A text that is cut keeps its end token, which is pooled.
#[test]
fn a_cut_text_keeps_its_end() {
    let model = load("qwen3-embedding", &LoadOptions { context: Some(32), ..LoadOptions::default() });
    let long = "ember ".repeat(100);
    let whole = model.tokens(&long, &TokensOptions::default()).unwrap();
    let cut = TokensOptions { prompt: Some("query".into()), truncate: true };
    let cut = model.tokens(&long, &cut).unwrap();
    assert!(
        whole.len() > 100 && cut.len() == 32 && cut.last() == whole.last(),
        "{} {}",
        whole.len(),
        cut.len()
    );
    assert!(model.embed(vec![cut], &EmbedOptions::default()).unwrap().all(|vector| vector.is_ok()));
    assert!(model.embed(vec![whole], &EmbedOptions::default()).unwrap().all(|vector| vector.is_err()));
    let error = model.tokens("x", &TokensOptions { prompt: Some("passage".into()), truncate: false });
    assert!(error.unwrap_err().to_string().contains("it has document, query"));
}

/// Judges the documents of `golden`, and compares with its scores of each name.
fn judge(model: &Model, golden: &Value, bound: f32, expected: &[(&str, Option<&str>)]) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let documents: Vec<String> = golden["documents"].as_array().unwrap().iter().map(text).collect();
    for &(scores, instruction) in expected {
        let options =
            RerankOptions { instruction: instruction.map(String::from), ..RerankOptions::default() };
        let query = golden["query"].as_str().unwrap();
        let prompts = model.rerank_prompts(query, &documents, &options).unwrap();
        let found: Vec<f32> = model.rerank(prompts).map(Result::unwrap).collect();
        let expected: Vec<f32> =
            golden[scores].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        let comparison = compare(&found, &expected);
        println!("{scores}: {comparison}");
        assert!(comparison.within(Tolerance(bound)), "{scores}: {comparison}");
        if bound > 1e-3 {
            // Prompts that are partly known from before are rounded otherwise.
            continue;
        }
        let raw = model
            .rerank_prompts(query, &documents, &RerankOptions { raw: true, ..options })
            .map(|prompts| model.rerank(prompts).map(Result::unwrap));
        for (logit, score) in raw.unwrap().zip(found) {
            assert!((1.0 / (1.0 + (-logit).exp()) - score).abs() < 1e-5, "{logit}, {score}");
        }
    }
}

/// With the module `LogitScore`, against sentence-transformers; without, against transformers as the model's card has it.
#[test]
fn qwen3_reranker() {
    let path = folder("random-embedders/qwen3-reranker");
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(path.join("pairs.json")).unwrap()).unwrap();
    let instruction = golden["instruction"].as_str();
    let plain = std::env::temp_dir().join(format!("brasa-plain-reranker-{}", std::process::id()));
    std::fs::create_dir_all(&plain).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(path.join(file), plain.join(file)).unwrap();
    }
    for (options, bound) in [(exact(), 1e-4), (LoadOptions::default(), 3e-2)] {
        let model = Model::load(&path, &options).unwrap();
        assert!(model.warnings().is_empty(), "{:?}", model.warnings());
        judge(&model, &golden, bound, &[("scores", None), ("instructed", instruction)]);
        judge(&Model::load(&plain, &options).unwrap(), &golden, bound, &[("plain", instruction)]);
    }
    std::fs::remove_dir_all(&plain).unwrap();
}
