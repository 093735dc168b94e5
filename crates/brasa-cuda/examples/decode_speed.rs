//! Speed of greedy chains on a decoder with random weights in the shapes of Llama-3.2-1B, Llama-3.1-8B or Qwen3-0.6B, all of whose
//! matrices have one format.
//!
//! `cargo run --release -p brasa-cuda --example decode_speed -- [1b | 8b | 0.6b] [FORMAT] [DEPTH] [--plain]`

mod shapes;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_formats::StorageFormat;
use brasa_graph::chain::{Chain, Flow, RowDraw};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::sampling::{DrawRules, Sampler, SamplingParams};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::Sequences;

/// Tokens that a measurement decodes, and measurements.
const DECODED: usize = 128;
const ROUNDS: u64 = 5;
/// Rows of a step of the prompt.
const CHUNK: usize = 512;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let plain = arguments.iter().position(|argument| argument == "--plain");
    let deterministic = plain.map(|place| arguments.remove(place)).is_some();
    let name = arguments.get(1).map_or("Q4_0", String::as_str);
    let format = StorageFormat::GGUF.into_iter().find(|format| format.to_string() == name);
    let format = format.ok_or_else(|| format!("no format {name}"))?;
    let depth: usize = arguments.get(2).map_or(Ok(128), |depth| depth.parse())?;
    let model = arguments.first().map_or("1b", String::as_str);
    let decoder = shapes::decoder(model, format).ok_or_else(|| format!("no model {model}"))?;

    let device = CudaBackend::new(&CudaOptions { deterministic, ..CudaOptions::default() })?;
    let start = Instant::now();
    let graph = Arc::new(decoder.graph(1));
    let (made, start) = (start.elapsed(), Instant::now());
    let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
    let megabytes = weights.size_bytes() >> 20;
    let limits = ProgramLimits { max_rows: CHUNK, max_outs: 1, max_segments: 1 };
    let mut program = device.compile(Arc::clone(&graph), weights, limits)?;
    println!(
        "{}, {model} {format}, {megabytes} MB, made in {made:.1?}, ready in {:.1?}",
        device.device().name,
        start.elapsed()
    );
    println!("  {}", program.describe().lines().next().unwrap_or_default());
    let mut pool = device.kv_pool(KvPoolSpec { groups: graph.cache_groups(), dtype: KvType::F16 })?;
    let mut sequences = Sequences::new(&*pool);
    let rules = DrawRules::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() })?;
    let vocab = decoder.vocab as u32;
    let text: Vec<u32> = (0..depth as u32).map(|row| row * 7919 % vocab).collect();
    let mut rates = Vec::new();
    for id in 0..ROUNDS {
        for chunk in text.chunks(CHUNK) {
            let segment = sequences.extend(&mut *pool, id, chunk, Outs::Last)?;
            program.run(&Step { segments: vec![segment] }, &mut *pool)?;
        }
        sequences.extend(&mut *pool, id, &[0; DECODED], Outs::None)?;
        sequences.truncate(id, depth);
        let (mut token, mut first_index, mut left) = (1, depth, DECODED);
        let segment = sequences.extend(&mut *pool, id, &[token], Outs::Last)?;
        let start = Instant::now();
        while left > 0 {
            let mut segment = segment.clone();
            segment.first_index = first_index;
            segment.set_tokens(&[token]);
            let (mut history, mut last) = (vec![token], token);
            let limit = left.min(program.max_chain(false));
            let row = RowDraw {
                rules: &rules,
                position: first_index as u32,
                history: &mut history,
                limit,
                stops: &[],
                mask: None,
            };
            let finish = program.run_chain(
                &mut Step { segments: vec![segment] },
                &mut *pool,
                Chain {
                    rows: &mut [row],
                    sampler: &mut Sampler::default(),
                    sink: &mut |_, drawn| {
                        last = drawn.map_or(0, |draw| draw.token);
                        Flow::Continue
                    },
                },
            )?;
            (first_index, left, token) = (finish.lengths[0], left - limit, last);
        }
        rates.push(DECODED as f64 / start.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    println!(
        "  tg{DECODED} at depth {depth}: {:.1} tok/s (median of {ROUNDS}), {:.1} to {:.1}",
        rates[rates.len() / 2],
        rates[0],
        rates[rates.len() - 1]
    );
    Ok(())
}
