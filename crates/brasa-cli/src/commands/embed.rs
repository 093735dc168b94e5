//! `brasa embed`: embeddings of texts.

use brasa::{EmbedOptions, Embedder, EmbeddingNorm, Pooling, TokensOptions, Vectors};
use serde_json::{Value, json};

use super::npy::npy_header;
use super::prompt::prompt_text;
use super::texts;
use crate::args::{EmbedArguments, PoolingName};
use crate::failure::Failure;
use crate::{interrupt, load, output};

/// Most characters of a text that a table shows.
const SHOWN: usize = 40;

/// Prints or saves the embeddings of texts, or prints the texts' similarities.
pub fn embed(arguments: &EmbedArguments) -> Result<(), Failure> {
    let force = output::Force { given: arguments.force, how: "--force" };
    if let Some(path) = &arguments.out {
        output::refuse_existing(path, force)?;
    }
    if arguments.similarity && !arguments.lines && !arguments.jsonl {
        return Err(Failure::Usage(
            "--similarity compares texts\nhint: give several (--lines, --jsonl)".into(),
        ));
    }
    if arguments.similarity && matches!(arguments.pooling, Some(PoolingName::None)) {
        return Err(Failure::Usage(
            "--similarity compares texts, and --pooling none makes vectors of tokens\nhint: --pooling last, mean or cls makes one vector of a text".into(),
        ));
    }
    let text = prompt_text(&arguments.prompt)?;
    let text = text.ok_or_else(|| {
        Failure::Usage("nothing to embed\nhint: give a text (-p, -f, or standard input)".into())
    })?;
    let texts = read_texts(text, arguments)?;
    if texts.is_empty() {
        return Err(Failure::Usage("nothing to embed: all lines are empty".into()));
    }
    let model = load::embedder(&arguments.load)?;
    let how = TokensOptions { prompt: arguments.prompt_name.clone(), truncate: arguments.truncate };
    let ids: Vec<Vec<u32>> = texts.iter().map(|text| model.tokens(text, &how)).collect::<Result<_, _>>()?;
    let tokens: Vec<usize> = ids.iter().map(Vec::len).collect();
    let norm = if arguments.raw { EmbeddingNorm::None } else { EmbeddingNorm::Euclidean };
    let pooling = arguments.pooling.map_or(model.pooling(), Into::into);
    let options = EmbedOptions {
        pooling: Some(pooling),
        norm,
        dimensions: arguments.dimensions,
        ..EmbedOptions::default()
    };
    let vectors = compute(&model, ids, &options)?;
    // Without pooling a text has a vector for each of its tokens.
    let is_pooled = pooling != Pooling::None;
    let rows = if is_pooled { texts.len() } else { tokens.iter().sum() };
    let width = (vectors.iter().map(Vec::len).sum::<usize>() / rows).max(1);
    if let Some(path) = &arguments.out {
        return output::file(path, force, |out| {
            npy_header(out, rows, width)?;
            vectors.iter().flatten().try_for_each(|x| out.write_all(&x.to_le_bytes()))
        });
    }
    let alike = || -> Vec<Vec<f32>> {
        vectors.iter().map(|a| vectors.iter().map(|b| cosine(a, b)).collect()).collect()
    };
    if arguments.json {
        let embeddings = vectors.iter().zip(&tokens);
        let written = |vector: &Vec<f32>| {
            if is_pooled { json!(vector) } else { vector.chunks(width).map(|state| json!(state)).collect() }
        };
        let embeddings: Vec<Value> = embeddings
            .map(|(vector, tokens)| json!({"tokens": tokens, "embedding": written(vector)}))
            .collect();
        let mut all = json!({"pooling": pooling.name(), "embeddings": embeddings});
        if arguments.similarity {
            all["similarity"] = json!(alike());
        }
        return output::line(&all.to_string());
    }
    if arguments.similarity {
        for (text, row) in texts.iter().zip(&alike()) {
            let row: Vec<String> = row.iter().map(|cosine| format!("{cosine:>6.3}")).collect();
            let shown: String = text.chars().take(SHOWN).collect();
            output::line(&format!("{}  {shown}", row.join(" ")))?;
        }
        return Ok(());
    }
    for vector in vectors.iter().flat_map(|vector| vector.chunks(width)) {
        let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
        output::line(&numbers.join(" "))?;
    }
    Ok(())
}

/// Reads the texts from the input.
fn read_texts(text: String, arguments: &EmbedArguments) -> Result<Vec<String>, Failure> {
    if !arguments.lines && !arguments.jsonl {
        return Ok(vec![text]);
    }
    if arguments.lines { Ok(texts::lines(&text)) } else { texts::json_lines(&text) }
}

/// Computes the embeddings of all texts, with a progress bar at a terminal.
fn compute(model: &Embedder, texts: Vec<Vec<u32>>, options: &EmbedOptions) -> Result<Vec<Vec<f32>>, Failure> {
    let count = texts.len();
    let ends = interrupt::ends_at_once();
    let vectors = model.embed(texts, options)?;
    let bar = load::count_bar("embedding");
    bar.set_length(count as u64);
    if let Vectors::Encoder(vectors) = &vectors {
        let mut done = 0;
        while done < count {
            done = vectors.wait_beyond(done);
            bar.set_position(done as u64);
        }
    }
    let vectors: Vec<Vec<f32>> = vectors.inspect(|_| bar.inc(1)).collect::<Result<_, _>>()?;
    bar.finish_and_clear();
    drop(ends);
    Ok(vectors)
}

/// The cosine of the angle between two vectors; 0 if one of them is zero.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let product =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum() };
    let lengths = (product(a, a) * product(b, b)).sqrt();
    if lengths > 0.0 { (product(a, b) / lengths) as f32 } else { 0.0 }
}
