//! `brasa embed`: vectors that stand for texts.

use brasa::{EmbedOptions, EmbeddingNorm};
use serde_json::{Value, json};

use super::prompt_text;
use crate::args::EmbedArguments;
use crate::failure::Failure;
use crate::{interrupt, load, output};

/// Longest part of a text that a table shows, in characters.
const SHOWN: usize = 40;

/// Prints the vectors of texts, or how alike the texts are.
pub fn embed(arguments: &EmbedArguments) -> Result<(), Failure> {
    let text = prompt_text(&arguments.prompt)?;
    let text = text.ok_or_else(|| {
        Failure::Usage("nothing to embed\nhint: give a text (-p, -f, or standard input)".into())
    })?;
    let texts: Vec<&str> = if arguments.lines {
        text.lines().filter(|line| !line.trim().is_empty()).collect()
    } else {
        vec![&text]
    };
    if texts.is_empty() {
        return Err(Failure::Usage("nothing to embed: all lines are empty".into()));
    }
    let model = load::model(&arguments.load)?;
    let ids: Vec<Vec<u32>> =
        texts.iter().map(|text| model.embedding_prompt(text)).collect::<Result<_, _>>()?;
    let tokens: Vec<usize> = ids.iter().map(Vec::len).collect();
    let norm = if arguments.raw { EmbeddingNorm::None } else { EmbeddingNorm::Euclidean };
    let pooling = arguments.pooling.map_or(model.pooling(), Into::into);
    let ends = interrupt::ends_at_once();
    let vectors = model.embed(ids, &EmbedOptions { pooling: Some(pooling), norm })?;
    let vectors: Vec<Vec<f32>> = vectors.collect::<Result<_, _>>()?;
    drop(ends);
    let alike: Vec<Vec<f32>> =
        vectors.iter().map(|a| vectors.iter().map(|b| cosine(a, b)).collect()).collect();
    if arguments.json {
        let embeddings = vectors.iter().zip(&tokens);
        let embeddings: Vec<Value> =
            embeddings.map(|(vector, tokens)| json!({"tokens": tokens, "embedding": vector})).collect();
        let mut all = json!({"pooling": pooling.name(), "embeddings": embeddings});
        if arguments.similarity {
            all["similarity"] = json!(alike);
        }
        return output::line(&all.to_string());
    }
    if arguments.similarity {
        for (text, row) in texts.iter().zip(&alike) {
            let row: Vec<String> = row.iter().map(|cosine| format!("{cosine:>6.3}")).collect();
            let shown: String = text.chars().take(SHOWN).collect();
            output::line(&format!("{}  {shown}", row.join(" ")))?;
        }
        return Ok(());
    }
    for vector in &vectors {
        let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
        output::line(&numbers.join(" "))?;
    }
    Ok(())
}

/// The cosine of the angle between two vectors; 0 if one has no direction.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let product =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum() };
    let lengths = (product(a, a) * product(b, b)).sqrt();
    if lengths > 0.0 { (product(a, b) / lengths) as f32 } else { 0.0 }
}
