//! Reads many texts with a model: `cargo run -p brasa --example reading -- [MODEL]`.
//!
//! Answers to a batch, probabilities of a text, classes, vectors, and the relevance of documents.

use std::path::PathBuf;

use brasa::tokenizer::{AddSpecial, ParseSpecial};
use brasa::{
    ClassifyOptions, EmbedOptions, Error, GenerateOptions, LoadOptions, Message, Model, RequestOptions,
    RerankOptions, TextModel,
};

fn main() -> Result<(), Error> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let path = std::env::args_os().nth(1).map_or_else(|| bundled.into(), PathBuf::from);
    let model = Model::load(path, &LoadOptions::default())?;
    batch(&model)?;
    score(&model)?;
    classify(&model)?;
    embed(&model)?;
    rerank(&model)
}

/// Answers in the order of the prompts, as many at once as the model takes.
fn batch(model: &Model) -> Result<(), Error> {
    let words = ["ember", "river", "stone"];
    let prompt = |word| model.chat_prompt(&[Message::new("user", format!("What does {word:?} mean?"))]);
    let prompts = words.map(prompt).into_iter().collect::<Result<Vec<_>, _>>()?;
    let options = GenerateOptions { max_tokens: Some(40), ..GenerateOptions::default() };
    // A prompt that fails is an error in its place; the others go on.
    for (word, answer) in words.iter().zip(model.batch(prompts, &options)) {
        let answer = answer?;
        println!("{word}: {} ({}, {} tokens)", answer.text, answer.finish.name(), answer.tokens.len());
    }
    Ok(())
}

/// How probable a text is: the mean of −ln p, and the logits behind each of its tokens.
fn score(model: &Model) -> Result<(), Error> {
    for text in ["A river flows to the sea.", "Sea the to flows river a."] {
        let ids = model.tokenizer().encode(text, AddSpecial::AsModel, ParseSpecial::No)?;
        let mut rows = 0;
        let score = model.score(&ids, &RequestOptions::default(), |logits| {
            rows += usize::from(logits.len() == model.vocab_size());
        })?;
        println!("{text:?}: {:.2} nats a token, {rows} rows of logits", score.mean_nll.unwrap_or_default());
    }
    Ok(())
}

/// The one token that follows each prompt.
fn classify(model: &Model) -> Result<(), Error> {
    let prompts = ["An ember is a hot piece of", "A river is a large natural"];
    for (prompt, class) in
        prompts.iter().zip(TextModel::classify(model, &prompts, &ClassifyOptions::default())?)
    {
        println!("{prompt} …{}", class?.text);
    }
    Ok(())
}

/// Vectors of length 1: their products tell how alike texts are.
fn embed(model: &Model) -> Result<(), Error> {
    let texts = ["a glowing piece of coal", "a hot ember", "a river in the north"];
    let ids = texts.map(|text| model.tokenizer().encode(text, AddSpecial::AsModel, ParseSpecial::No));
    let ids = ids.into_iter().collect::<Result<Vec<_>, _>>()?;
    let vectors = model.embed(ids, &EmbedOptions::default())?.collect::<Result<Vec<Vec<f32>>, _>>()?;
    let alike = |a: usize, b: usize| vectors[a].iter().zip(&vectors[b]).map(|(x, y)| x * y).sum::<f32>();
    println!("{:?} ~ {:?}: {:.3}, ~ {:?}: {:.3}", texts[0], texts[1], alike(0, 1), texts[2], alike(0, 2));
    Ok(())
}

/// How well each document answers a query, from 0 to 1.
fn rerank(model: &Model) -> Result<(), Error> {
    let documents = ["An ember is a glowing coal.", "Rivers flow to the sea."].map(String::from);
    let prompts = model.rerank_prompts("What is an ember?", &documents, &RerankOptions::default())?;
    for (document, relevance) in documents.iter().zip(model.rerank(prompts)) {
        println!("{:.3} {document}", relevance?);
    }
    Ok(())
}
