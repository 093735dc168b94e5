//! `/v1/embeddings`, `/embedding` and `/v1/rerank`: the library's answers in the clients' forms.

use brasa::{EmbedOptions, EmbeddingNorm, Model, Pooling, RerankOptions};
use brasa_graph::testing::{Tolerance, compare};
use brasa_server::ServerOptions;
use serde_json::{Value, json};

use super::client::{Running, models, options, server};

fn model() -> Model {
    Model::load(models().join("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf"), &options().load).unwrap()
}

fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Base64 of little-endian f32, decoded by hand.
fn decoded(text: &str) -> Vec<f32> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let bits: Vec<u8> = text.trim_end_matches('=').bytes().map(value).collect();
    let bytes: Vec<u8> = bits
        .chunks(4)
        .flat_map(|chunk| {
            let word = chunk.iter().fold(0_u32, |word, &six| word << 6 | u32::from(six));
            let word = word << (6 * (4 - chunk.len()));
            word.to_be_bytes()[1..chunk.len()].to_vec()
        })
        .collect();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

#[test]
fn embeddings_are_the_librarys() {
    let model = model();
    let texts = ["An ember is a small piece of coal.", "A river is a stream of water.", "ember"];
    let ids: Vec<Vec<u32>> = texts.iter().map(|text| model.embedding_prompt(text).unwrap()).collect();
    let tokens: usize = ids.iter().map(Vec::len).sum();
    let expected: Vec<Vec<f32>> =
        model.embed(ids.clone(), &EmbedOptions::default()).unwrap().map(Result::unwrap).collect();
    let input = json!([texts[0], ids[1], [texts[2]]]);
    let answer = server().post("/v1/embeddings", &json!({"input": input, "model": "any"})).json(200);
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("lexicon")));
    assert_eq!(answer["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), 3);
    for (index, (item, expected)) in data.iter().zip(&expected).enumerate() {
        assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(index)));
        // The server's prompts may share pages that hold rounded keys and values; the library's had none to share.
        assert!(cosine(&floats(&item["embedding"]), expected) > 0.9999);
    }
    let body = json!({"input": texts[0], "encoding_format": "base64", "dimensions": expected[0].len()});
    let answer = server().post("/v1/embeddings", &body).json(200);
    let vector = decoded(answer["data"][0]["embedding"].as_str().unwrap());
    assert_eq!(vector.len(), expected[0].len());
    assert!(cosine(&vector, &expected[0]) > 0.9999);
    let native = server().post("/embedding", &json!({"content": texts[..2]})).json(200);
    assert!(cosine(&floats(&native[1]["embedding"][0]), &expected[1]) > 0.9999);
    let raw = server().post("/embeddings", &json!({"content": texts[0], "embd_normalize": -1})).json(200);
    let raw = floats(&raw[0]["embedding"][0]);
    let length = cosine(&raw, &raw).sqrt();
    assert!((length - 1.0).abs() > 0.01 && (cosine(&raw, &expected[0]) / length) > 0.9999, "{length}");
}

/// llama.cpp's form without pooling: a vector for each token, as long as the model makes it.
#[test]
fn vectors_of_tokens_are_the_librarys() {
    let model = model();
    let server = Running::start(ServerOptions { pooling: Some(Pooling::None), ..options() });
    let texts = ["An ember is a small piece of coal.", "ember"];
    let answer = server.post("/embedding", &json!({"content": texts})).json(200);
    let raw = EmbedOptions { norm: EmbeddingNorm::None, ..EmbedOptions::default() };
    for (index, text) in texts.iter().enumerate() {
        let ids = model.embedding_prompt(text).unwrap();
        let states = answer[index]["embedding"].as_array().unwrap();
        assert_eq!(states.len(), ids.len());
        let last = model.embed([ids], &raw).unwrap().next().unwrap().unwrap();
        let found = floats(&states[states.len() - 1]);
        assert!(compare(&found, &last).within(Tolerance(1e-3)));
    }
    let refused = server.post("/v1/embeddings", &json!({"input": "ember"})).json(400);
    assert!(refused["error"]["message"].as_str().unwrap().contains("/embedding"), "{refused}");
}

#[test]
fn wrong_requests_for_vectors_are_refused_by_name() {
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": {"a": 1}}), "input"),
        (json!({"input": [["ember"], {}]}), "input"),
        (json!({"input": [1, -1]}), "input"),
        (json!({"input": "x", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "x", "dimensions": 3}), "dimensions"),
        (json!({"input": "x", "dimensions": 0}), "dimensions"),
        (json!({"input": vec!["x"; 2049]}), "input"),
    ] {
        let answer = server().post("/v1/embeddings", &body);
        assert_eq!(answer.error(400).1.as_deref(), Some(param), "{body}");
    }
    let unknown_token = server().post("/v1/embeddings", &json!({"input": [9_999_999]}));
    assert_eq!(unknown_token.status, 400, "{}", unknown_token.body);
    let long = server().post("/v1/embeddings", &json!({"input": "ember ".repeat(2000)}));
    assert_eq!(long.status, 400, "{}", long.body);
    let norm = server().post("/embedding", &json!({"content": "x", "embd_normalize": 0}));
    assert_eq!(norm.error(400).1.as_deref(), Some("embd_normalize"));
    for (body, param) in [
        (json!({"documents": ["a"]}), "query"),
        (json!({"query": "a"}), "documents"),
        (json!({"query": "a", "documents": []}), "documents"),
        (json!({"query": "a", "documents": [7]}), "documents"),
        (json!({"query": "a", "documents": [{"title": "x"}]}), "documents"),
        (json!({"query": "a", "texts": "x"}), "texts"),
        (json!({"query": "a", "texts": ["x"], "raw_scores": 1}), "raw_scores"),
        (json!({"query": "a", "documents": ["x"], "top_n": -1}), "top_n"),
    ] {
        let answer = server().post("/v1/rerank", &body);
        assert_eq!(answer.error(400).1.as_deref(), Some(param), "{body}");
    }
}

#[test]
fn documents_come_best_first() {
    let model = model();
    let documents = ["A river is a stream of water.", "An ember is a small piece of coal.", "Seven."];
    let texts: Vec<String> = documents.iter().map(|&text| text.to_owned()).collect();
    let prompts = model.rerank_prompts("What is an ember?", &texts, &RerankOptions::default()).unwrap();
    let tokens = prompts.tokens();
    let expected: Vec<f32> = model.rerank(prompts).map(Result::unwrap).collect();
    let body = json!({"query": "What is an ember?", "documents": [documents[0], {"text": documents[1]}, documents[2]]});
    for path in ["/v1/rerank", "/rerank", "/reranking", "/v1/reranking"] {
        let answer = server().post(path, &body).json(200);
        assert_eq!(answer["usage"]["prompt_tokens"], tokens);
        let results = answer["results"].as_array().unwrap();
        assert_eq!(results.len(), 3);
        let score = |result: &Value| result["relevance_score"].as_f64().unwrap() as f32;
        for result in results {
            let index = result["index"].as_u64().unwrap() as usize;
            assert!((score(result) - expected[index]).abs() < 1e-3, "{result} {}", expected[index]);
        }
        assert!(results.is_sorted_by(|a, b| score(a) >= score(b)));
    }
    let raw = server()
        .post("/rerank", &json!({"query": "What is an ember?", "texts": documents, "raw_scores": true}));
    for result in raw.json(200).as_array().unwrap() {
        let index = result["index"].as_u64().unwrap() as usize;
        let odds = (f64::from(expected[index]) / (1.0 - f64::from(expected[index]))).ln();
        assert!((result["score"].as_f64().unwrap() - odds).abs() < 1e-2, "{result}, expected {odds}");
    }
    let mut few = body.clone();
    few["top_n"] = 1.into();
    few["return_documents"] = true.into();
    let few = server().post("/v1/rerank", &few).json(200);
    assert_eq!(few["results"].as_array().unwrap().len(), 1);
    let best = few["results"][0]["index"].as_u64().unwrap() as usize;
    assert_eq!(few["results"][0]["document"]["text"], documents[best]);
    let plain = server()
        .post("/rerank", &json!({"query": "What is an ember?", "texts": documents, "return_text": true}));
    let plain = plain.json(200);
    assert_eq!(plain.as_array().unwrap().len(), 3);
    assert_eq!((&plain[0]["index"], &plain[0]["text"]), (&json!(best), &json!(documents[best])));
    assert!(plain[0]["score"].is_number());
}
