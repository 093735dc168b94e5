//! `brasa embed` on text encoders, against the vectors of sentence-transformers that lie beside them.

use std::path::Path;

use serde_json::Value;

use crate::command::{brasa, fails, model, models, stderr, stdout};

fn golden(name: &str) -> Value {
    let path = models().join("random-encoders").join(name).join("embeddings.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn near(found: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len());
    let distance: f64 = found.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    let length: f64 = expected.iter().map(|x| x * x).sum();
    assert!((distance / length).sqrt() < bound, "{found:?}, expected {expected:?}");
}

/// A folder with a file of a golden file's texts, one JSON object a line.
fn texts(directory: &Path, golden: &Value) -> String {
    let lines: Vec<String> = golden["texts"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(
            |(n, text)| if n == 1 { text.to_string() } else { serde_json::json!({"text": text}).to_string() },
        )
        .collect();
    let path = directory.join("texts.jsonl");
    std::fs::write(&path, lines.join("\n\n") + "\n").unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn embed_gives_the_vectors_of_sentence_transformers() {
    let directory = tempfile::tempdir().unwrap();
    let (golden, model) = (golden("bert"), model("random-encoders/bert"));
    let path = texts(directory.path(), &golden);
    let common = ["embed", "-m", &model, "-f", &path, "--jsonl", "--truncate", "--precision", "reference"];
    for (query, expected) in [(false, &golden["vectors"]), (true, &golden["query"])] {
        let named = if query { &["--prompt-name", "query"][..] } else { &[] };
        let output = brasa(&[&common[..], named, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(found["pooling"], "cls");
        for (found, expected) in
            found["embeddings"].as_array().unwrap().iter().zip(expected.as_array().unwrap())
        {
            near(&floats(&found["embedding"]), &floats(expected), 1e-4);
        }
    }

    let npy = directory.path().join("vectors.npy");
    let save = [&common[..], &["--out", npy.to_str().unwrap()]].concat();
    let output = brasa(&save);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
    let bytes = std::fs::read(&npy).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
    assert!(String::from_utf8_lossy(&bytes[..128]).contains("'shape': (4, 32)"));
    let data = bytes[bytes.len() - 4 * 32 * 4..].as_chunks::<4>().0;
    let found: Vec<f64> = data.iter().map(|x| f64::from(f32::from_le_bytes(*x))).collect();
    let expected: Vec<f64> = golden["vectors"].as_array().unwrap().iter().flat_map(floats).collect();
    near(&found, &expected, 1e-4);
    assert!(fails(&save, 1).contains("--force"));
    assert!(brasa(&[&save[..], &["--force"]].concat()).status.success());
}

#[test]
fn what_an_encoder_cannot_do_is_refused_by_name() {
    let bert = model("random-encoders/bert");
    let pooled = |way: &str| stdout(&brasa(&["embed", "-m", &bert, "-p", "Ember", "--pooling", way]));
    assert_eq!(pooled("cls"), stdout(&brasa(&["embed", "-m", &bert, "-p", "Ember"])), "the model's own way");
    assert_ne!(pooled("cls"), pooled("mean"));
    for command in ["run", "generate", "logits"] {
        let message = fails(&[command, "-m", &bert, "-p", "Ember"], 1);
        assert!(message.contains("bert is a text encoder"), "{command}: {message}");
    }
    let long = "ember ".repeat(60);
    let message = fails(&["embed", "-m", &bert, "-p", &long], 1);
    assert!(message.contains("the encoder reads at most 24"), "{message}");
    let message = fails(&["embed", "-m", &bert, "-p", "x", "--prompt-name", "passage"], 1);
    assert!(message.contains("it has document, query"), "{message}");
    let message = fails(&["embed", "-m", &bert, "-p", "x", "--dimensions", "16"], 1);
    assert!(message.contains("32 dimensions"), "{message}");
    let roberta = model("random-encoders/roberta");
    let cut = stdout(&brasa(&["embed", "-m", &roberta, "-p", "x", "--dimensions", "16"]));
    assert_eq!(cut.split_whitespace().count(), 16);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bad.jsonl");
    std::fs::write(&path, "{\"text\": \"a\"}\n{\"title\": \"b\"}\n").unwrap();
    let message = fails(&["embed", "-m", &bert, "-f", path.to_str().unwrap(), "--jsonl"], 1);
    assert!(message.contains("line 2"), "{message}");
    assert!(brasa(&["inspect", &bert]).status.success());
}

#[test]
fn a_gguf_file_is_embedded_as_llama_cpp_embeds_it() {
    let path = models().join("gguf-encoders/xlm-roberta.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (texts, model) = (texts(directory.path(), &golden), model("gguf-encoders/xlm-roberta.gguf"));
    // A processor that multiplies in bf16 would be farther off.
    let output = brasa(&["embed", "-m", &model, "-f", &texts, "--jsonl", "--json", "--deterministic"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(found["pooling"], "mean");
    let found = found["embeddings"].as_array().unwrap();
    let expected = golden["vectors"].as_array().unwrap();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        near(&floats(&found["embedding"]), &floats(expected), 1e-3);
    }
}

#[test]
fn rerank_gives_the_scores_of_a_cross_encoder() {
    let path = models().join("random-encoders/bert-judge/pairs.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let documents: Vec<&str> =
        golden["documents"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let (judge, scores) = (model("random-encoders/bert-judge"), floats(&golden["scores"]));
    let query = golden["query"].as_str().unwrap();
    let common = ["rerank", "-m", &judge, "-q", query, "--truncate", "--precision", "reference"];
    let check = |output: std::process::Output| {
        assert!(output.status.success(), "{}", stderr(&output));
        let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let tokens = golden["ids"].as_array().unwrap().iter().map(|ids| ids.as_array().unwrap().len());
        assert_eq!((&found["query"], &found["tokens"]), (&golden["query"], &tokens.sum::<usize>().into()));
        let results = found["results"].as_array().unwrap().clone();
        assert!(results.is_sorted_by(|a, b| a["score"].as_f64() >= b["score"].as_f64()));
        for result in &results {
            let index = result["index"].as_u64().unwrap() as usize;
            assert_eq!(result["text"], documents[index]);
            near(&[result["score"].as_f64().unwrap()], &[scores[index]], 1e-4);
        }
        results
    };
    assert_eq!(check(brasa(&[&common[..], &documents, &["--json"]].concat())).len(), documents.len());
    let directory = tempfile::tempdir().unwrap();
    let lines = directory.path().join("lines.txt");
    std::fs::write(&lines, documents.join("\n\n")).unwrap();
    let file = ["-f", lines.to_str().unwrap(), "--json"];
    assert_eq!(check(brasa(&[&common[..], &file].concat())).len(), documents.len());
    let json: Vec<String> =
        documents.iter().map(|text| serde_json::json!({"text": text}).to_string()).collect();
    std::fs::write(&lines, json.join("\n")).unwrap();
    let best = check(brasa(&[&common[..], &file, &["--jsonl", "--top", "2"]].concat()));
    assert_eq!(best.len(), 2);
    let table = stdout(&brasa(&[&common[..], &documents].concat()));
    assert_eq!(table.lines().count(), documents.len());
    assert!(table.lines().next().unwrap().ends_with(best[0]["text"].as_str().unwrap()), "{table}");

    let whole = [&["rerank", "-m", &judge, "-q", query][..], &documents].concat();
    assert!(fails(&whole, 1).contains("the encoder reads at most 96"));
    let bert = model("random-encoders/bert");
    assert!(fails(&["rerank", "-m", &bert, "-q", "x", "y"], 1).contains("has no head"));
    assert!(
        fails(&["rerank", "-m", &judge, "-q", "x", "--instruction", "z", "y"], 1).contains("no instruction")
    );
    fails(&["rerank", "-m", &judge, "x"], 2);
    fails(&["rerank", "-m", &judge, "-q", "x", "-f", "/dev/null"], 2);
}
