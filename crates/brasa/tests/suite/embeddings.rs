//! Embeddings against transformers, together as alone, and beside generations; and how documents are judged.

use brasa::engine::EngineError;
use brasa::tokenizer::{AddSpecial, ParseSpecial};
use brasa::{
    EmbedOptions, EmbeddingNorm, Error, GenerateOptions, LoadOptions, Message, Model, Pooling, Precision,
    RequestOptions, RerankOptions,
};
use brasa_golden::folder;
use brasa_graph::testing::{Tolerance, compare};
use serde_json::Value;

/// Made by `tools/golden/models/embeddings.py`.
const GOLDEN: &str = include_str!("../golden/embeddings.json");

struct Case {
    model: String,
    ids: Vec<u32>,
    last: Vec<f32>,
    mean: Vec<f32>,
}

impl Case {
    fn read(case: &Value) -> Self {
        let numbers = |name: &str| case[name].as_array().unwrap().iter();
        let floats = |name: &str| numbers(name).map(|x| x.as_f64().unwrap() as f32).collect();
        Self {
            model: case["model"].as_str().unwrap().to_owned(),
            ids: numbers("ids").map(|id| id.as_u64().unwrap() as u32).collect(),
            last: floats("last"),
            mean: floats("mean"),
        }
    }
}

fn options() -> LoadOptions {
    LoadOptions { chunk: Some(16), max_sequences: Some(3), deterministic: true, ..LoadOptions::default() }
}

fn small() -> Model {
    Model::load(folder("tiny-llama"), &options()).unwrap()
}

fn pooled(pooling: Pooling, norm: EmbeddingNorm) -> EmbedOptions {
    EmbedOptions { pooling: Some(pooling), norm, ..EmbedOptions::default() }
}

fn one(model: &Model, ids: &[u32], options: &EmbedOptions) -> Vec<f32> {
    model.embed([ids.to_vec()], options).unwrap().next().unwrap().unwrap()
}

#[test]
fn embeddings_are_those_of_transformers() {
    let cases: Vec<Value> = serde_json::from_str(GOLDEN).unwrap();
    let cases: Vec<Case> = cases.iter().map(Case::read).collect();
    for cases in cases.chunk_by(|a, b| a.model == b.model) {
        let exact = LoadOptions { precision: Precision::Reference, ..options() };
        for (load, bound) in [(exact, Tolerance(1e-4)), (options(), Tolerance(2e-2))] {
            let model = Model::load(folder(&cases[0].model), &load).unwrap();
            assert_eq!(model.pooling(), Pooling::Last);
            for case in cases {
                for (pooling, expected) in [(Pooling::Last, &case.last), (Pooling::Mean, &case.mean)] {
                    let found = one(&model, &case.ids, &pooled(pooling, EmbeddingNorm::None));
                    let comparison = compare(&found, expected);
                    assert!(comparison.within(bound), "{} {pooling:?}: {comparison}", case.model);
                }
            }
        }
    }
}

/// Without pooling a text has the state of each token, of which the other ways make their vectors.
#[test]
fn states_that_are_not_pooled_are_those_that_are() {
    let (model, text) = (small(), [7, 8, 5, 30, 9, 61, 4]);
    let states = one(&model, &text, &pooled(Pooling::None, EmbeddingNorm::None));
    let width = model.info().hidden_size.unwrap();
    assert_eq!(states.len(), text.len() * width);
    assert_eq!(states[6 * width..], one(&model, &text, &pooled(Pooling::Last, EmbeddingNorm::None)));
    let sum = |at: usize| states.chunks(width).map(|state| f64::from(state[at])).sum::<f64>();
    let mean: Vec<f32> = (0..width).map(|at| (sum(at) / 7.0) as f32).collect();
    assert_eq!(mean, one(&model, &text, &pooled(Pooling::Mean, EmbeddingNorm::None)));
    let scaled = one(&model, &text, &pooled(Pooling::None, EmbeddingNorm::Euclidean));
    for (state, scaled) in states.chunks(width).zip(scaled.chunks(width)) {
        let length = state.iter().map(|x| x * x).sum::<f32>().sqrt();
        let expected: Vec<f32> = state.iter().map(|x| x / length).collect();
        assert!(compare(scaled, &expected).within(Tolerance(1e-6)));
    }
    let cut = EmbedOptions { dimensions: Some(width), ..pooled(Pooling::None, EmbeddingNorm::None) };
    let refused = model.embed([text.to_vec()], &cut).err().unwrap().to_string();
    assert!(refused.contains("single tokens"), "{refused}");
}

#[test]
fn texts_together_have_the_embeddings_that_each_has_alone() {
    let model = small();
    let texts: Vec<Vec<u32>> = (0..9).map(|n| (0..=13 * n).map(|i| 4 + (i * i + n) % 90).collect()).collect();
    let generate = || {
        let options = GenerateOptions { max_tokens: Some(40), ..GenerateOptions::default() };
        model.generate_ids(texts[3].clone(), &options).unwrap()
    };
    let alone_text = generate().into_text().unwrap();
    for pooling in [Pooling::Last, Pooling::Mean] {
        let options = pooled(pooling, EmbeddingNorm::Euclidean);
        let alone: Vec<_> = texts.iter().map(|text| one(&model, text, &options)).collect();
        let beside = generate();
        let mut asked = texts.clone();
        asked.insert(4, Vec::new());
        let mut together: Vec<_> = model.embed(asked, &options).unwrap().collect();
        assert!(matches!(together.remove(4), Err(Error::Engine(EngineError::EmptyPrompt))));
        let together: Vec<_> = together.into_iter().map(Result::unwrap).collect();
        assert!(together == alone, "{pooling:?}");
        assert_eq!(beside.into_text().unwrap(), alone_text);
        for vector in &alone {
            let length: f64 = vector.iter().map(|&x| f64::from(x).powi(2)).sum();
            assert!((length - 1.0).abs() < 1e-6, "{length}");
        }
    }
}

#[test]
fn pooling_that_is_not_computed_is_refused_by_name() {
    let options = pooled(Pooling::Other("max"), EmbeddingNorm::None);
    let refused = small().embed([vec![5]], &options).err().unwrap().to_string();
    assert!(refused.contains("max pooling"), "{refused}");
}

/// Relevance is the share of "yes" in what the model would answer, for each document by itself.
#[test]
fn documents_are_judged_by_the_models_answer() {
    let model = Model::load(folder("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf"), &options()).unwrap();
    let documents = ["An ember is a glowing piece of coal.".to_owned(), "Rivers flow to the sea.".to_owned()];
    let ask = RerankOptions { instruction: Some("Find the definition.".into()), ..RerankOptions::default() };
    let prompts = model.rerank_prompts("What is an ember?", &documents, &ask).unwrap();
    assert!(prompts.tokens() > 60);
    let scores: Vec<f32> = model.rerank(prompts).map(Result::unwrap).collect();
    let word = |word| model.tokenizer().encode(word, AddSpecial::No, ParseSpecial::No).unwrap();
    let words = [word("yes"), word("no")];
    assert!(words.iter().any(|word| word.len() > 1), "this vocabulary has to spell an answer");
    for (document, score) in documents.iter().zip(scores) {
        let asked =
            format!("<Instruct>: Find the definition.\n<Query>: What is an ember?\n<Document>: {document}");
        let system = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".";
        let messages = [Message::new("system", system), Message::new("user", asked)];
        let chat = brasa::tokenizer::ChatOptions { thinking: Some(false), ..Default::default() };
        let prompt = model.chat_prompt_with(&messages, &chat).unwrap();
        let probability = |word: &Vec<u32>| {
            let mut rows = Vec::new();
            model
                .score(&[&prompt[..], word].concat(), &RequestOptions::DEFAULT, |row| rows.push(row.to_vec()))
                .unwrap();
            let of = |(logits, &id): (&Vec<f32>, &u32)| {
                let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
                f64::from(logits[id as usize]).exp() / sum
            };
            rows[prompt.len() - 1..].iter().zip(word).map(of).product::<f64>()
        };
        let [yes, no] = words.each_ref().map(probability);
        assert!((f64::from(score) - yes / (yes + no)).abs() < 1e-5, "{score} of {yes} and {no}");
    }
    // A model with both words, whose template knows no system.
    let model = Model::load(folder("tiny-gemma3"), &options()).unwrap();
    let prompts = model.rerank_prompts("What is an ember?", &documents, &RerankOptions::default()).unwrap();
    let scores: Vec<f32> = model.rerank(prompts).map(Result::unwrap).collect();
    assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)), "{scores:?}");
}
