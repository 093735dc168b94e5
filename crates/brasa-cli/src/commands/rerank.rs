//! `brasa rerank`: ranks documents by how well they answer a query.

use std::io::IsTerminal;

use brasa::{RerankOptions, Reranker, Scores};
use serde_json::{Value, json};

use super::texts;
use crate::args::RerankArguments;
use crate::failure::Failure;
use crate::{input, interrupt, load, output};

/// Prints documents, best first.
pub fn rerank(arguments: &RerankArguments) -> Result<(), Failure> {
    let documents = documents(arguments)?;
    if documents.is_empty() {
        return Err(Failure::Usage(
            "nothing to rank\nhint: give documents (as arguments, -f, or a line each on standard input)"
                .into(),
        ));
    }
    let model = load::reranker(&arguments.load)?;
    let options = RerankOptions {
        instruction: arguments.instruction.clone(),
        raw: arguments.raw,
        truncate: arguments.truncate,
        ..RerankOptions::default()
    };
    let (scores, tokens) = compute(&model, &arguments.query, &documents, &options)?;
    let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    // Documents of one score stay in their order.
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(arguments.top.unwrap_or(usize::MAX));
    if arguments.json {
        let result = |&(index, score): &(usize, f32)| json!({"index": index, "score": score, "text": documents[index]});
        let results: Vec<Value> = ranked.iter().map(result).collect();
        return output::line(
            &json!({"query": arguments.query, "tokens": tokens, "results": results}).to_string(),
        );
    }
    for (index, score) in ranked {
        // A document is one line, whatever is in it.
        let text = documents[index].split_whitespace().collect::<Vec<_>>().join(" ");
        output::line(&format!("{score:>8.4}  {text}"))?;
    }
    Ok(())
}

/// The documents from the command line, or from the input.
fn documents(arguments: &RerankArguments) -> Result<Vec<String>, Failure> {
    let text = match &arguments.file {
        Some(path) => input::text(path)?,
        None if !arguments.documents.is_empty() => return Ok(arguments.documents.clone()),
        None if std::io::stdin().is_terminal() => return Ok(Vec::new()),
        None => String::from_utf8(input::standard()?)
            .map_err(|error| Failure::Failed(format!("standard input is not UTF-8: {error}")))?,
    };
    if arguments.jsonl { texts::json_lines(&text) } else { Ok(texts::lines(&text)) }
}

/// The score of each document, and the number of tokens read. Shows a progress bar at a terminal.
fn compute(
    model: &Reranker,
    query: &str,
    documents: &[String],
    options: &RerankOptions,
) -> Result<(Vec<f32>, usize), Failure> {
    let count = documents.len();
    let ends = interrupt::ends_at_once();
    let scores = model.rerank(query, documents, options)?;
    let tokens = scores.tokens();
    let bar = load::count_bar("judging");
    bar.set_length(count as u64);
    if let Scores::Encoder(scores) = &scores {
        let mut done = 0;
        while done < count {
            done = scores.wait_beyond(done);
            bar.set_position(done as u64);
        }
    }
    let scores: Vec<f32> = scores.inspect(|_| bar.inc(1)).collect::<Result<_, _>>()?;
    bar.finish_and_clear();
    drop(ends);
    Ok((scores, tokens))
}
