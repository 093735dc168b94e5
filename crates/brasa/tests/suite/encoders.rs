//! Encoders and cross-encoders against sentence-transformers, together as alone, and what they refuse. The checkpoints and their vectors are made by
//! `tools/golden/models/random_encoders.py`.

use std::ops::ControlFlow;
use std::path::Path;

use brasa::engine::EngineError;
use brasa::{
    EmbedOptions, Embedder, EmbeddingNorm, Encoder, Error, LoadOptions, Model, Pooling, Precision,
    RequestOptions, RerankOptions, Reranker, TokensOptions,
};
use brasa_convert::{Options, Recipe, convert};
use brasa_formats::Existing;
use brasa_golden::folder;
use brasa_graph::testing::{Tolerance, compare};
use serde_json::Value;

struct Golden {
    texts: Vec<String>,
    ids: Vec<Vec<u32>>,
    vectors: Vec<Vec<f32>>,
    query: Option<Vec<Vec<f32>>>,
}

fn lists<T>(value: &Value, read: impl Fn(&Value) -> T) -> Vec<Vec<T>> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|list| list.as_array().unwrap().iter().map(&read).collect())
        .collect()
}

fn golden(name: &str) -> Golden {
    read_golden(&folder("random-encoders").join(name).join("embeddings.json"))
}

fn read_golden(path: &Path) -> Golden {
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let float = |x: &Value| x.as_f64().unwrap() as f32;
    Golden {
        texts: file["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().into()).collect(),
        ids: lists(&file["ids"], |id| id.as_u64().unwrap() as u32),
        vectors: lists(&file["vectors"], float),
        query: file.get("query").map(|query| lists(query, float)),
    }
}

fn exact() -> LoadOptions {
    LoadOptions { precision: Precision::Reference, strict: true, ..LoadOptions::default() }
}

fn load(name: &str, options: &LoadOptions) -> Encoder {
    Encoder::load(folder("random-encoders").join(name), options).unwrap()
}

fn tokens(encoder: &Encoder, texts: &[String], options: &TokensOptions) -> Vec<Vec<u32>> {
    texts.iter().map(|text| encoder.tokens_with(text, options).unwrap()).collect()
}

fn all(encoder: &Encoder, texts: Vec<Vec<u32>>, options: &EmbedOptions) -> Vec<Vec<f32>> {
    encoder.embed(texts, options).unwrap().map(Result::unwrap).collect()
}

/// The length that the checkpoint's own modules give a vector.
fn own_norm(name: &str) -> EmbeddingNorm {
    if name == "gte" { EmbeddingNorm::None } else { EmbeddingNorm::Euclidean }
}

/// The bound where prompts are products of bf16. The random ModernBERTs feel the rounding of queries the most: 2.8e-2.
fn fast_bound(name: &str) -> f32 {
    if name.starts_with("modernbert") { 4e-2 } else { 2e-2 }
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    for name in ["bert", "gte", "jina-v2", "jina-v2-code", "jina-v3", "modernbert", "nomic-bert", "roberta"] {
        let golden = golden(name);
        let options = EmbedOptions { norm: own_norm(name), ..EmbedOptions::default() };
        for (load_options, bound) in [(exact(), 1e-4), (LoadOptions::default(), fast_bound(name))] {
            let encoder = load(name, &load_options);
            assert_eq!(encoder.warnings(), Vec::<String>::new());
            let unprompted = if name == "nomic-bert" { Some("document".into()) } else { None };
            let plain = TokensOptions { prompt: unprompted, truncate: false };
            assert_eq!(tokens(&encoder, &golden.texts, &plain), golden.ids, "{name}");
            let cut = TokensOptions { truncate: true, ..TokensOptions::default() };
            let found = all(&encoder, tokens(&encoder, &golden.texts, &cut), &options);
            let comparison = compare(&found.concat(), &golden.vectors.concat());
            println!("{name}: {comparison}");
            assert!(comparison.within(Tolerance(bound)), "{name}: {comparison}");
            let query = TokensOptions { prompt: Some("query".into()), truncate: true };
            if let Some(expected) = &golden.query {
                let found = all(&encoder, tokens(&encoder, &golden.texts, &query), &options);
                let comparison = compare(&found.concat(), &expected.concat());
                assert!(comparison.within(Tolerance(bound)), "{name}, query: {comparison}");
            } else {
                let error = encoder.tokens_with("x", &query).unwrap_err().to_string();
                assert!(error.contains("no prompt query"), "{error}");
            }
        }
    }
}

/// Files that llama.cpp's own script has written, with the tokens and vectors that llama.cpp makes of them
/// (`tools/golden/models/gguf_encoders.py`). It computes GELU by a table of f16, which is what the first bound is for.
#[test]
fn files_of_llama_cpp_have_its_tokens_and_vectors() {
    for (name, pooling, bound) in [
        ("bert", Pooling::First, 1e-3),
        ("jina-bert-v2", Pooling::Mean, 1e-3),
        ("modern-bert", Pooling::First, 2e-3),
        ("nomic-bert", Pooling::Mean, 1e-4),
        ("nomic-bert-moe", Pooling::Mean, 1e-3),
        ("roberta", Pooling::Mean, 1e-3),
        ("xlm-roberta", Pooling::Mean, 1e-3),
    ] {
        let golden = read_golden(&folder("gguf-encoders").join(format!("{name}.json")));
        let path = folder("gguf-encoders").join(format!("{name}.gguf"));
        for (options, bound) in [(exact(), bound), (LoadOptions::default(), 2e-2)] {
            let encoder = Encoder::load(&path, &options).unwrap();
            assert_eq!(encoder.warnings(), Vec::<String>::new(), "{name}");
            assert_eq!(encoder.pooling(), pooling, "{name}");
            let texts = tokens(&encoder, &golden.texts, &TokensOptions::default());
            assert_eq!(texts, golden.ids, "{name}");
            let found = all(&encoder, texts, &EmbedOptions::default());
            let comparison = compare(&found.concat(), &golden.vectors.concat());
            println!("{name}: {comparison}");
            assert!(comparison.within(Tolerance(bound)), "{name}: {comparison}");
        }
    }
}

/// Files that we quantise, with llama.cpp's vectors of the same files (`tools/golden/models/gguf_encoder_types.py`). It rounds what it
/// multiplies by quantised matrices to 8 bits, and by BF16 to BF16.
#[test]
fn files_that_we_quantise_have_the_vectors_of_llama_cpp() {
    let golden = std::fs::read_to_string(folder("gguf-encoders").join("types.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let path = std::env::temp_dir().join(format!("brasa-encoder-types-{}.gguf", std::process::id()));
    for (key, vectors) in golden.as_object().unwrap() {
        let (name, kind) = key.split_once('.').unwrap();
        let folders = if name == "xlm-roberta" { "gguf-encoders" } else { "random-encoders" };
        let recipe = Recipe::parse(kind).unwrap();
        let options = Options { existing: Existing::Replace, ..Options::new(recipe) };
        convert(&folder(folders).join(name), &path, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        let encoder = Encoder::load(&path, &exact()).unwrap();
        let golden = read_golden(&folder("gguf-encoders").join(format!("{name}.json")));
        let expected = lists(vectors, |x| x.as_f64().unwrap() as f32).concat();
        let found = all(&encoder, golden.ids, &EmbedOptions::default()).concat();
        let comparison = compare(&found, &expected);
        println!("{key}: {comparison}");
        let bound = match kind {
            "F16" => 1e-3,
            "BF16" => 1e-2,
            _ => 2e-2,
        };
        assert!(comparison.within(Tolerance(bound)), "{key}: {comparison}");
    }
    let _ = std::fs::remove_file(&path);
}

/// Steps of few rows, jobs that take turns, and the longest text first change nothing, bit for bit.
#[test]
fn texts_together_are_texts_alone() {
    let golden = golden("nomic-bert");
    let options =
        LoadOptions { chunk: Some(1), context: Some(50), deterministic: true, ..LoadOptions::default() };
    let encoder = load("nomic-bert", &options);
    let cut = TokensOptions { truncate: true, ..TokensOptions::default() };
    let texts = tokens(&encoder, &golden.texts, &cut);
    for pooling in [Pooling::First, Pooling::Mean, Pooling::Last, Pooling::None] {
        let options = EmbedOptions { pooling: Some(pooling), ..EmbedOptions::default() };
        let alone: Vec<Vec<f32>> =
            texts.iter().flat_map(|text| all(&encoder, vec![text.clone()], &options)).collect();
        let many: Vec<Vec<u32>> = texts.iter().cycle().take(64).cloned().collect();
        let jobs: Vec<_> = (0..3).map(|_| encoder.embed(many.clone(), &options).unwrap()).collect();
        for job in jobs {
            let done = std::iter::successors(Some(0), |&done| Some(job.wait_beyond(done)));
            assert_eq!(
                done.take_while(|&done| done < many.len()).last().map(|done| done < many.len()),
                Some(true)
            );
            let found: Vec<Vec<f32>> = job.map(Result::unwrap).collect();
            let expected: Vec<Vec<f32>> = alone.iter().cycle().take(64).cloned().collect();
            assert_eq!(found, expected, "{pooling:?}");
        }
    }
}

/// Without pooling a text has the state of each token, of which the other ways make their vectors.
#[test]
fn states_that_are_not_pooled_are_those_that_are() {
    let golden = golden("nomic-bert");
    let encoder = load("nomic-bert", &exact());
    let texts =
        tokens(&encoder, &golden.texts, &TokensOptions { truncate: true, ..TokensOptions::default() });
    let raw = |pooling| {
        let options =
            EmbedOptions { pooling: Some(pooling), norm: EmbeddingNorm::None, ..EmbedOptions::default() };
        all(&encoder, texts.clone(), &options)
    };
    let ends = raw(Pooling::First).into_iter().zip(raw(Pooling::Last));
    for ((states, (first, last)), text) in raw(Pooling::None).into_iter().zip(ends).zip(&texts) {
        assert_eq!(states.len(), text.len() * first.len());
        assert!(states.starts_with(&first) && states.ends_with(&last));
    }
}

#[test]
fn vectors_are_cut_only_to_declared_lengths() {
    let golden = golden("roberta");
    let encoder = load("roberta", &exact());
    assert_eq!((encoder.dimensions(), encoder.matryoshka_dimensions()), (24, &[8, 16, 24][..]));
    let texts = tokens(&encoder, &golden.texts, &TokensOptions::default());
    let cut_to = |dimensions| EmbedOptions { dimensions: Some(dimensions), ..EmbedOptions::default() };
    let found = all(&encoder, texts.clone(), &cut_to(8));
    for (found, whole) in found.iter().zip(&golden.vectors) {
        let length = whole[..8].iter().map(|x| x * x).sum::<f32>().sqrt();
        let expected: Vec<f32> = whole[..8].iter().map(|x| x / length).collect();
        assert!(compare(found, &expected).within(Tolerance(1e-4)));
    }
    assert_eq!(
        all(&encoder, texts.clone(), &cut_to(24)),
        all(&encoder, texts.clone(), &EmbedOptions::default())
    );
    let error = encoder.embed(texts, &cut_to(9)).unwrap_err().to_string();
    assert!(error.contains("8, 16, 24"), "{error}");
    let other = load("bert", &exact());
    let error = other.embed(vec![vec![2, 3]], &cut_to(8)).unwrap_err().to_string();
    assert!(error.contains("mean nothing when cut"), "{error}");
}

#[test]
fn what_cannot_be_embedded_is_refused() {
    let encoder = load("bert", &LoadOptions::default());
    assert_eq!((encoder.context(), encoder.pooling()), (24, Pooling::First));
    let refuse = |texts| encoder.embed(texts, &EmbedOptions::default()).unwrap_err();
    assert!(matches!(refuse(vec![vec![]]), Error::Engine(EngineError::EmptyPrompt)));
    let long = refuse(vec![vec![5; 4], vec![5; 25]]);
    assert!(matches!(long, Error::Engine(EngineError::TextTooLong { tokens: 25, context: 24 })));
    assert!(matches!(refuse(vec![vec![384]]), Error::Engine(EngineError::UnknownToken { id: 384, .. })));
    let max = EmbedOptions { pooling: Some(Pooling::Other("max")), ..EmbedOptions::default() };
    assert!(encoder.embed(vec![vec![5]], &max).unwrap_err().to_string().contains("max pooling"));
    assert!(encoder.embed(Vec::new(), &EmbedOptions::default()).unwrap().next().is_none());
    encoder.close();
    let closed = encoder.embed(vec![vec![5]], &EmbedOptions::default()).unwrap_err();
    assert!(matches!(closed, Error::Engine(EngineError::Closed)), "{closed}");

    let narrow = LoadOptions { max_waiting: 1, ..LoadOptions::default() };
    let encoder = load("gte", &narrow);
    let many = encoder.embed(vec![vec![5; 90]; 300], &EmbedOptions::default()).unwrap();
    let full = encoder.embed(vec![vec![5]], &EmbedOptions::default()).unwrap_err();
    assert!(matches!(full, Error::Engine(EngineError::QueueFull { waiting: 1 })), "{full}");
    // A dropped request gives its place back at the next step.
    drop(many);
    let again = (0..).find_map(|_| {
        std::thread::yield_now();
        encoder.embed(vec![vec![5]], &EmbedOptions::default()).ok()
    });
    assert_eq!(again.unwrap().count(), 1);
}

#[test]
fn a_file_is_loaded_as_what_it_is() {
    let go_on = |_| std::ops::ControlFlow::Continue(());
    let load = |name: &str| Embedder::load_with_progress(folder(name), &LoadOptions::default(), go_on);
    assert!(matches!(load("random-encoders/gte").unwrap(), Embedder::Encoder(_)));
    assert!(matches!(load("tiny-llama").unwrap(), Embedder::Decoder(_)));
    let error = Model::load(folder("random-encoders/bert"), &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("bert is a text encoder"), "{error}");
    let inspection = brasa::formats::Inspection::open(folder("random-encoders/bert")).unwrap();
    assert_eq!(brasa::verify(&inspection), brasa::Verdict::default());
}

/// A query, documents, and what sentence-transformers' `CrossEncoder` makes of each pair.
struct Pairs {
    query: String,
    documents: Vec<String>,
    scores: Vec<f32>,
    tokens: usize,
}

fn pairs(name: &str) -> Pairs {
    let path = folder("random-encoders").join(name).join("pairs.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let texts = |key: &str| file[key].as_array().unwrap().iter();
    Pairs {
        query: file["query"].as_str().unwrap().into(),
        documents: texts("documents").map(|text| text.as_str().unwrap().into()).collect(),
        scores: texts("scores").map(|score| score.as_f64().unwrap() as f32).collect(),
        tokens: texts("ids").map(|ids| ids.as_array().unwrap().len()).sum(),
    }
}

const CUT: RerankOptions =
    RerankOptions { instruction: None, raw: false, truncate: true, request: RequestOptions::DEFAULT };

#[test]
fn scores_are_those_of_a_cross_encoder() {
    for name in [
        "bert-judge",
        "gte-judge",
        "jina-reranker-v2",
        "jina-v2-judge",
        "modernbert-judge",
        "modernbert-mean-judge",
        "xlm-roberta-judge",
    ] {
        let Pairs { query, documents, scores, tokens } = pairs(name);
        for (load_options, bound) in [(exact(), 1e-4), (LoadOptions::default(), fast_bound(name))] {
            let path = folder("random-encoders").join(name);
            let reranker = Reranker::load(path, &load_options).unwrap();
            assert!(matches!(reranker, Reranker::Encoder(_)));
            let found = reranker.rerank(&query, &documents, &CUT).unwrap();
            assert_eq!(found.tokens(), tokens, "{name}");
            let found: Vec<f32> = found.map(Result::unwrap).collect();
            let comparison = compare(&found, &scores);
            println!("{name}: {comparison}");
            assert!(comparison.within(Tolerance(bound)), "{name}: {comparison}");
            let raw = RerankOptions { raw: true, ..CUT };
            let raw = reranker.rerank(&query, &documents, &raw).unwrap().map(Result::unwrap);
            for (logit, score) in raw.zip(found) {
                let expected = 1.0 / (1.0 + (-logit).exp());
                let is_identity = name == "xlm-roberta-judge";
                assert!(
                    (if is_identity { logit } else { expected } - score).abs() < 1e-6,
                    "{logit}, {score}"
                );
            }
        }
    }
}

/// Heads that llama.cpp's own script has written, which read a mean or the first state (`tools/golden/models/gguf_encoders.py`).
/// llama.cpp computes GELU by its tanh form and a table of f16.
#[test]
fn files_of_llama_cpp_have_its_scores() {
    for name in ["modern-bert-judge", "modern-bert-first-judge", "xlm-roberta-judge"] {
        let golden = std::fs::read_to_string(folder("gguf-encoders").join(format!("{name}.json"))).unwrap();
        let golden: Value = serde_json::from_str(&golden).unwrap();
        let texts: Vec<String> = serde_json::from_value(golden["texts"].clone()).unwrap();
        let scores: Vec<f32> = serde_json::from_value(golden["scores"].clone()).unwrap();
        let path = folder("gguf-encoders").join(format!("{name}.gguf"));
        let reranker = Reranker::load(path, &exact()).unwrap();
        let raw = RerankOptions { raw: true, ..CUT };
        let found: Vec<f32> =
            reranker.rerank(&texts[0], &texts[1..], &raw).unwrap().map(Result::unwrap).collect();
        let comparison = compare(&found, &scores);
        println!("{name}: {comparison}");
        assert!(comparison.within(Tolerance(2e-3)), "{name}: {comparison}");
    }
}

#[test]
fn what_cannot_be_judged_is_refused() {
    let Pairs { query, documents, .. } = pairs("bert-judge");
    let encoder = load("bert-judge", &LoadOptions::default());
    assert_eq!(encoder.labels(), Some(1));
    let whole = RerankOptions { truncate: false, ..CUT };
    let error = encoder.rerank(&query, &documents, &whole).unwrap_err();
    assert!(matches!(error, Error::Engine(EngineError::TextTooLong { context: 96, .. })), "{error}");
    let told = RerankOptions { instruction: Some("Find coal.".into()), ..CUT };
    let error = encoder.rerank(&query, &documents, &told).unwrap_err().to_string();
    assert!(error.contains("no instruction"), "{error}");
    let embeds = load("bert", &LoadOptions::default());
    let error = embeds.rerank(&query, &documents, &CUT).unwrap_err().to_string();
    assert!(embeds.labels().is_none() && error.contains("this bert has no head"), "{error}");
    let asked = Reranker::load(folder("tiny-llama"), &LoadOptions::default()).unwrap();
    let error = asked.rerank(&query, &documents, &CUT).unwrap_err().to_string();
    assert!(error.contains("are not cut"), "{error}");
}
