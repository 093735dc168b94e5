//! Search of a folder by meaning: `cargo run -p brasa --example search -- QUERY [FOLDER [EMBEDDER [RERANKER]]]`.
//!
//! Texts are cut into passages, an embedder makes a vector of each, and the passages whose vectors are nearest to the query's are the
//! candidates. A reranker, if one is named, reads each of them together with the query and puts them in order.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::{fs, io};

use brasa::{EmbedOptions, Embedder, LoadOptions, RerankOptions, Reranker, TokensOptions};

/// Candidates that the vectors choose, and results that are shown.
const CANDIDATES: usize = 20;
const SHOWN: usize = 5;
/// Characters of a passage, at most by its last line.
const PASSAGE: usize = 600;

/// A part of a file.
struct Passage {
    path: PathBuf,
    /// The number of its first line, from 1.
    line: usize,
    text: String,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut arguments = std::env::args().skip(1);
    let query = arguments.next().unwrap_or_else(|| "how much memory does a model need".into());
    let folder = arguments.next().map_or_else(|| here.join("../../docs/dev"), PathBuf::from);
    let bundled = here.join("../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let embedder = arguments.next().map_or(bundled, PathBuf::from);
    let reranker = arguments.next();

    let mut passages = Vec::new();
    collect(&folder, &mut passages)?;
    let options = LoadOptions::default();
    let embedder = Embedder::load_with_progress(embedder, &options, |_| ControlFlow::Continue(()))?;
    let mut candidates = nearest(&embedder, &query, &passages)?;
    if let Some(path) = reranker {
        candidates = judged(&Reranker::load(path, &options)?, &query, &passages, &candidates)?;
    }
    for (score, number) in candidates.into_iter().take(SHOWN) {
        let Passage { path, line, text } = &passages[number];
        let beginning: String =
            text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(80).collect();
        println!(
            "{score:>7.3}  {}:{line}: {beginning}",
            path.strip_prefix(&folder).unwrap_or(path).display()
        );
    }
    Ok(())
}

/// Adds the passages of the text files in a folder and below.
fn collect(folder: &Path, passages: &mut Vec<Passage>) -> io::Result<()> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    for path in paths {
        let is_text = path.extension().is_some_and(|extension| extension == "md" || extension == "txt");
        if path.is_dir() {
            collect(&path, passages)?;
        } else if is_text {
            cut(&path, &fs::read_to_string(&path)?, passages);
        }
    }
    Ok(())
}

/// Cuts a text at empty lines, and where a passage has become long.
fn cut(path: &Path, text: &str, passages: &mut Vec<Passage>) {
    let (mut first, mut passage) = (1, String::new());
    let mut end = |line: usize, passage: &mut String| {
        if !passage.trim().is_empty() {
            passages.push(Passage { path: path.to_owned(), line, text: std::mem::take(passage) });
        }
        passage.clear();
    };
    for (number, line) in (1..).zip(text.lines()) {
        if passage.is_empty() {
            first = number;
        }
        passage.push_str(line);
        passage.push('\n');
        if line.trim().is_empty() || passage.len() > PASSAGE {
            end(first, &mut passage);
        }
    }
    end(first, &mut passage);
}

/// The passages whose vectors point most nearly where the query's does, with the cosines of the angles, best first.
fn nearest(
    embedder: &Embedder,
    query: &str,
    passages: &[Passage],
) -> Result<Vec<(f32, usize)>, brasa::Error> {
    // Many embedders were trained with a text in front that tells questions from passages.
    let read = |text: &str, prompt: &str| {
        let prompt = embedder.prompts().contains_key(prompt).then(|| prompt.to_owned());
        embedder.tokens(text, &TokensOptions { prompt, truncate: true })
    };
    let mut texts = vec![read(query, "query")?];
    for passage in passages {
        texts.push(read(&passage.text, "document")?);
    }
    // All at once: texts of like length share steps.
    let mut vectors = embedder.embed(texts, &EmbedOptions::default())?;
    let query = vectors.next().expect("the first text's vector")?;
    let mut found = Vec::new();
    for (number, vector) in vectors.enumerate() {
        found.push((vector?.iter().zip(&query).map(|(a, b)| a * b).sum(), number));
    }
    Ok(best(found))
}

/// The candidates in the order in which a reranker puts them, with its scores.
fn judged(
    reranker: &Reranker,
    query: &str,
    passages: &[Passage],
    candidates: &[(f32, usize)],
) -> Result<Vec<(f32, usize)>, brasa::Error> {
    let texts: Vec<String> = candidates.iter().map(|&(_, number)| passages[number].text.clone()).collect();
    // A language model's prompts are not cut; those of short passages need not be.
    let truncate = matches!(reranker, Reranker::Encoder(_));
    let options = RerankOptions { truncate, ..RerankOptions::default() };
    let mut found = Vec::new();
    for (score, &(_, number)) in reranker.rerank(query, &texts, &options)?.zip(candidates) {
        found.push((score?, number));
    }
    Ok(best(found))
}

fn best(mut found: Vec<(f32, usize)>) -> Vec<(f32, usize)> {
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.truncate(CANDIDATES);
    found
}
