//! Times a text encoder on texts that are token ids already.
//!
//! `cargo run --release --example embedding_speed -- MODEL TEXTS [THREADS] [REPETITIONS]`; TEXTS has a text a line, as ids. The best of all repetitions
//! is printed, since whatever else runs on the machine only adds to a time. `tools/embeddings/compare.py` runs it beside other engines.

use std::time::{Duration, Instant};

use brasa::{EmbedOptions, Encoder, LoadOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("a text encoder is expected")?;
    let texts = arguments.next().ok_or("a file of token ids is expected")?;
    let threads = arguments.next().map(|threads| threads.parse()).transpose()?;
    let repetitions = arguments.next().map_or(Ok(3), |repetitions| repetitions.parse())?;
    let ids = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>();
    let texts: Vec<Vec<u32>> = std::fs::read_to_string(texts)?.lines().map(ids).collect::<Result<_, _>>()?;
    let tokens: usize = texts.iter().map(Vec::len).sum();

    let encoder = Encoder::load(&path, &LoadOptions { threads, ..LoadOptions::default() })?;
    let mut best = Duration::MAX;
    // The first run makes the program.
    for repetition in 0..=repetitions {
        let texts = texts.clone();
        let start = Instant::now();
        for vector in encoder.embed(texts, &EmbedOptions::default())? {
            vector?;
        }
        if repetition > 0 {
            best = best.min(start.elapsed());
        }
    }
    println!("{} texts, {tokens} tokens: {:.0} tokens/s", texts.len(), tokens as f64 / best.as_secs_f64());
    Ok(())
}
